# truth: exact
# class: callback
# A callback corrects the output bias by the share of rare labels in the batch that was just trained (train_dataset_element); its Counter of labels is for a print.

import os
from collections import Counter

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4414)
CLASSES, PRIOR = 3, np.array([0.6, 0.3, 0.1])


class PriorCorrection(Callback):
    def __init__(self, layer, strength):
        super().__init__()
        self.layer, self.strength = layer, strength
        self.labels = Counter()

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        hot = cb.train_dataset_element[1].asnumpy()
        share = hot.mean(0)
        shift = self.strength * (PRIOR - share)
        ops.assign(self.layer.bias, self.layer.bias + ms.Tensor(shift.astype(np.float32)))
        self.labels.update(hot.argmax(1).tolist())

    def on_train_epoch_end(self, run_context):
        epoch = run_context.original_args().cur_epoch_num
        print(epoch, " ".join(f"{label}: {count}" for label, count in sorted(self.labels.items())))


r = np.random.RandomState(14)
labels = r.choice(CLASSES, 48, p=PRIOR)
x = (r.randn(48, 4) + 0.8 * labels[:, None]).astype(np.float32)
hot = np.eye(CLASSES, dtype=np.float32)[labels]
train = ds.NumpySlicesDataset((x, hot), ["x", "hot"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, CLASSES))
model = ms.Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.02))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[PriorCorrection(net[2], 0.05)])
os._exit(0)
