# truth: exact
# class: random
# the train cell clips by a running norm that is a Parameter, in GRAPH mode

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train import Model

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)


def create_dataset(seed, batch_size=8):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(64, 8)).astype(np.float32)
    y = np.sin(x[:, :2].sum(axis=1, keepdims=True)).astype(np.float32)
    return ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(batch_size)


ds.config.set_seed(4)
data = create_dataset(9)


class ClippedTrainCell(nn.Cell):
    def __init__(self, network, optimizer, ratio=0.8, beta=0.9):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer = network, optimizer
        self.ratio, self.beta = ratio, beta
        self.norm = Parameter(Tensor(1.0, ms.float32), name="clip.norm", requires_grad=False)
        self.grad_fn = ms.value_and_grad(network, None, optimizer.parameters)

    def construct(self, x, y):
        loss, grads = self.grad_fn(x, y)
        total = Tensor(0.0, ms.float32)
        for g in grads:
            total = total + (g * g).sum()
        norm = ops.sqrt(total)
        factor = ops.minimum(self.ratio * self.norm / (norm + 1e-6), Tensor(1.0, ms.float32))
        clipped = ()
        for g in grads:
            clipped = clipped + (g * factor,)
        self.optimizer(clipped)
        ops.assign(self.norm, self.beta * self.norm + (1.0 - self.beta) * norm)
        return loss


backbone = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
network = nn.WithLossCell(backbone, nn.MSELoss())
cell = ClippedTrainCell(network, nn.Momentum(network.trainable_params(), 0.05, 0.9))
ck.CheckpointCallback(ROOT, **SAVE).train(Model(cell), 3, data)
os._exit(0)
