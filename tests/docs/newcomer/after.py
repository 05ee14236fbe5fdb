"""before.py with gradient accumulation over four batches, and an exact resume."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import LossMonitor

import ckptkit as ck

ms.set_seed(1)
digits = np.load("digits.npz")
dataset = ds.NumpySlicesDataset((digits["images"], digits["labels"]), ["image", "label"]).batch(32)

net = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
loss_fn = nn.CrossEntropyLoss()
optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01)

cell = ck.AccumulationTrainCell(nn.WithLossCell(net, loss_fn), optimizer, accumulation_steps=4)
model = ms.Model(cell)
ckpt = ck.CheckpointCallback("runs/digits", save=ck.SaveEvery(optimizer_steps=5), keep=ck.KeepLatest(3))
ckpt.train(model, 3, dataset, callbacks=[LossMonitor(20)])

ms.save_checkpoint(net, "digits.ckpt")
