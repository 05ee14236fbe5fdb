# truth: exact, may be named
# class: callback
# The callback holds the dataset and asks it for the number of batches; a triangular rate follows from that and the step, K = 3.

import os
from collections import deque

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3117)


class TriangularRate(Callback):
    def __init__(self, dataset, cell, low, high):
        super().__init__()
        self.dataset, self.cell = dataset, cell
        self.low, self.high = low, high
        self.recent = deque(maxlen=4)  # for the report only

    def on_train_step_begin(self, run_context):
        size = self.dataset.get_dataset_size()
        within = (run_context.original_args().cur_step_num - 1) % size
        height = 1 - abs(2 * within / (size - 1) - 1)
        rate = self.low + (self.high - self.low) * height
        ops.assign(self.cell.optimizer.learning_rate, ms.Tensor(rate, ms.float32))

    def on_train_step_end(self, run_context):
        self.recent.append(run_context.original_args().net_outputs)

    def on_train_epoch_end(self, run_context):
        losses = [float(t.asnumpy()) for t in self.recent]
        print(f"updates {self.cell.counters.updates}: last losses {losses}")


r = np.random.RandomState(17)
x = r.randn(40, 6).astype(np.float32)
y = np.abs(x[:, :1])
dataset = ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(5)
net = nn.SequentialCell(nn.Dense(6, 9), nn.ReLU(), nn.Dense(9, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.01, 0.9), 3, clip_norm=2.0
)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, dataset, callbacks=[TriangularRate(dataset, cell, 0.005, 0.08)])
os._exit(0)
