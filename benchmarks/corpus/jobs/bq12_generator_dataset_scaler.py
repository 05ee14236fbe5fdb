# truth: exact
# class: data

import argparse
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import amp, nn

import ckptkit as ck

parser = argparse.ArgumentParser()
parser.add_argument("--root", default=os.environ["ROOT"])
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--accumulate", type=int, default=3)
args = parser.parse_args()
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(31)


class TableDataset:
    def __init__(self, n=80):
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(n, 7)).astype(np.float32)
        self.y = (self.x[:, :1] * self.x[:, 1:2]).astype(np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(7, 16), nn.GELU(), nn.LayerNorm((16,)), nn.Dense(16, 1))

    def construct(self, x):
        return self.layers(x)


dataset = ds.GeneratorDataset(TableDataset(), ["x", "y"], shuffle=True).batch(args.batch_size, drop_remainder=True)
network = nn.WithLossCell(Net(), nn.SmoothL1Loss())
schedule = nn.WarmUpLR(0.01, 5)
optimizer = nn.AdamWeightDecay(network.trainable_params(), schedule, weight_decay=0.01)
cell = ck.AccumulationTrainCell(
    network,
    optimizer,
    accumulation_steps=args.accumulate,
    clip_norm=1.0,
    loss_scaler=amp.DynamicLossScaler(2.0**12, 2, 4),
    remainder="flush",
)
model = ms.Model(cell)
ckpt = ck.CheckpointCallback(args.root, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, args.epochs, dataset, callbacks=[ms.LossMonitor(10), ms.TimeMonitor()])
