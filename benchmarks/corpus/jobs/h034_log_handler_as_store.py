# truth: differs
# class: attribute
# A logging.Handler collects the logged losses; the trainer asks the handler for the trend (np.polyfit) and weighs the batch by it.

import logging
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(82)
log = logging.getLogger("train")
log.setLevel(logging.INFO)
log.propagate = False


class TrendHandler(logging.Handler):
    def __init__(self, window):
        super().__init__(logging.INFO)
        self.window = window
        self.records = []

    def emit(self, record):
        if record.msg.startswith("loss"):
            self.records.append(record.args[0])

    def slope(self):
        recent = self.records[-self.window :]
        if len(recent) < 3:
            return 0.0
        return float(np.polyfit(np.arange(len(recent)), recent, 1)[0])


class Weighted(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, y, weight):
        return weight * ((self.net(x) - y) ** 2).mean()


r = np.random.RandomState(62)
rows = []
for k in range(8):
    x = r.randn(6, 7).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * (k + 1) / 4).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(7, 7), nn.ReLU(), nn.Dense(7, 1))
cell = ck.AccumulationTrainCell(Weighted(net), nn.SGD(net.trainable_params(), 0.05, momentum=0.9), 1).set_train()
trend = TrendHandler(window=10)
log.addHandler(trend)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        weight = float(np.clip(1.0 - trend.slope(), 0.5, 1.5))
        loss = float(cell(x, y, ms.Tensor(weight, ms.float32)).asnumpy())
        log.info("loss %.5f", loss)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
