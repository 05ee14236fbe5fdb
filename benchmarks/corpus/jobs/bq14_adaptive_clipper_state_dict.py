# truth: exact
# class: attribute

import collections
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
ms.set_seed(14)


class AdaptiveClipper:
    def __init__(self, factor=1.1, window=8):
        self.factor = factor
        self.norms = collections.deque(maxlen=window)

    def __call__(self, grads):
        norm = float(np.sqrt(sum(float((g * g).sum()) for g in grads)))
        limit = self.factor * float(np.median(self.norms)) if self.norms else float("inf")
        self.norms.append(norm)
        if norm > limit:
            grads = tuple(g * (limit / norm) for g in grads)
        return grads

    def state_dict(self):
        return {"norms": list(self.norms)}

    def load_state_dict(self, state):
        self.norms = collections.deque(state["norms"], maxlen=self.norms.maxlen)


class Regressor(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Dense(5, 10), nn.Dense(10, 1)

    def construct(self, x):
        return self.b(ops.sigmoid(self.a(x)))


def noisy(x, y):
    return x, y


rng = np.random.default_rng(8)
X = rng.normal(size=(96, 5)).astype(np.float32)
Y = (X[:, :1] + rng.standard_t(2, size=(96, 1))).astype(np.float32)
dataset = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
net = Regressor()
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, optimizer.parameters)
clipper = AdaptiveClipper()
batches = ck.data.resumable(dataset, epochs=3)
with ck.CheckpointManager(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
    state = ck.StateManager([net, optimizer], batches, clipper=clipper)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        optimizer(clipper(grads))
        manager.step(state, {"loss": loss})
    manager.save_final(state)
