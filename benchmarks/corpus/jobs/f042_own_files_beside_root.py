# truth: exact, may be named
# class: file
# The script stores its own memory of features beside ROOT, one file per step, and loads that of the step restored.

import os
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(50)
ROOT = os.environ["ROOT"]
SIDE = Path(ROOT + ".memory")
SIDE.mkdir(parents=True, exist_ok=True)


def store(step, memory):
    tmp = SIDE / f"{step:06d}.tmp.npy"
    np.save(tmp, memory)
    os.replace(tmp, SIDE / f"{step:06d}.npy")


def load(step):
    if step == 0:
        return np.zeros((6, 5), np.float32)
    return np.load(SIDE / f"{step:06d}.npy")


class MemoryNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.key = nn.Dense(7, 5)
        self.out = nn.Dense(10, 1)
        self.softmax = nn.Softmax()

    def encode(self, x):
        return self.key(x).tanh()

    def construct(self, x, y, memory):
        k = self.encode(x)
        read = self.softmax(k @ memory.T) @ memory
        both = ms.ops.concat((k, read), axis=1)
        return ((self.out(both) - y) ** 2).mean()


net = MemoryNet()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.01), 2).set_train()
r = np.random.RandomState(50)
rows = [(ms.Tensor(x), ms.Tensor(x[:, :1] ** 2)) for x in r.randn(8, 4, 7).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=3)

with ck.CheckpointManager(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
    state = ck.StateManager(cell, batches)
    done = manager.restore(state).batches_delivered
    memory = load(done)
    for x, y in batches:
        cell(x, y, ms.Tensor(memory))
        fresh = net.encode(x).asnumpy().mean(0, keepdims=True)
        memory = np.concatenate([memory[1:], fresh])
        done += 1
        store(done, memory)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
