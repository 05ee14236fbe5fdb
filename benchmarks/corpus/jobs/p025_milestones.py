# truth: differs
# class: variable
# A loop with mindspore.experimental.optim and one of its schedulers.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.experimental import optim

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(125)

r = np.random.RandomState(25)
labels = r.randint(0, 3, 60).astype(np.int32)
x = (r.randn(60, 6) + np.eye(3)[labels].repeat(2, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, labels), ["x", "label"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 16), nn.ReLU(), nn.Dense(16, 3))
optimizer = optim.SGD(net.trainable_params(), lr=0.1, momentum=0.9)
schedule = optim.lr_scheduler.MultiStepLR(optimizer, milestones=[8, 20, 30], gamma=0.3)
ce = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
grad_fn = ms.value_and_grad(lambda x, y: ce(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for xb, yb in batches:
        loss, grads = grad_fn(xb, yb)
        optimizer(grads)
        schedule.step()
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
