# truth: differs
# class: attribute
# the preferences and the baseline of a bandit over augmentations are NumPy attributes; they weigh the losses

import abc
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)


class Policy(abc.ABC):
    @abc.abstractmethod
    def probabilities(self): ...

    @abc.abstractmethod
    def feedback(self, losses): ...


class GradientBandit(Policy):
    def __init__(self, arms, step=0.4):
        self.preferences, self.baseline, self.step = np.zeros(arms), 0.0, step

    def probabilities(self):
        e = np.exp(self.preferences - self.preferences.max())
        return e / e.sum()

    def feedback(self, losses):
        p, reward = self.probabilities(), -np.asarray(losses)
        self.preferences += self.step * (reward - self.baseline) * p
        self.baseline += 0.2 * (float(p @ reward) - self.baseline)


ARMS = (lambda x: x, lambda x: -x, lambda x: x * 0.5)


def forward_fn(x, y, p):
    losses = ops.stack([loss_fn(net(arm(x)), y) for arm in ARMS])
    return (losses * p).sum(), losses


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)
policy: Policy = GradientBandit(len(ARMS))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        (_, losses), grads = grad_fn(x, y, Tensor(policy.probabilities().astype(np.float32)))
        optimizer(grads)
        policy.feedback(losses.asnumpy())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
