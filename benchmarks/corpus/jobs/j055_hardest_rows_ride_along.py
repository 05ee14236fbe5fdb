# truth: differs
# class: iterator
# On-line mining: the two hardest rows of a batch ride along in the next one, where they compete again.

import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3155)

net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)


def forward(x, y):
    errors = (net(x) - y) ** 2
    return errors.mean(), errors


step = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)

r = np.random.RandomState(55)
rows = [(a, (a[:, :1] * a[:, 1:2] * 2).astype(np.float32)) for a in r.randn(8, 5, 4).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=3)


def with_passengers(source, seats=2):
    x_kept = y_kept = None
    for x, y in source:
        if x_kept is not None:
            x, y = np.concatenate([x, x_kept]), np.concatenate([y, y_kept])
        errors = yield x, y
        worst = np.argsort(errors, kind="stable")[-seats:]
        x_kept, y_kept = x[worst], y[worst]


with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    bus = with_passengers(batches)
    try:
        x, y = next(bus)
        while True:
            (loss, errors), grads = step(Tensor(x), Tensor(y))
            opt(grads)
            manager.step(state)
            x, y = bus.send(errors.asnumpy()[:, 0])
    except StopIteration:
        pass
    manager.save_final(state)
os._exit(0)
