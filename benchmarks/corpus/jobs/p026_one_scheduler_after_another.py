# truth: exact
# class: variable
# A linear warm-up and then an exponential decay, both of mindspore.experimental, both given by name.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.experimental import optim

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(126)

r = np.random.RandomState(26)
x = r.randn(60, 5).astype(np.float32)
y = (np.sin(x[:, :1]) * x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 16), nn.Tanh(), nn.Dense(16, 1))
groups = [
    {"params": net[0].trainable_params(), "lr": 0.01},
    {"params": net[2].trainable_params(), "lr": 0.03},
]
optimizer = optim.Adam(groups, lr=0.01)
warmup = optim.lr_scheduler.LinearLR(optimizer, start_factor=0.2, total_iters=8)
decay = optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.97)
grad_fn = ms.value_and_grad(lambda x, y: ((net(x) - y) ** 2).mean(), None, net.trainable_params())

batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches, warmup=warmup, decay=decay)
    manager.restore(state)
    for xb, yb in batches:
        loss, grads = grad_fn(xb, yb)
        optimizer(grads)
        warmup.step()
        decay.step()
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
