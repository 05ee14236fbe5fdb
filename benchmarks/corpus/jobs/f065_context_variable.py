# truth: differs
# class: variable
# The strength of an input blur is a ContextVar that functions deep below the loop read, and the loop sharpens by the loss.

import contextvars
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(74)

blur = contextvars.ContextVar("blur", default=0.9)


def blurred(image):
    b = np.float32(blur.get())
    near = (np.roll(image, 1, -1) + np.roll(image, -1, -1) + np.roll(image, 1, -2) + np.roll(image, -1, -2)) / 4
    return (1 - b) * image + b * near


def preprocess(batch):
    return ms.Tensor(np.stack([blurred(image) for image in batch])[:, None])


def sharpen(loss, limit=0.7):
    blur.set(blur.get() * (0.93 if loss < limit else 0.99))


class Convs(nn.Cell):
    def __init__(self):
        super().__init__()
        self.net = nn.SequentialCell(nn.Conv2d(1, 5, 3, pad_mode="valid"), nn.ReLU(), nn.Flatten(), nn.Dense(5 * 16, 3))

    def construct(self, x, y):
        return ops.cross_entropy(self.net(x), y)


r = np.random.RandomState(74)
images = r.rand(8, 6, 6, 6).astype(np.float32)
labels = images[:, :, 2:4, 2:4].sum((2, 3)).astype(np.int32) % 3

net = Convs()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.005), 3).set_train()
batches = ck.data.resumable(list(zip(images, labels)), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for image, label in batches:
        loss = cell(preprocess(image), ms.Tensor(label))
        sharpen(float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
