# truth: exact
# class: other
# Model.fit with metrics, ReduceLROnPlateau and EarlyStopping.

import hashlib
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import EarlyStopping, ReduceLROnPlateau

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(48)
r = np.random.RandomState(38)
x = r.randn(64, 5).astype(np.float32)
y = (x[:, :1] - 0.5 * x[:, 1:2] + 0.3 * r.randn(64, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x[:48], y[:48]), ["x", "y"], shuffle=True).batch(8)
valid = ds.NumpySlicesDataset((x[48:], y[48:]), ["x", "y"], shuffle=False).batch(8)
net = nn.SequentialCell(nn.Dense(5, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)
model = ms.Model(net, nn.MSELoss(), opt, metrics={"mae": nn.MAE()})
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.fit(
    model,
    8,
    train,
    valid,
    callbacks=[
        ReduceLROnPlateau(monitor="mae", factor=0.5, patience=1, mode="min", min_delta=0.01),
        EarlyStopping(monitor="mae", patience=4, mode="min"),
    ],
)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
