# truth: exact
# class: attribute
# Layer-wise decayed learning rates with a warm-up per layer; K = 3, clipped.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.nn.learning_rate_schedule import LearningRateSchedule

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(141)


class WarmLinear(LearningRateSchedule):
    def __init__(self, rate, warmup, total):
        super().__init__()
        self.warm = nn.WarmUpLR(rate, warmup)
        self.decay = nn.PolynomialDecayLR(rate, rate / 10, total, 1.0)

    def construct(self, global_step):
        step = global_step.astype(ms.float32)
        return ms.ops.minimum(self.warm(step), self.decay(step))


class Backbone(nn.Cell):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.SequentialCell([nn.SequentialCell(nn.Dense(width, width), nn.Tanh()) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm((width,)), nn.Dense(width, 3)

    def construct(self, x):
        return self.head(self.norm(self.blocks(x)))


def parameter_groups(net, depth, rate, factor):
    groups = [{"params": net.head.trainable_params() + net.norm.trainable_params(), "lr": WarmLinear(rate, 3, 20)}]
    for i in range(depth):
        layer = WarmLinear(rate * factor ** (depth - i), 3, 20)
        groups.append({"params": net.blocks[i].trainable_params(), "lr": layer})
    return groups


def main():
    r = np.random.RandomState(43)
    labels = r.randint(0, 3, 90).astype(np.int32)
    x = (r.randn(90, 8) + np.eye(3)[labels].repeat(3, 1)[:, :8]).astype(np.float32)
    train = ds.NumpySlicesDataset((x, labels), ["x", "label"], shuffle=True).batch(6)
    net = Backbone(8, 3)
    loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    optimizer = nn.Adam(parameter_groups(net, 3, 0.02, 0.7))
    cell = ck.AccumulationTrainCell(loss, optimizer, 3, clip_norm=0.5)
    ms.Model(cell).train(4, train)
    return net


ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
with ckpt.attach():
    net = main()
os._exit(0)
