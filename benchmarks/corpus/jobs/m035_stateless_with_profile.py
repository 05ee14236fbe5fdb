# truth: exact
# class: data
# The map of a pipeline is wrapped in an object that counts calls and adds up seconds for a profile; it is declared stateless, and what it returns is.

import os
import time

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4335)


class Profiled:
    def __init__(self, function):
        self.function = function
        self.calls, self.seconds, self.longest = 0, 0.0, 0.0

    def __call__(self, row):
        begun = time.perf_counter()
        result = self.function(row)
        took = time.perf_counter() - begun
        self.calls += 1
        self.seconds += took
        self.longest = max(self.longest, took)
        return result


class PrintProfile(Callback):
    def __init__(self, *profiled):
        super().__init__()
        self.profiled = profiled

    def on_train_epoch_end(self, run_context):
        for it in self.profiled:
            print(f"{it.function.__name__}: {it.calls} calls, {it.seconds:.4f} s, at most {it.longest:.6f} s")


def spectrum(row):
    return np.abs(np.fft.rfft(row)).astype(np.float32)


r = np.random.RandomState(35)
t = np.arange(12) / 12
pitch = r.randint(1, 5, 48)
x = (np.sin(2 * np.pi * t * pitch[:, None] + r.rand(48, 1)) + 0.2 * r.randn(48, 12)).astype(np.float32)
y = (pitch[:, None] / 4).astype(np.float32)
profiled = Profiled(spectrum)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True)
train = train.map(profiled, input_columns=["x"], num_parallel_workers=1).batch(6)
net = nn.SequentialCell(nn.Dense(7, 8), nn.ReLU(), nn.Dense(8, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.02), accumulation_steps=3)
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    training=ck.Training(augmentation="stateless"),
)
ckpt.train(ms.Model(cell), 3, train, callbacks=[PrintProfile(profiled)])
os._exit(0)
