# truth: exact
# class: attribute
# K grows by a schedule, a dynamic loss scaler watches overflows, BatchNorm keeps statistics; Model.train in GRAPH mode.

import os

import mindspore as ms
import mindspore.dataset as ds
import mindspore.dataset.transforms as T
import numpy as np
from mindspore import amp, nn
from mindspore.train import LossMonitor

import ckptkit as ck

ms.set_seed(88)
ms.set_context(mode=ms.GRAPH_MODE)


def make_dataset(n=60, bs=6):
    r = np.random.RandomState(88)
    image = (r.rand(n, 1, 6, 6) * 255).astype(np.uint8)
    label = (image.reshape(n, -1).mean(1) > 127).astype(np.int32)
    data = ds.NumpySlicesDataset((image, label), ["image", "label"], shuffle=True)
    data = data.map(T.TypeCast(ms.float32), input_columns="image")
    return data.batch(bs, drop_remainder=True)


class BNNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.block = nn.SequentialCell(
            nn.Conv2d(1, 4, 3, stride=2, pad_mode="same"),
            nn.BatchNorm2d(4),
            nn.ReLU(),
        )
        self.flatten = nn.Flatten()
        self.head = nn.Dense(36, 2)

    def construct(self, image):
        return self.head(self.flatten(self.block(image / 255.0)))


net = BNNet()
loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
lr = nn.CosineDecayLR(1e-4, 0.02, 20)
opt = nn.AdamWeightDecay(net.trainable_params(), lr, weight_decay=0.01)
cell = ck.AccumulationTrainCell(
    loss,
    opt,
    accumulation_steps={0: 1, 4: 2, 9: 3},
    clip_norm=1.0,
    loss_scaler=amp.DynamicLossScaler(2.0**12, 2, 3),
)
callback = ck.CheckpointCallback(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
)
callback.train(ms.Model(cell), 3, make_dataset(), callbacks=[LossMonitor(10)])
os._exit(0)
