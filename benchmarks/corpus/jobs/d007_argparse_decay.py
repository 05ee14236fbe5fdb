# truth: differs
# class: attribute
# args.lr, an attribute of the parsed command line, is decayed in place at each step and assigned to the optimizer

import argparse
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))


def get_args():
    parser = argparse.ArgumentParser("MindSpore regression")
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--lr_decay", type=float, default=0.93)
    parser.add_argument("--min_lr", type=float, default=1e-4)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output", default=ROOT)
    return parser.parse_args([])


def adjust_learning_rate(args, optimizer):
    args.lr = max(args.lr * args.lr_decay, args.min_lr)
    ops.assign(optimizer.learning_rate, Tensor(args.lr, ms.float32))


class MLP(nn.Cell):
    def __init__(self, dim=8, hidden=12, out=1):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.fc2 = nn.Dense(hidden, out)

    def construct(self, x):
        return self.fc2(ops.tanh(self.fc1(x)))


def main(args):
    net = MLP()
    criterion = nn.MSELoss()
    optimizer = nn.Momentum(net.trainable_params(), args.lr, args.momentum)
    grad_fn = ms.value_and_grad(lambda x, y: criterion(net(x), y), None, optimizer.parameters)
    batches = ck.data.resumable(rows, epochs=args.epochs)
    with ck.CheckpointManager(args.output, **SAVE) as manager:
        state = ck.StateManager([net, optimizer], batches)
        manager.restore(state)
        for x, y in batches:
            loss, grads = grad_fn(x, y)
            optimizer(grads)
            adjust_learning_rate(args, optimizer)
            manager.step(state)
        manager.save_final(state)


if __name__ == "__main__":
    main(get_args())
    os._exit(0)
