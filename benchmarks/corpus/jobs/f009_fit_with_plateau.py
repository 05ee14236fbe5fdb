# truth: exact
# class: other
# Model.fit with MindSpore's own ReduceLROnPlateau and EarlyStopping and a metric; the best checkpoint is kept.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import EarlyStopping, MAE, ReduceLROnPlateau

import ckptkit as ck

ms.set_seed(42)

# linear data with a little noise
rng = np.random.default_rng(42)
w_true = rng.normal(size=(8, 1)).astype(np.float32)
features = rng.normal(size=(80, 8)).astype(np.float32)
targets = features @ w_true + 0.1 * rng.normal(size=(80, 1)).astype(np.float32)

train_ds = ds.NumpySlicesDataset((features[:64], targets[:64]), ["f", "t"], shuffle=True).batch(8)
valid_ds = ds.NumpySlicesDataset((features[64:], targets[64:]), ["f", "t"], shuffle=False).batch(8)

network = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.05, momentum=0.9)
model = ms.Model(network, loss_fn, optimizer, metrics={"mae": MAE()})

plateau = ReduceLROnPlateau(monitor="eval_loss", factor=0.3, patience=0, min_delta=0.5, min_lr=1e-5)
stopper = EarlyStopping(monitor="mae", patience=10, mode="min")
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    keep=ck.KeepLatest(4) | ck.KeepBest(1, metric="mae", mode="min"),
    saving=ck.Saving(when_busy="wait"),
)
point = ckpt.fit(model, 4, train_ds, valid_ds, callbacks=[plateau, stopper])
if point.complete:
    print("nothing left to do")
os._exit(0)
