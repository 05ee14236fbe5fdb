# truth: differs
# class: attribute
# A train cell that accumulates over four batches keeps the gradients in a list and counts its calls in an int; a resumed run begins with an empty list.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import LossMonitor

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3502)


class AccumulatingStep(nn.TrainOneStepCell):
    def __init__(self, network, optimizer, steps):
        super().__init__(network, optimizer)
        self.steps = steps
        self.calls = 0
        self.gathered = []

    def construct(self, image, label):
        loss = self.network(image, label)
        grads = self.grad_no_sens(self.network, self.weights)(image, label)
        self.calls += 1
        self.gathered.append(grads)
        if self.calls % self.steps == 0:
            mean = tuple(sum(parts) / self.steps for parts in zip(*self.gathered))
            self.optimizer(mean)
            self.gathered = []
        return loss


r = np.random.RandomState(2)
labels = r.randint(0, 3, 72).astype(np.int32)
images = (r.randn(72, 1, 6, 6) + labels[:, None, None, None]).astype(np.float32)
train = ds.NumpySlicesDataset((images, labels), ["image", "label"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Conv2d(1, 4, 3, pad_mode="valid"), nn.ReLU(), nn.Flatten(), nn.Dense(64, 3))
loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
step = AccumulatingStep(loss, nn.Adam(net.trainable_params(), 0.01), 4)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train, callbacks=[LossMonitor(9)])
os._exit(0)
