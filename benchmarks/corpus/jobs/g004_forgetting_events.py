# truth: differs
# class: attribute
# Forgetting events (Toneva et al.): per sample it is remembered whether it was right last time and how often it was forgotten.

import os
from collections import defaultdict
from dataclasses import dataclass

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck


@dataclass
class Record:
    was_correct: bool = False
    forgotten: int = 0
    seen: int = 0


class ForgettingTracker:
    def __init__(self):
        self.records = defaultdict(Record)

    def weights(self, ids):
        return np.array(
            [
                0.4
                if self.records[int(i)].seen and self.records[int(i)].was_correct
                else 1.0 + self.records[int(i)].forgotten
                for i in ids
            ],
            np.float32,
        )

    def update(self, ids, correct):
        for i, ok in zip(ids, correct):
            rec = self.records[int(i)]
            if rec.was_correct and not ok:
                rec.forgotten += 1
            rec.was_correct = bool(ok)
            rec.seen += 1


def build_data():
    r = np.random.default_rng(2)
    x = r.normal(size=(48, 8)).astype(np.float32)
    y = (np.abs(x[:, 0]) + x[:, 1] > 0.8).astype(np.int32)
    ids = np.arange(48, dtype=np.int32)
    return ds.NumpySlicesDataset((ids, x, y), ["id", "x", "y"], shuffle=True).batch(6)


ms.set_seed(14)
model = nn.SequentialCell(nn.Dense(8, 10), nn.ReLU(), nn.Dense(10, 2))
optimizer = nn.Adam(model.trainable_params(), learning_rate=0.02)
tracker = ForgettingTracker()


def forward(x, y, w):
    logits = model(x)
    per_sample = ops.cross_entropy(logits, y, reduction="none")
    return (per_sample * w).mean(), logits


grad_fn = ms.value_and_grad(forward, None, model.trainable_params(), has_aux=True)

batches = ck.data.resumable(build_data(), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([model, optimizer], batches)
    manager.restore(state)
    for ids, x, y in batches:
        idx = ids.asnumpy()
        (loss, logits), grads = grad_fn(x, y, ms.Tensor(tracker.weights(idx)))
        optimizer(grads)
        tracker.update(idx, logits.asnumpy().argmax(1) == y.asnumpy())
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
