# truth: differs
# class: attribute
# the loss cell counts its calls in a plain attribute and ramps the smoothing with it

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.train import Model

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)

rng = np.random.default_rng(15)
labels = rng.integers(0, 3, 64)
feats = (rng.normal(size=(3, 8))[labels] + 0.5 * rng.normal(size=(64, 8))).astype(np.float32)
data = ds.NumpySlicesDataset((feats, labels.astype(np.int32)), ["feat", "label"], shuffle=False).batch(8)


class SmoothingRamp(nn.Cell):
    """Brier score against labels that become smoother."""

    def __init__(self, classes, final=0.3, ramp=20):
        super().__init__()
        self.classes, self.final, self.ramp = classes, final, ramp
        self.calls = 0

    @property
    def smoothing(self):
        return self.final * min(1.0, self.calls / self.ramp)

    def construct(self, logits, label):
        eps = self.smoothing
        self.calls = self.calls + 1
        target = ops.one_hot(label, self.classes, Tensor(1.0 - eps, ms.float32), Tensor(eps / 2, ms.float32))
        return ((ops.softmax(logits) - target) ** 2).sum(1).mean()


net = nn.SequentialCell(nn.Dense(8, 12), nn.ReLU(), nn.Dense(12, 3))
model = Model(net, SmoothingRamp(3), nn.Adam(net.trainable_params(), 0.01))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
