# truth: exact
# class: attribute
# JAX style: a pure step under ms.jit, Adam written by hand; moments and count are Parameters of a cell in the list.

import os

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, nn, ops

import ckptkit as ck

ms.set_seed(101)


def zeros_like_tree(params, prefix):
    return ParameterTuple(
        [Parameter(ops.zeros(p.shape, p.dtype), name=f"{prefix}.{p.name}", requires_grad=False) for p in params]
    )


class AdamState(nn.Cell):
    def __init__(self, params):
        super().__init__(auto_prefix=False)
        self.mu = zeros_like_tree(params, "mu")
        self.nu = zeros_like_tree(params, "nu")
        self.count = Parameter(ms.Tensor(0.0, ms.float32), name="adam_count", requires_grad=False)


mlp = nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, 2))
theta = ParameterTuple(mlp.trainable_params())
adam = AdamState(theta)


def loss_fn(x, y):
    return ops.square(mlp(x) - y).mean()


value_and_grad = ms.value_and_grad(loss_fn, None, theta)


@ms.jit
def step(x, y):
    loss, grads = value_and_grad(x, y)
    n = adam.count + 1.0
    ops.assign(adam.count, n)
    for i in range(len(theta)):
        m = 0.9 * adam.mu[i] + 0.1 * grads[i]
        v = 0.99 * adam.nu[i] + 0.01 * grads[i] * grads[i]
        ops.assign(adam.mu[i], m)
        ops.assign(adam.nu[i], v)
        scale = 0.01 / (1.0 + 0.02 * n)
        ops.assign(theta[i], theta[i] - scale * m / (ops.sqrt(v) + 1e-6))
    return loss


key = np.random.default_rng(1)
xs = key.normal(size=(8, 5, 6)).astype(np.float32)
ys = np.stack([xs[..., 0] * xs[..., 1], xs[..., 2]], -1)
batches = ck.data.resumable([tuple(map(ms.Tensor, b)) for b in zip(xs, ys)], epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait", window="off"),
) as manager:
    state = ck.StateManager([mlp, adam], batches)
    manager.restore(state)
    for x, y in batches:
        step(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
