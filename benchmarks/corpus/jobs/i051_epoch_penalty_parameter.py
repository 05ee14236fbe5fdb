# truth: exact
# class: callback
# A callback sets the strength of a penalty, a Parameter of the loss cell, at the beginning of each epoch by the number of the epoch; GRAPH mode, K = 2.

import argparse
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train import Callback, LossMonitor, Model

import ckptkit as ck


def parse(argv=()):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--strengths", type=float, nargs="+", default=[0.0, 0.1, 0.4])
    parser.add_argument("--seed", type=int, default=351)
    return parser.parse_args(list(argv))


class PenalizedLoss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.mse = nn.MSELoss()
        self.strength = Parameter(Tensor(0.0, ms.float32), name="strength", requires_grad=False)

    def construct(self, x, y):
        out = self.net(x)
        return self.mse(out, y) + self.strength * ops.abs(out).mean()


class StrengthByEpoch(Callback):
    def __init__(self, loss, strengths):
        super().__init__()
        self.loss = loss
        self.strengths = tuple(strengths)

    def on_train_epoch_begin(self, run_context):
        epoch = run_context.original_args().cur_epoch_num - 1
        value = self.strengths[min(epoch, len(self.strengths) - 1)]
        ops.assign(self.loss.strength, Tensor(value, ms.float32))


def main(args):
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(args.seed)
    r = np.random.RandomState(51)
    x = r.randn(32, 4).astype(np.float32)
    y = (2 * x[:, :1] + x[:, 1:2] * x[:, 2:3]).astype(np.float32)
    dataset = ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(4)
    loss = PenalizedLoss(nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1)))
    cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), args.lr), 2)
    ckpt = ck.CheckpointCallback(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    )
    ckpt.train(Model(cell), args.epochs, dataset, callbacks=[StrengthByEpoch(loss, args.strengths), LossMonitor(4)])


main(parse())
os._exit(0)
