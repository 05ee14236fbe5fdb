# truth: exact
# class: random
# Learned step size quantization of weights with a straight-through rounding; step sizes are Parameters; GRAPH mode, K = 2, Model.train.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train import LossMonitor, TimeMonitor

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(70)


class LSQDense(nn.Cell):
    def __init__(self, inputs, outputs, bits, seed):
        super().__init__()
        w = np.random.RandomState(seed).randn(outputs, inputs).astype(np.float32) / np.sqrt(inputs)
        self.qmax = float(2 ** (bits - 1) - 1)
        step = 2 * np.abs(w).mean() / np.sqrt(self.qmax)
        self.weight = Parameter(Tensor(w.astype(np.float32)), name="weight")
        self.bias = Parameter(Tensor(np.zeros(outputs, np.float32)), name="bias")
        self.step = Parameter(Tensor(np.full((1,), step, np.float32)), name="step")

    def construct(self, x):
        scaled = ops.clip_by_value(self.weight / self.step, -self.qmax, self.qmax)
        rounded = scaled + ops.stop_gradient(ops.round(scaled) - scaled)
        return ops.matmul(x, ops.transpose(rounded * self.step, (1, 0))) + self.bias


class QuantizedNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layer1 = LSQDense(8, 10, bits=4, seed=0)
        self.layer2 = LSQDense(10, 2, bits=4, seed=1)
        self.relu = nn.ReLU()

    def construct(self, x):
        return self.layer2(self.relu(self.layer1(x)))


def data():
    rng = np.random.default_rng(33)
    x = rng.normal(size=(60, 8)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > x[:, 2]).astype(np.int32)
    return ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(6)


config = {"lr": 0.02, "epochs": 3, "accumulate": 2}
net = QuantizedNet()
steps = [p for p in net.trainable_params() if p.name.endswith("step")]
others = [p for p in net.trainable_params() if not p.name.endswith("step")]
groups = [{"params": others}, {"params": steps, "lr": config["lr"] / 10}]
optimizer = nn.Adam(groups, learning_rate=config["lr"])
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.CrossEntropyLoss()), optimizer, config["accumulate"])
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), config["epochs"], data(), callbacks=[LossMonitor(5), TimeMonitor()])
os._exit(0)
