# truth: exact
# class: global
# Mixup inside the train cell: share and partners are drawn from NumPy's global generator in construct, which is stored; PYNATIVE mode.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import LossMonitor

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3510)
np.random.seed(3510)


class MixupStep(nn.TrainOneStepCell):
    def __init__(self, network, optimizer, alpha):
        super().__init__(network, optimizer)
        self.alpha = alpha

    def construct(self, image, target):
        share = float(np.random.beta(self.alpha, self.alpha))
        partner = ms.Tensor(np.random.permutation(image.shape[0]).astype(np.int32))
        image = share * image + (1 - share) * image[partner]
        target = share * target + (1 - share) * target[partner]
        return super().construct(image, target)


r = np.random.RandomState(10)
labels = r.randint(0, 4, 60)
images = (0.5 * r.randn(60, 16) + np.repeat(np.eye(4)[labels], 4, 1)).astype(np.float32)
onehot = np.eye(4, dtype=np.float32)[labels]
train = ds.NumpySlicesDataset((images, onehot), ["image", "target"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(16, 12), nn.ReLU(), nn.Dense(12, 4), nn.Softmax())
step = MixupStep(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.02), alpha=0.4)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train, callbacks=[LossMonitor(10)])
os._exit(0)
