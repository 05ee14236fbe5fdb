# truth: exact
# class: outside
# MindSpore's own MixUpBatch on batches of small images with one-hot labels, one worker, seeded; BatchNorm in the network, Model.train in GRAPH mode.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.dataset import vision

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4437)
ds.config.set_seed(4437)
SIDE, CLASSES = 6, 4


class Classifier(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.body = nn.SequentialCell(
            nn.Dense(SIDE * SIDE * 3, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dense(12, CLASSES)
        )

    def construct(self, image):
        return self.body(self.flatten(image.astype(ms.float32) / 255.0 - 0.5))


r = np.random.RandomState(37)
labels = r.randint(0, CLASSES, 48)
images = r.randint(0, 120, (48, SIDE, SIDE, 3))
images[np.arange(48), labels, labels] += 120
hot = np.eye(CLASSES, dtype=np.float32)[labels]

train = ds.NumpySlicesDataset((images.astype(np.uint8), hot), ["image", "label"], shuffle=True, num_parallel_workers=1)
train = train.batch(6, drop_remainder=True)
train = train.map(vision.MixUpBatch(alpha=0.8), input_columns=["image", "label"], num_parallel_workers=1)
net = Classifier()
model = ms.Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train)
os._exit(0)
