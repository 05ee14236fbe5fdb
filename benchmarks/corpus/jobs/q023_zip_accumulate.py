# truth: differs
# class: iterator
# The batches are zipped with an iterator of rates that itertools.accumulate makes.

import hashlib
import itertools
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(33)
r = np.random.RandomState(23)
x = r.randn(60, 4).astype(np.float32)
y = np.exp(-(x[:, :1] ** 2)).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 10), nn.Tanh(), nn.Dense(10, 1))
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, net.trainable_params())


def main():
    rates = itertools.accumulate(itertools.repeat(0.93), lambda rate, factor: rate * factor, initial=0.3)
    batches = ck.data.resumable(data, epochs=4)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager([net], batches)
        manager.restore(state)
        for (a, b), rate in zip(batches, rates):
            loss, grads = grad_fn(a, b)
            for p, g in zip(net.trainable_params(), grads):
                ops.assign_sub(p, rate * g)
            manager.step(state)
        manager.save_final(state)


main()
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
