# truth: differs
# class: callback
# A Compose callback holds a list of dataclass callbacks; each gets its predecessor as `source`, and the last one acts on what the first has counted.

import os
from dataclasses import dataclass, field

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4129)


class Compose(Callback):
    def __init__(self, *parts):
        super().__init__()
        self.parts = list(parts)
        for part, before in zip(self.parts[1:], self.parts):
            part.source = before

    def on_train_step_end(self, run_context):
        for part in self.parts:
            part.on_train_step_end(run_context)


@dataclass
class Samples(Callback):
    """rows seen, weighted by how hard they were"""

    rows: float = 0.0

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        self.rows += 6 * float(cb.net_outputs.asnumpy())


@dataclass
class Throughput(Callback):
    source: Samples = None
    lines: list = field(default_factory=list)

    @property
    def value(self):
        return self.source.rows

    def on_train_step_end(self, run_context):
        self.lines.append(f"{self.value:.1f} hard rows")


@dataclass
class Temper(Callback):
    parameter: ms.Parameter
    source: Throughput = None

    def on_train_step_end(self, run_context):
        ops.assign(self.parameter, ms.Tensor([1 / (1 + self.source.value / 50)], ms.float32))


class Tempered(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
        self.temperature = ms.Parameter(np.ones(1, np.float32), name="temperature", requires_grad=False)

    def construct(self, x):
        return self.body(x * self.temperature)


r = np.random.RandomState(29)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] - x[:, 1:2] * x[:, 4:]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = Tempered()
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.02, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Compose(Samples(), Throughput(), Temper(net.temperature))])
os._exit(0)
