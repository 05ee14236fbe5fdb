# truth: exact
# class: attribute
# A recurrent network over a long series, truncated to windows: the hidden state goes on from window to window as an array, and is given with ck.attributes; it is cleared where an epoch begins.

import os
import types

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3533)
STREAMS, WINDOW, WINDOWS, HIDDEN = 4, 5, 9, 6


class Elman(nn.Cell):
    def __init__(self):
        super().__init__()
        self.seen, self.kept = nn.Dense(1, HIDDEN), nn.Dense(HIDDEN, HIDDEN, has_bias=False)
        self.out = nn.Dense(HIDDEN, 1)

    def construct(self, series, hidden):
        loss = 0.0
        for t in range(WINDOW):
            hidden = ops.tanh(self.seen(series[:, t : t + 1]) + self.kept(hidden))
            loss += ((self.out(hidden) - series[:, t + 1 : t + 2]) ** 2).mean()
        return loss / WINDOW, hidden


time = np.arange(WINDOWS * WINDOW + 1)
series = np.stack([np.sin(time / (2 + i)) + 0.5 * np.sin(time / 7 + i) for i in range(STREAMS)])
windows = [series[:, w * WINDOW : (w + 1) * WINDOW + 1].astype(np.float32) for w in range(WINDOWS)]

net = Elman()
optimizer = nn.Adam(net.trainable_params(), 0.02)
gradients = ms.value_and_grad(net, None, net.trainable_params(), has_aux=True)
carry = types.SimpleNamespace(hidden=np.zeros((STREAMS, HIDDEN), np.float32))

batches = ck.data.resumable(windows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches, carry=ck.attributes(carry, "hidden"))
    point = manager.restore(state)
    for number, window in enumerate(batches, point.batches_delivered):
        if number % WINDOWS == 0:
            carry.hidden = np.zeros((STREAMS, HIDDEN), np.float32)
        (loss, hidden), grads = gradients(ms.Tensor(np.asarray(window)), ms.Tensor(carry.hidden))
        optimizer(grads)
        carry.hidden = hidden.asnumpy().copy()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
