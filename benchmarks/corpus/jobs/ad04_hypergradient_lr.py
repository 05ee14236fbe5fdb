# truth: differs
# class: attribute

import os
import contextlib, time
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


class HyperSGD:
    def __init__(self, params, lr=0.02, beta=1e-4):
        self.params, self.lr, self.beta = params, lr, beta
        self.last = None

    def apply(self, grads):
        if self.last is not None:
            self.lr += self.beta * float(sum((a * b).sum() for a, b in zip(grads, self.last)))
        for p, g in zip(self.params, grads):
            ops.assign(p, p - self.lr * g)
        self.last = grads


hyper = HyperSGD(net.trainable_params())
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())


@contextlib.contextmanager
def timed(label):
    begin = time.perf_counter()
    yield
    print(f"{label}: {1000 * (time.perf_counter() - begin):.1f} ms")


batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for x, y in batches:
        with timed("step"):
            loss, grads = grad_fn(x, y)
            hyper.apply(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
