"""Its nn.Dropout draws inside a kernel."""

import mindspore as ms
from mindspore import nn
from mindspore.train import Model
from tiny import Net, data, optimizer_of

import ckptkit as ck

ms.set_seed(5)
net = Net(drop=nn.Dropout(p=0.5))
cell = ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=3)
cell.set_train()
ck.CheckpointCallback("runs/mine").train(Model(cell), 5, data().batch(4))
