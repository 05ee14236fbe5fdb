# truth: exact, may be named
# class: callback
# BatchNorm's statistics are parameters; the callback's averages of them are printed only

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback, Model

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


class Block(nn.Cell):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.dense, self.norm = nn.Dense(n_in, n_out), nn.BatchNorm1d(n_out, momentum=0.8)

    def construct(self, x):
        return ops.relu(self.norm(self.dense(x)))


class StatisticsMonitor(Callback):
    def __init__(self, network):
        super().__init__()
        self.norms = [c for _, c in network.cells_and_names() if isinstance(c, nn.BatchNorm1d)]
        self.average = np.zeros(len(self.norms))

    def on_train_step_end(self, run_context):
        now = np.array([float(n.moving_variance.asnumpy().mean()) for n in self.norms])
        self.average = 0.9 * self.average + 0.1 * now

    def on_train_epoch_end(self, run_context):
        print("variance per block", self.average.round(3))


net = nn.SequentialCell(Block(8, 12), Block(12, 12), nn.Dense(12, 1))
model = Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[StatisticsMonitor(net)])
os._exit(0)
