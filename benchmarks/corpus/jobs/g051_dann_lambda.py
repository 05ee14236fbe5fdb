# truth: exact
# class: random
# Domain-adversarial training: the gradient-reversal factor is a function of the number of batches, which begins where restore() says.

import math
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(46)
EPOCHS, BATCH = 3, 6


class DANN(nn.Cell):
    def __init__(self):
        super().__init__()
        self.features = nn.SequentialCell(nn.Dense(6, 10), nn.ReLU())
        self.label_head = nn.Dense(10, 2)
        self.domain_head = nn.Dense(10, 2)

    def construct(self, x, y, domain, lam):
        f = self.features(x)
        # value f, gradient -lam
        reversed_f = ops.stop_gradient(f * (1 + lam)) - lam * f
        label_loss = ops.cross_entropy(self.label_head(f), y, reduction="none")
        source = (domain == 0).astype(ms.float32)
        task = (label_loss * source).sum() / (source.sum() + 1e-6)
        return task + ops.cross_entropy(self.domain_head(reversed_f), domain)


def make_dataset():
    rng = np.random.default_rng(10)
    x = rng.normal(size=(54, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    domain = (np.arange(54) % 2).astype(np.int32)
    x[domain == 1] += 0.7
    return ds.NumpySlicesDataset((x, y, domain), ["x", "y", "domain"], shuffle=True).batch(BATCH)


def reversal_strength(p):
    return 2.0 / (1.0 + math.exp(-10 * p)) - 1.0


dann = DANN()
cell = ck.AccumulationTrainCell(dann, nn.Momentum(dann.trainable_params(), 0.05, 0.9), accumulation_steps=2)
cell.set_train()
dataset = make_dataset()
total = EPOCHS * dataset.get_dataset_size()
batches = ck.data.resumable(dataset, epochs=EPOCHS)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    for k, (x, y, domain) in enumerate(batches, start=point.batches_delivered):
        lam = ms.Tensor(reversal_strength(k / total), ms.float32)
        loss = cell(x, y, domain, lam)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
