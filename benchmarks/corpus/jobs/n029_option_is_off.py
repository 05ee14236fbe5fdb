# truth: exact, may be named
# class: attribute
# The trainer keeps a running loss and could scale the rate by it, if the option `adaptive` were on; the option is off, and nothing else asks for the running loss.

import os
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4429)


@dataclass(frozen=True)
class Options:
    rate: float = 0.04
    epochs: int = 3
    adaptive: bool = False


class Trainer:
    def __init__(self, net, opt, options):
        self.net, self.opt, self.options = net, opt, options
        self.running = None
        mse = nn.MSELoss()
        self.gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

    def observe(self, loss):
        self.running = loss if self.running is None else 0.9 * self.running + 0.1 * loss

    def rate(self, loss, epoch):
        rate = self.options.rate * 0.7**epoch
        if self.options.adaptive:
            rate *= min(1.0, self.running / loss)
        return rate

    def step(self, x, y, epoch):
        loss, grads = self.gradients(x, y)
        loss = float(loss.asnumpy())
        self.observe(loss)
        ops.assign(self.opt.learning_rate, ms.Tensor(self.rate(loss, epoch), ms.float32))
        self.opt(grads)


r = np.random.RandomState(29)
rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] + x[:, 1:2] * x[:, 2:3]).astype(np.float32))))
options = Options()
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
trainer = Trainer(net, nn.Momentum(net.trainable_params(), options.rate, 0.9), options)

batches = ck.data.resumable(rows, epochs=options.epochs)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, trainer.opt], batches)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        trainer.step(x, y, batches.epoch)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
