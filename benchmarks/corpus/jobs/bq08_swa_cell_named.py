# truth: exact
# class: random

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
ms.set_seed(21)


class SWA(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.params = ParameterTuple(network.trainable_params())
        self.average = self.params.clone(prefix="swa", init="same")
        self.count = Parameter(Tensor(0, ms.float32), name="swa_count", requires_grad=False)

    def construct(self):
        n = self.count
        for a, p in zip(self.average, self.params):
            ops.assign(a, a * (n / (n + 1)) + p / (n + 1))
        ops.assign_add(self.count, Tensor(1, ms.float32))
        return self.count


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Dense(6, 12), nn.Dense(12, 1)
        self.drop = ck.nn.Dropout(p=0.2, seed=4)

    def construct(self, x):
        return self.fc2(self.drop(ops.tanh(self.fc1(x))))


rng = np.random.default_rng(4)
X = rng.normal(size=(80, 6)).astype(np.float32)
Y = np.sin(X.sum(1, keepdims=True)).astype(np.float32)
dataset = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
net = Net()
steps_per_epoch = dataset.get_dataset_size()
lr = nn.cosine_decay_lr(0.001, 0.05, 4 * steps_per_epoch, steps_per_epoch, 4)
optimizer = nn.Momentum(net.trainable_params(), lr, 0.9)
cell = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer).set_train()
swa = SWA(net)
run = ck.loop(
    ROOT,
    dataset,
    epochs=4,
    train=cell,
    stateful={"swa": swa},
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for x, y in run:
    number = run.step
    loss = cell(x, y)
    if number >= 10 and number % 3 == 0:
        swa()
print("last loss", float(loss))
os._exit(0)
