# truth: exact
# class: callback
# A callback keeps the last eight losses in a deque and takes the rate from their median against the newest; deque and count are in its state_dict, and it is given by name. GRAPH mode.

import os
from collections import deque

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback, TimeMonitor

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3549)


class MedianRate(Callback):
    def __init__(self, base, window):
        super().__init__()
        self.base = base
        self.losses = deque(maxlen=window)
        self.outliers = 0

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        median = float(np.median(self.losses)) if self.losses else loss
        if loss > 2 * median:
            self.outliers += 1
        rate = self.base / (1 + 0.2 * self.outliers) * min(1.5, median / loss)
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(rate, ms.float32))
        self.losses.append(loss)

    def state_dict(self):
        return {"losses": list(self.losses), "outliers": self.outliers}

    def load_state_dict(self, state):
        self.losses.clear()
        self.losses.extend(state["losses"])
        self.outliers = state["outliers"]


r = np.random.RandomState(49)
x = r.randn(54, 4).astype(np.float32)
y = (x[:, :1] ** 2 + r.standard_t(2, (54, 1))).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 10), nn.ReLU(), nn.Dense(10, 1))
model = ms.Model(net, nn.HuberLoss(), nn.Momentum(net.trainable_params(), 0.03, 0.8))
rate = MedianRate(0.03, window=8)

ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    stateful={"rate": rate},
)
ckpt.train(model, 4, train, callbacks=[TimeMonitor(9), rate])
os._exit(0)
