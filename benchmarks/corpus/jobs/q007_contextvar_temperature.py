# truth: differs
# class: global
# The softmax temperature is a contextvars.ContextVar that the loop cools after each batch.

import contextvars
import hashlib
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(17)
temperature = contextvars.ContextVar("temperature", default=4.0)


def cool(by=0.93):
    temperature.set(max(0.5, temperature.get() * by))


r = np.random.RandomState(7)
labels = r.randint(0, 3, 54).astype(np.int32)
x = (r.randn(54, 6) + np.eye(3)[labels].repeat(2, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((x, labels), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 3))
opt = nn.Adam(net.trainable_params(), 0.01)
ce = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


def forward(a, b):
    return ce(net(a) / temperature.get(), b)


grad_fn = ms.value_and_grad(forward, None, opt.parameters)
batches = ck.data.resumable(data, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for a, b in batches:
        loss, grads = grad_fn(a, b)
        opt(grads)
        cool()
        manager.step(state)
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
