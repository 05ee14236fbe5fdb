# truth: differs
# class: iterator
# Truncated BPTT with k1=1, k2=3: the inputs of the last three batches and the hidden states before them are unrolled again; they wait in a deque.

import os
from collections import deque

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(332)
HID = 6


class Elman(nn.Cell):
    def __init__(self):
        super().__init__()
        self.cell = nn.Dense(2 + HID, HID)
        self.out = nn.Dense(HID, 1)

    def construct(self, xs, h):
        for x in xs:
            h = ops.tanh(self.cell(ops.concat((x, h), 1)))
        return self.out(h), h


net = Elman()
opt = nn.RMSProp(net.trainable_params(), 0.01)


def forward(xs, h, y):
    out, _ = net(xs, h)
    return ((out - y) ** 2).mean()


vg = ms.value_and_grad(forward, None, net.trainable_params())


def truncated_bptt(stream, k2, hidden):
    """yields (inputs of up to k2 steps, state before them, target) for each step"""
    past = deque(maxlen=k2)
    for x, y in stream:
        past.append((x, hidden))
        xs = tuple(ms.Tensor(v) for v, _ in past)
        before = ms.Tensor(past[0][1])
        yield xs, before, ms.Tensor(y)
        hidden = net((ms.Tensor(x),), ms.Tensor(hidden))[1].asnumpy()


r = np.random.RandomState(13)
xs = r.randn(8, 4, 2).astype(np.float32)
lagged = xs[:, :, :1] + np.roll(xs, 1, 0)[:, :, 1:] - np.roll(xs, 2, 0)[:, :, :1]
steps = [(x, y.astype(np.float32)) for x, y in zip(xs, lagged)]

batches = ck.data.resumable(steps, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for inputs, before, y in truncated_bptt(batches, 3, np.zeros((4, HID), np.float32)):
        loss, grads = vg(inputs, before, y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
