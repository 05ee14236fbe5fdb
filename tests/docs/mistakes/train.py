"""What a user has, after README.md. The tests beside it make the mistakes in copies of it, one line each."""

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits

ms.set_seed(1)
digits = load_digits()
images, labels = digits.train_images[:320], digits.train_labels[:320]
dataset = ds.NumpySlicesDataset((images, labels), ["image", "label"])
dataset = dataset.batch(32)


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))

    def construct(self, image, label):
        return ops.cross_entropy(self.network(image), label)


loss = Loss()
optimizer = nn.Adam(loss.trainable_params(), learning_rate=0.01)
cell = ck.AccumulationTrainCell(loss, optimizer, accumulation_steps=4)
model = ms.Model(cell)

ckpt = ck.CheckpointCallback("runs/digits", save=ck.SaveEvery(micro_steps=3), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 2, dataset)
