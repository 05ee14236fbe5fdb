# truth: exact
# class: outside
# MindSpore's random crop and flip on small images, one worker, seeded; Model.train over a convolution with K = 2, nothing else is random.

import os

import mindspore as ms
import mindspore.dataset as ds
import mindspore.dataset.transforms as transforms
import mindspore.dataset.vision as vision
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4147)
ds.config.set_seed(4147)

r = np.random.RandomState(47)
images = r.randint(0, 256, (48, 10, 10, 3)).astype(np.uint8)
labels = (images[:, :5].mean((1, 2, 3)) > images[:, 5:].mean((1, 2, 3))).astype(np.int32)

dataset = ds.NumpySlicesDataset((images, labels), ["image", "label"], num_parallel_workers=1, shuffle=True)
dataset = dataset.map(
    [
        vision.RandomCrop(8),
        vision.RandomHorizontalFlip(0.5),
        vision.Rescale(1 / 128, -1.0),
        vision.HWC2CHW(),
        transforms.TypeCast(ms.float32),
    ],
    input_columns="image",
    num_parallel_workers=1,
).batch(6)

net = nn.SequentialCell(nn.Conv2d(3, 4, 3, pad_mode="pad", padding=1), nn.ReLU(), nn.Flatten(), nn.Dense(4 * 8 * 8, 2))
loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
cell = ck.AccumulationTrainCell(loss, nn.Momentum(net.trainable_params(), 0.02, 0.9), accumulation_steps=2)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, dataset)
os._exit(0)
