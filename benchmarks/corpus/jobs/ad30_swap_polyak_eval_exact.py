# truth: exact
# class: attribute

import os
import contextlib
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


class Polyak(nn.Cell):
    def __init__(self, params, decay):
        super().__init__()
        self.live, self.decay = list(params), decay
        self.shadow = ms.ParameterTuple(
            [Parameter(p.value().copy(), name="shadow." + p.name, requires_grad=False) for p in params]
        )

    def update(self):
        for s, p in zip(self.shadow, self.live):
            ops.assign(s, self.decay * s + (1 - self.decay) * p)

    @contextlib.contextmanager
    def swapped(self):
        backup = [p.value().copy() for p in self.live]
        for s, p in zip(self.shadow, self.live):
            ops.assign(p, s)
        try:
            yield
        finally:
            for b, p in zip(backup, self.live):
                ops.assign(p, b)


polyak = Polyak(net.trainable_params(), 0.9)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt, polyak], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        loss, grads = grad_fn(x, y)
        opt(grads)
        polyak.update()
        if step % 10 == 9:
            with polyak.swapped():
                print("averaged", float(loss_fn(net(Tensor(X)), Tensor(Y))))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
