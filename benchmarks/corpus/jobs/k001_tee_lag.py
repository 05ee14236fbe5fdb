# truth: differs
# class: iterator
# Each batch is trained with the one after it: two iterators of itertools.tee, one of them ahead.

import os

import mindspore as ms
import numpy as np
from mindspore import nn
import itertools

import ckptkit as ck

ms.set_seed(301)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(301)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    behind, ahead = itertools.tee(batches)
    next(ahead, None)
    for (x, y), (x2, _) in itertools.zip_longest(behind, ahead, fillvalue=rows[0]):
        loss, grads = vg(ms.Tensor(x + 0.1 * x2), ms.Tensor(y))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
