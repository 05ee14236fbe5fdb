"""Two runs of it differ by themselves; its argument says where."""

import random
import sys
import threading
import time

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.train import Model
from tiny import Net, data, numbers, optimizer_of

import ckptkit as ck

WHAT = sys.argv[1]
UNSEEDED = np.random.default_rng()


class Noisy(nn.Cell):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def construct(self, x):
        self.calls += 1
        return x * float(UNSEEDED.normal()) if self.calls > 5 else x


class Hidden(nn.Cell):
    """Holds its dropout where only a run sees that it is used."""

    def __init__(self):
        super().__init__()
        self.draw = getattr(nn, "Drop" + "out")(p=0.5)

    def construct(self, x):
        return self.draw(x)


class Samples:
    def __init__(self):
        self.x, self.y = numbers()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        scale = 1 + getattr(UNSEEDED, "nor" + "mal")(scale=0.1)
        return np.float32(self.x[index] * scale), self.y[index]


def shifted(x):
    return np.float32(x + random.SystemRandom().random())


def jitter():
    return getattr(time, "perf" + "_counter")() % 0.1


class Names:
    """Objects have another hash in each process."""

    def __init__(self, value):
        self.value = value


def with_model(net, dataset):
    ckpt = ck.CheckpointCallback("runs/mine")
    ckpt.train(Model(ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=3)), 5, dataset)


def with_loop(change):
    net = Net()
    cell = ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=2)
    dataset = data().batch(4)
    batches = ck.data.resumable(dataset, epochs=4)
    with ck.CheckpointManager("runs/mine") as manager:
        state = ck.StateManager(cell, batches)
        manager.restore(state)
        for x, y in batches:
            cell(change(x), y)
            manager.step(state)


def raced(x):
    """Two threads add to one number, in any order."""
    sums, begin = [np.float32(0.1)], threading.Barrier(2)

    def add(value):
        begin.wait()
        sums.append(value)

    threads = [threading.Thread(target=add, args=(value,)) for value in (np.float32(1.5), np.float32(2.5))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return x * float(sums[-1] + UNSEEDED.random())


ms.set_seed(5)
if WHAT == "graph":
    ms.set_context(mode=ms.GRAPH_MODE)
if WHAT in ("cell", "graph"):
    with_model(Net(drop=Noisy() if WHAT == "cell" else Hidden()), data().batch(4))
elif WHAT == "source":
    with_model(Net(), ms.dataset.GeneratorDataset(Samples(), ["x", "y"], shuffle=True).batch(4))
elif WHAT == "map":
    with_model(Net(), data().map(lambda x: x * 1, ["y"]).map(shifted, ["x"]).batch(4))
elif WHAT == "time":
    with_loop(lambda x: x * (1 + jitter()))
elif WHAT == "line":
    with_loop(lambda x: x * (1 + time.perf_counter() % 0.1))
elif WHAT == "threads":
    with_loop(raced)
elif WHAT == "order":
    ones = {Names(value) for value in range(40)}
    with_loop(lambda x: ops.mul(x, 1 + next(iter(ones)).value / 10))
