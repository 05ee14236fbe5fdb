# truth: exact
# class: file
# Each start writes the same CSV file into the current folder and reads it with MindSpore's CSVDataset, shuffled by a seed; K = 3.

import csv
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4146)
NAMES = ["height", "width", "depth", "weight"]


def write(path):
    r = np.random.RandomState(46)
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        for h, w, d in r.rand(48, 3):
            out.writerow([f"{v:.5f}" for v in (h, w, d, h * w * d * 4 + 0.05 * r.randn())])


class Box(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(3, 8), nn.Tanh(), nn.Dense(8, 1))

    def construct(self, height, width, depth, weight):
        x = ops.stack([height, width, depth], 1)
        return ((self.body(x) - weight.reshape(-1, 1)) ** 2).mean()


path = os.path.abspath("boxes.csv")
write(path)
dataset = ds.CSVDataset([path], column_defaults=[0.0] * 4, column_names=NAMES, num_parallel_workers=1, shuffle=False)
dataset = dataset.shuffle(16).batch(6)
box = Box()
cell = ck.AccumulationTrainCell(box, nn.Adam(box.trainable_params(), 0.02), accumulation_steps=3).set_train()

batches = ck.data.resumable(dataset, epochs=3, seed=46)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for columns in batches:
        cell(*columns)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
