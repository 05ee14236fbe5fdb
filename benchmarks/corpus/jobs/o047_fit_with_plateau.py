# truth: exact
# class: other
# Model.fit with evaluation after each epoch and MindSpore's own ReduceLROnPlateau and EarlyStopping, whose state ckptkit stores. GRAPH mode.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import EarlyStopping, LossMonitor, ReduceLROnPlateau

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3547)

r = np.random.RandomState(47)
x = r.randn(96, 6).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + 0.5 * x[:, 2:3] + r.randn(96, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x[:64], y[:64]), ["x", "y"], shuffle=True).batch(8)
valid = ds.NumpySlicesDataset((x[64:], y[64:]), ["x", "y"], shuffle=False).batch(16)
net = nn.SequentialCell(nn.Dense(6, 16), nn.ReLU(), nn.Dense(16, 1))
model = ms.Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.05), metrics={"mae"})

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
callbacks = [
    LossMonitor(8),
    ReduceLROnPlateau(monitor="eval_loss", factor=0.5, patience=0, min_delta=0.02, mode="min"),
    EarlyStopping(monitor="mae", patience=3, mode="min"),
]
ckpt.fit(model, 5, train, valid, callbacks=callbacks)
os._exit(0)
