# truth: differs
# class: attribute
# the train cell clips by a running norm in a small helper object with plain numbers

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Model

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def create_dataset(seed, batch_size=8):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(64, 8)).astype(np.float32)
    y = np.sin(x[:, :2].sum(axis=1, keepdims=True)).astype(np.float32)
    return ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(batch_size)


ds.config.set_seed(4)
data = create_dataset(9)


class RunningClip:
    def __init__(self, ratio, beta=0.9):
        self.ratio, self.beta, self.norm = ratio, beta, None

    def __call__(self, grads):
        norm = float(np.sqrt(sum(float((g.asnumpy() ** 2).sum()) for g in grads)))
        limit = self.ratio * (norm if self.norm is None else self.norm)
        self.norm = norm if self.norm is None else self.beta * self.norm + (1 - self.beta) * norm
        return tuple(g * min(1.0, limit / (norm + 1e-12)) for g in grads)


class ClippedTrainCell(nn.Cell):
    def __init__(self, network, optimizer, transform):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer = network, optimizer
        self.transform = transform
        self.grad_fn = ms.value_and_grad(network, None, optimizer.parameters)

    def construct(self, *inputs):
        loss, grads = self.grad_fn(*inputs)
        self.optimizer(self.transform(grads))
        return loss


backbone = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
network = nn.WithLossCell(backbone, nn.MSELoss())
cell = ClippedTrainCell(network, nn.Momentum(network.trainable_params(), 0.05, 0.9), RunningClip(0.7))
ck.CheckpointCallback(ROOT, **SAVE).train(Model(cell), 3, data)
os._exit(0)
