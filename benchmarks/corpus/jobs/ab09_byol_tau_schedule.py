# truth: differs
# class: attribute

import os
import math
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(21)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (np.abs(X).argmax(1) % 4).astype(np.int32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]

online = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 4))
target = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 4))
online.update_parameters_name("online.")
target.update_parameters_name("target.")
opt = nn.Momentum(online.trainable_params(), 0.02, 0.9)


class MomentumUpdater:
    def __init__(self, online, target, base, total):
        self.pairs = list(zip(target.get_parameters(), online.get_parameters()))
        self.base, self.total, self.k = base, total, 0

    @property
    def tau(self):
        return 1 - (1 - self.base) * (math.cos(math.pi * self.k / self.total) + 1) / 2

    def update(self):
        tau = self.tau
        for t, o in self.pairs:
            ops.assign(t, tau * t + (1 - tau) * o)
        self.k += 1


updater = MomentumUpdater(online, target, 0.8, 30)
grad_fn = ms.value_and_grad(lambda a, b: ((online(a) - b) ** 2).sum(-1).mean(), None, opt.parameters)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([online, target, opt], batches)
    manager.restore(state)
    for x, _ in batches:
        _, grads = grad_fn(x, ops.stop_gradient(target(x + 0.1)))
        opt(grads)
        updater.update()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
