# truth: differs
# class: attribute
# AutoClip (Seetharaman et al.): a decorator keeps all gradient norms sorted and clips at their 30th percentile.

import bisect
import functools
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(10)


def autoclip(percentile):
    def decorate(gradients):
        norms = []

        @functools.wraps(gradients)
        def wrapper(*batch):
            loss, grads = gradients(*batch)
            norm = float(np.sqrt(sum(float((g * g).sum()) for g in grads)))
            bisect.insort(norms, norm)
            limit = norms[int(len(norms) * percentile / 100)]
            factor = min(1.0, limit / (norm + 1e-8))
            return loss, tuple(g * factor for g in grads)

        return wrapper

    return decorate


lstm_in, hidden = 3, 6


class SeqRegressor(nn.Cell):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNNCell(lstm_in, hidden)
        self.read = nn.Dense(hidden, 1)

    def construct(self, seq):
        h = ops.zeros((seq.shape[0], hidden), ms.float32)
        for t in range(seq.shape[1]):
            h = self.rnn(seq[:, t], h)
        return self.read(h)


net = SeqRegressor()
params = net.trainable_params()
opt = nn.SGD(params, learning_rate=0.1)


@autoclip(30)
def gradients(x, y):
    return ms.value_and_grad(lambda a, b: ((net(a) - b) ** 2).mean(), None, params)(x, y)


g = np.random.default_rng(10)
loader = []
for scale in (0.5, 1, 2, 1, 0.3, 3, 1, 2):
    s = (scale * g.normal(size=(4, 4, lstm_in))).astype(np.float32)
    loader.append((ms.Tensor(s), ms.Tensor(s.sum(axis=(1, 2))[:, None])))
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
