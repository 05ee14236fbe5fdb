# truth: exact
# class: global
# Reptile: each "batch" is a task drawn from NumPy's global generator; an inner loop of plain SGD, then an outer step.

import hashlib
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(52)


class Reptile:
    def __init__(self, inner_steps=3, inner_lr=0.05, outer_lr=0.3):
        self.net = nn.SequentialCell(nn.Dense(1, 16), nn.Tanh(), nn.Dense(16, 1))
        self.inner_steps, self.inner_lr, self.outer_lr = inner_steps, inner_lr, outer_lr
        mse = nn.MSELoss()
        self.grad_fn = ms.value_and_grad(lambda a, b: mse(self.net(a), b), None, self.net.trainable_params())

    @staticmethod
    def draw_task():
        amplitude, phase = np.random.uniform(0.5, 2), np.random.uniform(0, 3)
        x = np.random.uniform(-2, 2, (10, 1)).astype(np.float32)
        return ms.Tensor(x), ms.Tensor((amplitude * np.sin(x + phase)).astype(np.float32))

    def meta_step(self):
        before = [p.asnumpy().copy() for p in self.net.trainable_params()]
        a, b = self.draw_task()
        for _ in range(self.inner_steps):
            loss, grads = self.grad_fn(a, b)
            for p, g in zip(self.net.trainable_params(), grads):
                ops.assign_sub(p, self.inner_lr * g)
        for p, old in zip(self.net.trainable_params(), before):
            ops.assign(p, ms.Tensor(old + self.outer_lr * (p.asnumpy() - old)))
        return loss


learner = Reptile()
iterations = ck.data.resumable([np.int32(i) for i in range(10)], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([learner.net], iterations)
    manager.restore(state)
    for _ in iterations:
        loss = learner.meta_step()
        manager.step(state, {"loss": loss})
    manager.save_final(state)
net = learner.net
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
