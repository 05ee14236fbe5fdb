# truth: differs
# class: file
# a state file of the script's own is written every 4 batches and read at the start; it is not of the same batch as the checkpoint

import json
import os
import pathlib

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))


class Journal:
    """Keeps a few numbers in a JSON file beside the run."""

    def __init__(self, path, **defaults):
        self.path, self.values = pathlib.Path(path), dict(defaults)
        if self.path.exists():
            self.values.update(json.loads(self.path.read_text()))

    def flush(self):
        self.path.write_text(json.dumps(self.values))

    def __getitem__(self, name):
        return self.values[name]

    def __setitem__(self, name, value):
        self.values[name] = value


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
network = nn.WithLossCell(net, loss_fn)
optimizer = nn.Momentum(network.trainable_params(), 0.02, 0.9)
cell = ck.AccumulationTrainCell(network, optimizer, accumulation_steps=2).set_train()
journal = Journal(f"{ROOT}.journal.json", seen=0, mean=1.0)


def adapt(manager, loss):
    journal["seen"] += 1
    journal["mean"] += (loss - journal["mean"]) / (journal["seen"] + 1)
    manager.fence()
    ops.assign(optimizer.learning_rate, Tensor(0.02 * loss / (loss + journal["mean"]), ms.float32))
    if journal["seen"] % 4 == 0:
        journal.flush()


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        adapt(manager, float(cell(x, y).asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
