# truth: exact
# class: random
# ckptkit's own cell: K by a schedule, clipping, loss scaling, a flushed remainder, in a loop of one's own.

import hashlib
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import amp, nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(60)
r = np.random.RandomState(50)
x = r.randn(66, 6).astype(np.float32)
y = (x[:, :1] ** 2 - x[:, 1:2]).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), ck.nn.Dropout(p=0.2, seed=5), nn.Dense(12, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()),
    nn.Adam(net.trainable_params(), nn.exponential_decay_lr(0.02, 0.9, 40, 5, 1)),
    accumulation_steps={0: 2, 3: 4},
    clip_norm=1.0,
    loss_scaler=amp.DynamicLossScaler(2.0**10, 2, 4),
    remainder="flush",
)
cell.set_train()
run = ck.loop(
    os.environ["ROOT"],
    data,
    epochs=4,
    train=cell,
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for a, b in run:
    number = run.step
    loss = cell(a, b)
    if cell.updated:
        print(number, float(loss), float(cell.gradient_norm))
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
