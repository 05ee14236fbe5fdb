# truth: differs
# class: attribute
# Successive halving within one job: four configurations train side by side, and after every eighth batch the worse half is given up; who is left and how good is in plain objects.

import os
from dataclasses import dataclass, field

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4460)


@dataclass
class Trial:
    number: int
    rate: float
    momentum: float
    losses: list = field(default_factory=list)

    @property
    def score(self):
        return sum(self.losses[-4:]) / len(self.losses[-4:])


class Halving:
    def __init__(self, trials, rung):
        self.alive, self.rung = list(trials), rung

    def report(self, at):
        if (at + 1) % self.rung == 0 and len(self.alive) > 1:
            self.alive = sorted(self.alive, key=lambda t: t.score)[: len(self.alive) // 2]
            print(f"after {at + 1} batches:", [(t.rate, t.momentum) for t in self.alive])


class Learner:
    def __init__(self, net, trial):
        self.opt = nn.Momentum(net.trainable_params(), trial.rate, trial.momentum)
        mse = nn.MSELoss()
        self.gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

    def train(self, x, y):
        loss, grads = self.gradients(x, y)
        self.opt(grads)
        return float(loss.asnumpy())


r = np.random.RandomState(60)
rows = []
for _ in range(8):
    x = r.randn(6, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * x[:, 1:2] + 0.3 * r.randn(6, 1)).astype(np.float32))))
trials = [Trial(n, rate, m) for n, (rate, m) in enumerate([(0.1, 0.0), (0.02, 0.9), (0.005, 0.9), (0.05, 0.5)])]
nets = nn.CellList([nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1)) for _ in trials])
learners = [Learner(net, trial) for net, trial in zip(nets, trials)]
halving = Halving(trials, rung=8)

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    first, *others = [learner.opt for learner in learners]
    state = ck.StateManager([nets, first], batches, **{f"optimizer_{n}": opt for n, opt in enumerate(others, 1)})
    point = manager.restore(state)
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        for trial in halving.alive:
            trial.losses.append(learners[trial.number].train(x, y))
        halving.report(at)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
