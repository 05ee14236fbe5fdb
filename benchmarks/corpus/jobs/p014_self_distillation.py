# truth: differs
# class: variable
# Self-distillation: what the network said of a batch when it first saw it is a second target later on.

import functools
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(114)

r = np.random.RandomState(14)
labels = r.randint(0, 3, 60).astype(np.int32)
x = (r.randn(60, 6) + 1.2 * np.eye(3)[labels].repeat(2, 1)).astype(np.float32)
net = nn.SequentialCell(nn.Dense(6, 18), nn.ReLU(), nn.Dense(18, 3))
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
ce = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


@functools.lru_cache(maxsize=None)
def first_opinion(number):
    return net(ms.Tensor(x[number * 6 : number * 6 + 6])).asnumpy()


def forward(xb, yb, target):
    logits = net(xb)
    return ce(logits, yb) + 0.3 * ((logits - target) ** 2).mean()


grad_fn = ms.value_and_grad(forward, None, net.trainable_params())
batches = ck.data.resumable(list(range(10)), epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for number in batches:
        number = int(number)
        part = slice(number * 6, number * 6 + 6)
        loss, grads = grad_fn(ms.Tensor(x[part]), ms.Tensor(labels[part]), ms.Tensor(first_opinion(number)))
        optimizer(grads)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
