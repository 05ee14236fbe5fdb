# truth: differs
# class: attribute
# Deep compression: at the start of each epoch a callback clusters the weights and pulls them to these centroids until the next epoch.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback, LossMonitor, Model

import ckptkit as ck

ms.set_seed(63)


def kmeans_1d(values, k=4, rounds=5):
    centroids = np.quantile(values, np.linspace(0.1, 0.9, k))
    for _ in range(rounds):
        labels = np.abs(values[:, None] - centroids[None, :]).argmin(1)
        for j in range(k):
            if (labels == j).any():
                centroids[j] = values[labels == j].mean()
    return centroids[labels]


class ClusterCallback(Callback):
    def __init__(self, network, strength=0.1):
        super().__init__()
        self.network = network
        self.strength = strength
        self.targets = {}

    def on_train_epoch_begin(self, run_context):
        for p in self.network.trainable_params():
            if p.name.endswith("weight"):
                w = p.asnumpy()
                self.targets[p.name] = kmeans_1d(w.ravel().astype(np.float64)).reshape(w.shape).astype(np.float32)

    def on_train_step_end(self, run_context):
        for p in self.network.trainable_params():
            target = self.targets.get(p.name)
            if target is not None:
                w = p.asnumpy()
                ops.assign(p, ms.Tensor(w + np.float32(self.strength) * (target - w)))


rng = np.random.RandomState(4)
x = rng.randn(64, 10).astype(np.float32)
y = (x[:, :2].sum(1) > x[:, 2]).astype(np.int32)
train_set = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)

network = nn.SequentialCell(nn.Dense(10, 8), nn.ReLU(), nn.Dense(8, 2))
model = Model(network, nn.CrossEntropyLoss(), nn.Adam(network.trainable_params(), learning_rate=0.01))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train_set, callbacks=[LossMonitor(8), ClusterCallback(network)])
os._exit(0)
