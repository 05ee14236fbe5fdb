# truth: exact, may be named
# class: file
# A logger writes step, loss and smoothed loss to a csv file in the working directory; what it keeps (smoothed loss, the open file, a row count) is for the file only.

import csv
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3542)


class CsvLogger(Callback):
    def __init__(self, path, beta=0.9):
        super().__init__()
        self.path, self.beta = path, beta
        self.smooth, self.rows = None, 0
        self.file = self.writer = None

    def on_train_begin(self, run_context):
        new = not os.path.exists(self.path)
        self.file = open(self.path, "a", newline="")
        self.writer = csv.writer(self.file)
        if new:
            self.writer.writerow(["step", "loss", "smooth"])

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        self.smooth = loss if self.smooth is None else self.beta * self.smooth + (1 - self.beta) * loss
        self.writer.writerow([cb.cur_step_num, f"{loss:.6f}", f"{self.smooth:.6f}"])
        self.rows += 1

    def on_train_epoch_end(self, run_context):
        self.file.flush()

    def on_train_end(self, run_context):
        self.file.close()
        print(self.rows, "rows; smoothed loss", round(self.smooth, 4))


r = np.random.RandomState(42)
tokens = r.randint(1, 12, (60, 5)).astype(np.int32)
label = (tokens > 6).sum(1).astype(np.int32)
train = ds.NumpySlicesDataset((tokens, label), ["tokens", "label"], shuffle=True).batch(6)
net = nn.SequentialCell(
    nn.Embedding(12, 4), nn.Flatten(), nn.Dense(20, 12), nn.ReLU(), ck.nn.Dropout(0.2), nn.Dense(12, 6)
)
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, loss), nn.Adam(net.trainable_params(), 0.02), accumulation_steps=2)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 4, train, callbacks=[CsvLogger("losses.csv")])
os._exit(0)
