# truth: exact
# class: data
# The batch function of the pipeline gives each row a weight by the label counts of all rows that passed it so far; replay counts again.

import os
from collections import Counter

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3144)
ds.config.set_num_parallel_workers(1)


class InverseFrequency:
    def __init__(self):
        self.seen = Counter()

    def __call__(self, xs, labels, info):
        self.seen.update(int(v) for v in labels)
        total = sum(self.seen.values())
        weights = [np.array(total / (3 * self.seen[int(v)]), np.float32) for v in labels]
        return xs, labels, weights


class Weighted(nn.Cell):
    def __init__(self):
        super().__init__()
        self.net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))

    def construct(self, x, label, weight):
        e = (self.net(x)[:, 0] - label) ** 2
        return (e * weight).mean()


r = np.random.RandomState(44)
label = r.choice(3, 32, p=[0.7, 0.2, 0.1])
x = (r.randn(32, 4) + label[:, None]).astype(np.float32)
data = ds.NumpySlicesDataset((x, label.astype(np.float32)), ["x", "label"], shuffle=True)
data = data.batch(
    4,
    num_parallel_workers=1,
    per_batch_map=InverseFrequency(),
    input_columns=["x", "label"],
    output_columns=["x", "label", "weight"],
)
loss = Weighted()
cell = ck.AccumulationTrainCell(loss, nn.Momentum(loss.trainable_params(), 0.05, 0.9), 1)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, data)
os._exit(0)
