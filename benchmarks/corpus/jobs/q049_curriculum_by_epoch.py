# truth: exact
# class: closure
# Curriculum by the epoch of the batches; the table of difficulties is a cached pure function, the phase an Enum.

import enum
import functools
import hashlib
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(59)


class Phase(enum.Enum):
    EASY = 0.2
    MEDIUM = 0.6
    HARD = 1.0

    @classmethod
    def of(cls, epoch):
        return list(cls)[min(epoch, 2)]


@functools.lru_cache(maxsize=None)
def ramp(width, phase):
    return np.linspace(1.0, phase.value, width, dtype=np.float32)


r = np.random.RandomState(49)
x = r.randn(48, 6).astype(np.float32)
y = (x.sum(1, keepdims=True) / 3).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
batches = ck.data.resumable(data, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for a, b in batches:
        phase = Phase.of(batches.epoch)
        loss, grads = grad_fn(a * ms.Tensor(ramp(6, phase)), b)
        opt(grads)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
