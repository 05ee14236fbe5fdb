# truth: differs
# class: attribute
# Augmentations are an Enum; a Counter on the class says how well each did, and the best-scored one comes next.

import os
from collections import Counter
from enum import Enum

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(15)


class Op(Enum):
    IDENTITY = "identity"
    FLIP = "flip"
    SCALE = "scale"
    SHIFT = "shift"

    def __call__(self, x):
        match self:
            case Op.IDENTITY:
                return x
            case Op.FLIP:
                return x[:, ::-1].copy()
            case Op.SCALE:
                return x * np.float32(1.3)
            case Op.SHIFT:
                return np.roll(x, 1, axis=1)


class Policy:
    tried = Counter()
    score = Counter()

    @classmethod
    def choose(cls):
        total = sum(cls.tried.values()) + 1

        def ucb(op):
            n = cls.tried[op.name]
            return float("inf") if n == 0 else cls.score[op.name] / n + np.sqrt(np.log(total) / n)

        return max(Op, key=ucb)

    @classmethod
    def reward(cls, op, value):
        cls.tried[op.name] += 1
        cls.score[op.name] += value


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, has_bias=True)
        self.fc = nn.Dense(32, 1)

    def construct(self, x, y):
        h = self.conv(x.expand_dims(1)).tanh()
        return ((self.fc(h.reshape(x.shape[0], -1)) - y) ** 2).mean()


net = Net()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.01), 1).set_train()
r = np.random.RandomState(2)
data = [(x, x[:, 2:3] * 2) for x in r.randn(9, 4, 8).astype(np.float32)]
batches = ck.data.resumable(data, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        op = Policy.choose()
        loss = cell(ms.Tensor(op(x)), ms.Tensor(y))
        Policy.reward(op, float(loss.asnumpy()))  # hard ones are good
        manager.step(state)
    manager.save_final(state)
os._exit(0)
