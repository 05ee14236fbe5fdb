# truth: exact, may be named
# class: callback
# ck.data.Augmented with cutout and jitter in Model.fit; a callback of one's own collects a history that is only printed.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Accuracy, Callback

import ckptkit as ck

ms.set_seed(49)


class Shapes:
    def __init__(self, n, seed):
        r = np.random.RandomState(seed)
        self.label = r.randint(0, 2, n).astype(np.int32)
        self.image = r.rand(n, 1, 6, 6).astype(np.float32) * 0.3
        self.image[self.label == 1, :, 2:4] += 0.7
        self.image[self.label == 0, :, :, 2:4] += 0.7

    def __getitem__(self, i):
        return self.image[i], self.label[i]

    def __len__(self):
        return len(self.label)


def cutout(sample, rng):
    image, label = sample
    image = image.copy()
    i, j = rng.integers(0, 5, size=2)
    image[:, i : i + 2, j : j + 2] = 0
    return (image * rng.uniform(0.8, 1.2)).astype(np.float32), label


class History(Callback):
    def __init__(self):
        super().__init__()
        self.history = {"loss": [], "smooth": []}

    def on_train_step_end(self, run_context):
        loss = float(run_context.original_args().net_outputs.asnumpy())
        past = self.history["smooth"]
        self.history["loss"].append(loss)
        past.append(0.8 * past[-1] + 0.2 * loss if past else loss)

    def on_train_end(self, run_context):
        print("smoothed loss", [round(v, 3) for v in self.history["smooth"][::6]])


train = ck.data.Augmented(Shapes(64, 1), cutout, seed=49).dataset(["image", "label"]).batch(8)
test = ds.GeneratorDataset(Shapes(16, 2), ["image", "label"], shuffle=False).batch(8)
net = nn.SequentialCell(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dense(144, 2))
loss_fn = nn.CrossEntropyLoss()
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, loss_fn, optimizer, metrics={"acc": Accuracy()})
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    keep=ck.KeepLatest(2) | ck.KeepBest(1, metric="acc", mode="max"),
    saving=ck.Saving(when_busy="wait"),
)
ckpt.fit(model, 3, train, test, callbacks=[History()])
os._exit(0)
