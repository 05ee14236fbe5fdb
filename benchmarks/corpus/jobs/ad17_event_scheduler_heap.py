# truth: differs
# class: iterator

import os
import heapq, itertools
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)


def forward(x, y):
    return loss_fn(net(x), y)


grad_fn = ms.jit(ms.value_and_grad(forward, None, opt.parameters))


class Scheduler:
    def __init__(self):
        self.now, self.agenda, self.ids = 0, [], itertools.count()

    def at(self, when, action):
        heapq.heappush(self.agenda, (when, next(self.ids), action))

    def tick(self):
        self.now += 1
        while self.agenda and self.agenda[0][0] <= self.now:
            heapq.heappop(self.agenda)[2]()


settings = {"scale": 1.0}
schedule = Scheduler()
schedule.at(4, lambda: settings.update(scale=0.5))
schedule.at(12, lambda: settings.update(scale=2.0))
schedule.at(22, lambda: settings.update(scale=0.1))
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        schedule.tick()
        loss, grads = grad_fn(x, y)
        opt(tuple(g * settings["scale"] for g in grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
