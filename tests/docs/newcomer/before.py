"""An ordinary training, as MindSpore's tutorials have it. plain.py is what it becomes."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import LossMonitor

ms.set_seed(1)
digits = np.load("digits.npz")
dataset = ds.NumpySlicesDataset((digits["images"], digits["labels"]), ["image", "label"]).batch(32)

net = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
loss_fn = nn.CrossEntropyLoss()
optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01)

model = ms.Model(net, loss_fn, optimizer)
model.train(3, dataset, callbacks=[LossMonitor(20)])

ms.save_checkpoint(net, "digits.ckpt")
