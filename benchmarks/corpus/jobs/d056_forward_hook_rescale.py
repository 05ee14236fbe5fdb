# truth: differs
# class: variable
# a forward hook divides the hidden activations by a running norm that it keeps in a closure

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
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


def running_rescale(momentum, eps=1e-3):
    norm = 1.0

    def hook(cell, inputs, output):
        nonlocal norm
        if cell.training:
            size = float(np.sqrt((output.asnumpy() ** 2).mean()))
            norm = momentum * norm + (1 - momentum) * size
        return output / (norm + eps)

    return hook


def attach(network, kind, make_hook):
    return [cell.register_forward_hook(make_hook()) for _, cell in network.cells_and_names() if isinstance(cell, kind)]


net = nn.SequentialCell(nn.Dense(8, 16), nn.Tanh(), nn.Dense(16, 1))
handles = attach(net, nn.Tanh, lambda: running_rescale(0.9))
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.02, 0.9))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
for handle in handles:
    handle.remove()
os._exit(0)
