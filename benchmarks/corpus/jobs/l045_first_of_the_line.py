# truth: differs
# class: attribute
# A frozen, persistent Trend is given by name with state_dict and load_state_dict, but the loop goes on with the successors that `seen` returns.

import os
from dataclasses import asdict, dataclass, replace

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4145)


@dataclass(frozen=True)
class Trend:
    level: float = 1.0
    slope: float = 0.0

    def seen(self, loss):
        level = 0.7 * (self.level + self.slope) + 0.3 * loss
        return replace(self, level=level, slope=0.8 * self.slope + 0.2 * (level - self.level))

    def state_dict(self):
        return asdict(self)

    def load_state_dict(self, state):
        for name, value in state.items():
            object.__setattr__(self, name, value)


class Trainer:
    def __init__(self, net, opt, trend):
        self.net, self.opt, self.trend = net, opt, trend
        mse = nn.MSELoss()
        self.gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

    def train_batch(self, x, y):
        loss, grads = self.gradients(x, y)
        self.trend = self.trend.seen(float(loss.asnumpy()))
        rate = 0.02 / (1 + self.trend.level) - 0.05 * min(0.0, self.trend.slope)
        ops.assign(self.opt.learning_rate, ms.Tensor(rate, ms.float32))
        self.opt(grads)


r = np.random.RandomState(45)
rows = []
for _ in range(8):
    x = r.randn(8, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] - x[:, 1:2] ** 2).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
trainer = Trainer(net, nn.Momentum(net.trainable_params(), 0.02, 0.9), Trend())

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([trainer.net, trainer.opt], batches, trend=trainer.trend)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        trainer.train_batch(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
