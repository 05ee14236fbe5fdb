# truth: differs
# class: global
# Long-tailed classes: logits are adjusted by how often each class has been seen so far.

import collections
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(154)
CLASSES = 5
seen = collections.Counter()


def prior(tau=1.0):
    counts = np.array([seen[c] + 1 for c in range(CLASSES)], np.float64)
    return (tau * np.log(counts / counts.sum())).astype(np.float32)


r = np.random.RandomState(55)
labels = r.choice(CLASSES, 80, p=[0.5, 0.25, 0.13, 0.08, 0.04]).astype(np.int32)
x = (r.randn(80, 10) + np.eye(CLASSES)[labels].repeat(2, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, labels), ["x", "label"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(10, 20), nn.ReLU(), nn.Dense(20, CLASSES))
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
ce = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
grad_fn = ms.value_and_grad(lambda x, y, shift: ce(net(x) + shift, y), None, net.trainable_params())

batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for xb, label in batches:
        seen.update(label.asnumpy().tolist())
        loss, grads = grad_fn(xb, label, ms.Tensor(prior()))
        optimizer(grads)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
