# truth: differs
# class: file
# The answers of the last batch are a file, copied to another one if they were the best; training is pulled to these.

import os
import shutil

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(606)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(606)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

np.save("best.npy", np.zeros((6, 1), np.float32))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        target = 0.8 * y + 0.2 * np.load("best.npy")
        loss, grads = vg(ms.Tensor(x), ms.Tensor(target.astype(np.float32)))
        opt(grads)
        np.save("last.npy", net(ms.Tensor(x)).asnumpy())
        if float(loss) < 2.0:
            shutil.copy("last.npy", "best.npy")
        manager.step(state)
    manager.save_final(state)
os._exit(0)
