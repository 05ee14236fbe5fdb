# truth: differs
# class: attribute
# The mixing ratio of real and synthetic rows walks down the Stern-Brocot tree in exact Fractions, left or right by the loss.

import os
from fractions import Fraction

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(27)


class Mediant:
    def __init__(self, low=Fraction(0, 1), high=Fraction(1, 1)):
        self.low, self.high = low, high

    @property
    def ratio(self):
        return Fraction(self.low.numerator + self.high.numerator, self.low.denominator + self.high.denominator)

    def move(self, up):
        if up:
            self.low = self.ratio
        else:
            self.high = self.ratio
        if self.ratio.denominator > 9:
            self.low, self.high = Fraction(0), Fraction(1)


rng = np.random.default_rng(12)
real = rng.normal(size=(8, 10, 6)).astype(np.float32)
fake = rng.laplace(size=(8, 10, 6)).astype(np.float32)
label = lambda x: (x[:, :1] * x[:, 1:2] + x[:, 2:3]).astype(np.float32)  # noqa: E731
rows = list(zip(real, fake))

net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 1))
train = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01)).set_train()
mix = Mediant()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(train, batches)
    manager.restore(state)
    for a, b in batches:
        count = int(mix.ratio * 10)
        x = np.concatenate([a[:count], b[count:]])
        loss = train(ms.Tensor(x), ms.Tensor(label(x)))
        mix.move(up=float(loss.asnumpy()) > 1.2)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
