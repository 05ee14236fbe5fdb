# truth: exact
# class: attribute
# SAC-like entropy temperature: log alpha is a Parameter with an optimizer of its own; both are in the list of cells.

import os

import mindspore as ms
import numpy as np
from mindspore import Parameter, nn, ops

import ckptkit as ck

ms.set_seed(22)


class Temperature(nn.Cell):
    def __init__(self, start=0.0):
        super().__init__()
        self.log_alpha = Parameter(ms.Tensor([start], ms.float32), name="log_alpha")

    def construct(self, entropy, target):
        return (ops.exp(self.log_alpha) * (entropy - target)).mean()


class Policy(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(5, 10), nn.Tanh(), nn.Dense(10, 4))

    def entropy(self, x):
        p = ops.softmax(self.body(x), axis=-1)
        return (1 - (p * p).sum(-1)).mean()

    def construct(self, x, gain, alpha):
        p = ops.softmax(self.body(x), axis=-1)
        return -(p * gain).sum(-1).mean() - alpha * self.entropy(x)


policy, temperature = Policy(), Temperature()
policy_opt = nn.Adam(policy.trainable_params(), 0.02)
policy_opt.update_parameters_name("policy_opt.")
alpha_opt = nn.Momentum(temperature.trainable_params(), 0.1, 0.5)
alpha_opt.update_parameters_name("alpha_opt.")
policy_grad = ms.value_and_grad(policy, None, policy.trainable_params())
alpha_grad = ms.value_and_grad(temperature, None, temperature.trainable_params())

r = np.random.RandomState(22)
rows = []
for x in r.randn(8, 6, 5).astype(np.float32):
    rows.append((ms.Tensor(x), ms.Tensor(np.stack([x[:, 0], -x[:, 0], x[:, 1], 0 * x[:, 2]], 1))))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([policy, policy_opt, temperature, alpha_opt], batches)
    manager.restore(state)
    for x, gain in batches:
        alpha = ops.stop_gradient(ops.exp(temperature.log_alpha))
        _, grads = policy_grad(x, gain, alpha.sum())
        policy_opt(grads)
        _, agrads = alpha_grad(ops.stop_gradient(policy.entropy(x)), ms.Tensor(0.5, ms.float32))
        alpha_opt(agrads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
