# truth: exact
# class: file
# SGHMC posterior sampling: velocities are Parameters of a cell in the list, noise is from NumPy's global generator, samples only go to disk.

import os

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

import ckptkit as ck

SEED = 50
ms.set_seed(SEED)
np.random.seed(SEED)


class SGHMC(nn.Cell):
    def __init__(self, params, lr=0.01, friction=0.2, temperature=1e-3):
        super().__init__()
        self.targets = ParameterTuple(params)
        self.velocity = ParameterTuple(
            [Parameter(Tensor(np.zeros(p.shape, np.float32)), name="v." + p.name, requires_grad=False) for p in params]
        )
        self.lr, self.friction = lr, friction
        self.noise_std = np.sqrt(2 * friction * temperature * lr)

    def update(self, grads):
        for p, v, g in zip(self.targets, self.velocity, grads):
            noise = np.random.normal(0.0, self.noise_std, p.shape)
            new_v = (1 - self.friction) * v.asnumpy() - self.lr * g.asnumpy() + noise
            ops.assign(v, Tensor(new_v.astype(np.float32)))
            ops.assign(p, Tensor((p.asnumpy() + new_v).astype(np.float32)))


net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
sampler = SGHMC(net.trainable_params())
mse = nn.MSELoss()
potential = ms.value_and_grad(lambda x, y: 5.0 * mse(net(x), y), None, net.trainable_params())

gen = np.random.default_rng(1)
x = gen.uniform(-2, 2, (50, 5)).astype(np.float32)
y = (np.sin(x[:, :1]) + 0.1 * gen.normal(size=(50, 1))).astype(np.float32)
loader = [(Tensor(x[i : i + 5]), Tensor(y[i : i + 5])) for i in range(0, 50, 5)]
batches = ck.data.resumable(loader, epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, sampler], batches)
    point = manager.restore(state)
    for step, (xb, yb) in enumerate(batches, point.batches_delivered + 1):
        manager.fence()
        energy, grads = potential(xb, yb)
        sampler.update(grads)
        if step > 12 and step % 6 == 0:
            np.savez(f"sample_{step}.npz", *[p.asnumpy() for p in net.trainable_params()])
        manager.step(state, {"energy": energy})
    manager.save_final(state)
os._exit(0)
