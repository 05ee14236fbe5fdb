# truth: exact
# class: callback

import os
import math
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2).astype(np.float32)
train_data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)


class WarmRestarts(ms.Callback):
    def __init__(self, base, first=5, mult=2):
        super().__init__()
        self.base, self.t_cur, self.t_i, self.mult = base, 0, first, mult

    def on_train_step_end(self, run_context):
        self.t_cur += 1
        if self.t_cur >= self.t_i:
            self.t_cur, self.t_i = 0, self.t_i * self.mult
        lr = 0.5 * self.base * (1 + math.cos(math.pi * self.t_cur / self.t_i))
        ops.assign(run_context.original_args().optimizer.learning_rate, Tensor(lr, ms.float32))


sgdr = WarmRestarts(0.05)
ckpt = ck.CheckpointCallback(ROOT, stateful={"sgdr": ck.attributes(sgdr, "t_cur", "t_i")}, **SAVE)
ckpt.train(model, 3, train_data, callbacks=[sgdr])
os._exit(0)
