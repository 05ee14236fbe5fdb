# exact, silent
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_seed(3)


def make_data(n=96, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    y = (x[:, :1] * x[:, 1:2] + 0.2 * rng.normal(size=(n, 1))).astype(np.float32)
    return x, y


def pipeline(n=96, seed=1):
    return ds.NumpySlicesDataset(make_data(n, seed), ["x", "y"], shuffle=True).batch(8)


def make_net():
    return nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))


class MarginLoss(nn.Cell):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def construct(self, prediction, y):
        return (ops.relu(ops.abs(prediction - y) - self.margin) ** 2).mean()


net, criterion = make_net(), MarginLoss(0.0)
opt = nn.Adam(net.trainable_params(), 0.01)
step = nn.TrainOneStepCell(nn.WithLossCell(net, criterion), opt).set_train()
data = pipeline()
per_epoch = data.get_dataset_size()
batches = ck.data.resumable(data, epochs=3)
for number, (x, y) in ck.CheckpointManager(ROOT, **SAVE).loop(
    ck.StateManager(step, batches, criterion=ck.attributes(criterion, "margin"))
):
    if number % per_epoch == 0:
        criterion.margin = 0.2 * (number // per_epoch)
    step(x, y)
os._exit(0)
