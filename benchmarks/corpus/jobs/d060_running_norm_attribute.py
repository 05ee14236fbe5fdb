# truth: differs
# class: attribute
# the running mean is a plain tensor attribute that construct replaces, through a method of the base class

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
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


class Tracked(nn.Cell):
    """Keeps exponential averages of tensors in attributes."""

    def __init__(self, momentum):
        super().__init__()
        self.momentum = momentum

    def track(self, name, value):
        old = getattr(self, f"running_{name}", None)
        new = value if old is None else self.momentum * old + (1 - self.momentum) * value
        setattr(self, f"running_{name}", ops.stop_gradient(new))
        return getattr(self, f"running_{name}")


class CenteredDense(Tracked):
    def __init__(self, n_in, n_out, momentum=0.9):
        super().__init__(momentum)
        self.dense = nn.Dense(n_in, n_out)

    def construct(self, x):
        h = self.dense(x)
        center = self.track("center", h.mean(0))
        scale = self.track("scale", ops.abs(h - center).mean(0))
        return (h - center) / (scale + 0.1)


net = nn.SequentialCell(CenteredDense(8, 10), nn.ReLU(), nn.Dense(10, 1))
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.01, 0.9))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
