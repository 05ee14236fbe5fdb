# truth: differs
# class: variable
# mindspore.experimental.optim with its StepLR, stepped per batch; the network and the optimizer are given, the scheduler is forgotten.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.experimental import optim

import ckptkit as ck

ms.set_seed(83)

r = np.random.RandomState(64)
x = r.randn(64, 8).astype(np.float32)
y = (x[:, 0] + 0.3 * r.randn(64) > 0).astype(np.int32)
dataset = ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(8)

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 2))
loss_fn = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.trainable_params(), lr=0.2, momentum=0.5)
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=6, gamma=0.5)


def forward(inputs, target):
    return loss_fn(net(inputs), target)


grad_fn = ms.value_and_grad(forward, None, optimizer.parameters)


def train_step(inputs, target):
    loss, grads = grad_fn(inputs, target)
    optimizer(grads)
    return loss


batches = ck.data.resumable(dataset, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for inputs, target in batches:
        loss = train_step(inputs, target)
        scheduler.step()
        manager.step(state)
    print("last loss", float(loss.asnumpy()))
    manager.save_final(state)
os._exit(0)
