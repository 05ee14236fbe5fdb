"""Draws its data when it is imported, and sets no seed: a real restart has others."""

import mindspore.dataset as ds
import numpy as np
from mindspore.train import Model
from tiny import Net, optimizer_of

import ckptkit as ck

x = np.random.standard_normal((28, 6)).astype(np.float32)
y = np.random.standard_normal((28, 3)).astype(np.float32)

net = Net()
model = Model(ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=3))
ckpt = ck.CheckpointCallback("runs/mine", save=ck.SaveEvery(micro_steps=2))
ckpt.train(model, 5, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4))
