# truth: exact
# class: attribute
# The most ordinary job: Model.train in GRAPH mode with a cosine list of rates, LossMonitor and TimeMonitor.

import hashlib
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import LossMonitor, TimeMonitor

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(47)


def make_data(batch_size=8):
    r = np.random.RandomState(37)
    labels = r.randint(0, 4, 80).astype(np.int32)
    x = (r.randn(80, 8) + np.eye(4)[labels].repeat(2, 1)).astype(np.float32)
    data = ds.NumpySlicesDataset((x, labels), ["x", "label"], shuffle=True)
    return data.batch(batch_size, drop_remainder=True)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Dense(16, 4)

    def construct(self, x):
        return self.head(self.body(x))


data = make_data()
net = Net()
rates = nn.cosine_decay_lr(1e-4, 1e-2, 40, data.get_dataset_size(), 4)
opt = nn.AdamWeightDecay(net.trainable_params(), rates, weight_decay=0.01)
model = ms.Model(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), opt)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, data, callbacks=[LossMonitor(10), TimeMonitor()], dataset_sink_mode=False)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
