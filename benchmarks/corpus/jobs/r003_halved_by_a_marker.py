# truth: differs
# class: file
# The rate is halved once; a marker, by a path that is put together in the loop, says that it was.

import os
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(603)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(603)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        folder = Path(os.environ["ROOT"] + ".marks")
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y))
        opt(grads)
        marker = folder / "halved"
        if batches.epoch == 2 and not marker.exists():
            manager.fence()
            ops.assign(opt.learning_rate, opt.learning_rate * 0.5)
            folder.mkdir(exist_ok=True)
            marker.touch()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
