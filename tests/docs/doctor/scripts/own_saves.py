"""Nothing is wrong with it; its arguments are its ``mid_cycle`` and mirrors, and it saves in the middle of cycles."""

import sys

import mindspore as ms
from mindspore.train import Model
from tiny import Net, data, optimizer_of

import ckptkit as ck

ms.set_seed(2)
net = Net()
model = Model(ck.AccumulationTrainCell(net, optimizer_of(net), accumulation_steps=3))
saving = ck.Saving(mid_cycle=sys.argv[1])
ckpt = ck.CheckpointCallback(
    "runs/mine", mirror=sys.argv[2:], save=ck.SaveEvery(micro_steps=5), keep=ck.KeepLatest(2), saving=saving
)
ckpt.train(model, 5, data().batch(4))
