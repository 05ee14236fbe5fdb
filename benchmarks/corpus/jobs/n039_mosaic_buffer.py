# truth: differs
# class: attribute
# Detection in small: mosaics are made of an image and three from a buffer of those loaded lately (as in ultralytics); the generator is given by name, the buffer is not.

import os
import random
from collections import deque

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4439)
SIDE = 8


class MosaicLoader:
    """images with one bright box each; the target is its centre and its size"""

    def __init__(self, images, boxes, buffer_size):
        self.images, self.boxes = images, boxes
        self.buffer = deque(maxlen=buffer_size)
        self.random = random.Random(439)

    def load(self, number):
        self.buffer.append(number)
        return self.images[number], self.boxes[number]

    def mosaic(self, number):
        image, box = self.load(number)
        if len(self.buffer) < 4 or self.random.random() < 0.3:
            return image, box
        others = self.random.sample(list(self.buffer), 3)
        out = image.copy()
        half = SIDE // 2
        corners = [(0, half), (half, 0), (half, half)]
        for other, (top, left) in zip(others, corners):
            out[top : top + half, left : left + half] = self.images[other][::2, ::2]
        return out, box


r = np.random.RandomState(39)
images = (0.3 * r.rand(48, SIDE, SIDE)).astype(np.float32)
boxes = np.zeros((48, 3), np.float32)
for number in range(48):
    top, left, size = r.randint(0, 3), r.randint(0, 3), r.randint(2, 5)
    images[number, top : top + size, left : left + size] += 0.7
    boxes[number] = top + size / 2, left + size / 2, size
loader = MosaicLoader(images, boxes / SIDE, buffer_size=16)
rows = [np.arange(i * 6, (i + 1) * 6) for i in range(8)]
net = nn.SequentialCell(nn.Flatten(), nn.Dense(SIDE * SIDE, 12), nn.ReLU(), nn.Dense(12, 3))
loss = nn.WithLossCell(net, nn.L1Loss())
cell = ck.AccumulationTrainCell(loss, nn.Momentum(loss.trainable_params(), 0.03, 0.9), accumulation_steps=1).set_train()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, mosaic_random=loader.random)
    manager.restore(state)
    for numbers in batches:
        pairs = [loader.mosaic(int(n)) for n in np.asarray(numbers)]
        cell(ms.Tensor(np.stack([p[0] for p in pairs])), ms.Tensor(np.stack([p[1] for p in pairs])))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
