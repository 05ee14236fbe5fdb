# truth: exact
# class: random
# Stochastic depth: the loop draws which blocks live in this step and hands the decisions to the graph.

import argparse
import json
import os
import random

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import tqdm
from mindspore import nn, ops

import ckptkit as ck

parser = argparse.ArgumentParser()
parser.add_argument("--config", default='{"depth": 4, "width": 12, "drop": 0.4, "rate": 0.005}')
parser.add_argument("--epochs", type=int, default=4)
args, _ = parser.parse_known_args()
config = json.loads(args.config)
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(155)
random.seed(155)


class Residual(nn.Cell):
    def __init__(self, inputs, width, depth):
        super().__init__()
        self.stem, self.head = nn.Dense(inputs, width), nn.Dense(width, 1)
        self.blocks = nn.CellList([nn.Dense(width, width) for _ in range(depth)])
        self.depth = depth

    def construct(self, x, alive, y):
        h = self.stem(x)
        for i in range(self.depth):
            h = h + alive[i] * ops.tanh(self.blocks[i](h))
        return ((self.head(h) - y) ** 2).mean()


def draw_alive(depth, drop):
    keep = [1 - drop * (i + 1) / depth for i in range(depth)]
    return ms.Tensor([1 / k if random.random() < k else 0.0 for k in keep], ms.float32)


r = np.random.RandomState(56)
x = r.randn(60, 6).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] - x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = Residual(6, config["width"], config["depth"])
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), config["rate"]), 2, clip_norm=1.0).set_train()

batches = ck.data.resumable(train, epochs=args.epochs)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for xb, yb in tqdm.tqdm(batches, desc="batches", mininterval=1.0):
        loss = cell(xb, draw_alive(config["depth"], config["drop"]), yb)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
