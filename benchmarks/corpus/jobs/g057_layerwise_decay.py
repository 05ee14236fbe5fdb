# truth: exact
# class: attribute
# Layer-wise learning-rate decay with warm-up and cosine as LearningRateSchedule cells per group; Model.train in GRAPH mode, Keras-like builder.

import os
from functools import reduce

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.nn.learning_rate_schedule import LearningRateSchedule

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(38)

UNITS = [12, 10, 8]
TOTAL_STEPS = 24


class WarmupCosine(LearningRateSchedule):
    def __init__(self, peak, warmup, total):
        super().__init__()
        self.peak, self.warmup_steps = peak, float(warmup)
        self.warmup = nn.WarmUpLR(peak, warmup)
        self.cosine = nn.CosineDecayLR(peak * 0.05, peak, total)

    def construct(self, global_step):
        is_warm = (global_step.astype(ms.float32) < self.warmup_steps).astype(ms.float32)
        return is_warm * self.warmup(global_step) + (1 - is_warm) * self.cosine(global_step)


def build(units, inputs, classes):
    """Sequential([Dense(12), Dense(10), Dense(8), Dense(classes)])"""

    def add(acc, n):
        layers, previous = acc
        return layers + [nn.Dense(previous, n), nn.ReLU()], n

    layers, last = reduce(add, units, ([], inputs))
    return nn.SequentialCell(*layers, nn.Dense(last, classes))


def layerwise_groups(net, peak, decay=0.6):
    by_depth = {}
    for p in net.trainable_params():
        by_depth.setdefault(int(p.name.split(".")[0]) // 2, []).append(p)
    deepest = max(by_depth)
    return [
        {"params": group, "lr": WarmupCosine(peak * decay ** (deepest - depth), 5, TOTAL_STEPS)}
        for depth, group in sorted(by_depth.items())
    ]


def load(n=64):
    x = np.random.default_rng(0).normal(size=(n, 6)).astype(np.float32)
    y = (np.sin(3 * x[:, 0]) > x[:, 1]).astype(np.int32)
    return ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8, drop_remainder=True)


net = build(UNITS, 6, 2)
opt = nn.Momentum(layerwise_groups(net, 0.1), learning_rate=0.1, momentum=0.9, weight_decay=1e-4)
model = ms.Model(net, loss_fn=nn.CrossEntropyLoss(), optimizer=opt)
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    keep=ck.KeepLatest(2) | ck.KeepEvery(optimizer_steps=10),
    saving=ck.Saving(when_busy="wait"),
)
ckpt.train(model, 3, load())
os._exit(0)
