# truth: differs
# class: attribute

import os
import copy, functools
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(11)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (X[:, :1] * 0.7 - X[:, 1:2] ** 2 + 0.1 * rng0.normal(size=(80, 1))).astype(np.float32)
loader = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
loss_fn = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)


class Every:
    """Calls the function only at every n-th call."""

    def __init__(self, n):
        self.n, self.calls = n, 0

    def __call__(self, fn):
        @functools.wraps(fn)
        def wrapper(*args):
            self.calls += 1
            if self.calls % self.n == 0:
                return fn(*args)

        return wrapper


anchor = copy.deepcopy(net)


@Every(6)
def refresh():
    for a, p in zip(anchor.get_parameters(), net.get_parameters()):
        ops.assign(a, p)


batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches, anchor=anchor)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        opt(tuple(g + 0.1 * (p - a) for g, p, a in zip(grads, net.trainable_params(), anchor.trainable_params())))
        refresh()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
