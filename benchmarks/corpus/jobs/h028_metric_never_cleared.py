# truth: differs
# class: attribute
# MindSpore's Accuracy metric runs over the whole training without clear(); its value decides how far labels are smoothed.

import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.train import Accuracy

import ckptkit as ck

ms.set_seed(76)
CLASSES = 3


class SmoothedLoss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, target):
        return -(target * ops.log_softmax(self.net(x), -1)).sum(-1).mean()


r = np.random.RandomState(44)
label = r.randint(0, CLASSES, 72).astype(np.int32)
X = (r.randn(72, 6) + np.eye(CLASSES, 6)[label] * 1.5).astype(np.float32)
rows = [(X[i : i + 8], label[i : i + 8]) for i in range(0, 72, 8)]

net = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, CLASSES))
cell = ck.AccumulationTrainCell(
    SmoothedLoss(net), nn.Momentum(net.trainable_params(), 0.05, 0.9), accumulation_steps=1
).set_train()
accuracy = Accuracy("classification")
accuracy.clear()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        images = ms.Tensor(x)
        accuracy.update(net(images), ms.Tensor(y))
        smooth = 0.3 * accuracy.eval()
        target = np.eye(CLASSES)[y] * (1 - smooth) + smooth / CLASSES
        cell(images, ms.Tensor(target.astype(np.float32)))
        manager.step(state)
    print("accuracy over the training:", accuracy.eval())
    manager.save_final(state)
os._exit(0)
