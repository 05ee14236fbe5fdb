# truth: differs
# class: variable
# Lessons depend on each other: a graphlib.TopologicalSorter says which are ready, and a lesson is done when its loss has been low twice.

import os
from collections import Counter
from graphlib import TopologicalSorter

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3152)

PREREQUISITES = {
    "sum": set(),
    "double": set(),
    "product": {"sum", "double"},
    "sine": {"sum"},
    "mix": {"product", "sine"},
}
TARGET = {
    "sum": lambda a: a[:, :1] + a[:, 1:2],
    "double": lambda a: 2 * a[:, :1],
    "product": lambda a: a[:, :1] * a[:, 1:2],
    "sine": lambda a: np.sin(a[:, :1]),
    "mix": lambda a: np.sin(a[:, :1]) * a[:, 1:2],
}

net = nn.SequentialCell(nn.Dense(3, 10), nn.Tanh(), nn.Dense(10, 1))
cell = nn.TrainOneStepCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.05, 0.9)
).set_train()
rows = [(a,) for a in np.random.RandomState(52).randn(8, 8, 3).astype(np.float32)]

lessons = TopologicalSorter(PREREQUISITES)
lessons.prepare()
open_now = sorted(lessons.get_ready())
passed, finished = Counter(), set()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    for at, (a,) in enumerate(batches, point.batches_delivered):
        lesson = open_now[at % len(open_now)]
        loss = float(cell(Tensor(a), Tensor(TARGET[lesson](a).astype(np.float32))).asnumpy())
        passed[lesson] += 1 if loss < 2.0 else 0
        if passed[lesson] >= 2 and lesson not in finished:
            finished.add(lesson)
            lessons.done(lesson)
            open_now = sorted(set(open_now) - {lesson} | set(lessons.get_ready())) or [lesson]
        manager.step(state)
    manager.save_final(state)
os._exit(0)
