"""Nothing is wrong with it: trained for one epoch, and then on to five, under one root."""

from mindspore.train import Model
from tiny import Net, data, optimizer_of

import ckptkit as ck

net = Net()
model = Model(ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=3))
for epochs in (1, 5):
    ck.CheckpointCallback("runs/mine").train(model, epochs, data().batch(4))
