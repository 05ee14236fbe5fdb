# truth: exact
# class: random
# a list of rates (the optimizer counts its steps in a parameter) and ckptkit's dropout, in GRAPH mode

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
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


def build_network(hidden, depth, p):
    layers, width = [], 8
    for i in range(depth):
        layers += [nn.Dense(width, hidden), nn.ReLU(), ck.nn.Dropout(p=p, seed=i)]
        width = hidden
    return nn.SequentialCell(*layers, nn.Dense(width, 1))


def build_optimizer(network, epochs, per_epoch):
    rates = nn.cosine_decay_lr(1e-4, 0.05, epochs * per_epoch, per_epoch, epochs)
    decayed = [p for p in network.trainable_params() if p.name.endswith("weight")]
    others = [p for p in network.trainable_params() if not p.name.endswith("weight")]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others}]
    return nn.Momentum(groups, rates, 0.9)


net = build_network(12, 2, 0.2)
model = Model(net, nn.MSELoss(), build_optimizer(net, 3, data.get_dataset_size()))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
