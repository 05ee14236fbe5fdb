# truth: exact
# class: attribute
# REINFORCE on a noisy corridor; each update plays whole episodes, the baseline is a parameter.

import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from scipy.special import softmax

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(149)
np.random.seed(149)


class Corridor:
    def __init__(self, length=6, slip=0.1):
        self.length, self.slip = length, slip

    def reset(self):
        self.at, self.time = np.random.randint(1, self.length - 1), 0
        return self.see()

    def see(self):
        return np.eye(self.length, dtype=np.float32)[self.at]

    def act(self, right):
        right = right != (np.random.rand() < self.slip)
        self.at += 1 if right else -1
        self.time += 1
        done = self.at in (0, self.length - 1) or self.time == 12
        return self.see(), 1.0 if self.at == self.length - 1 else -0.05, done


policy = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 2))
baseline = ms.Parameter(ms.Tensor(0.0, ms.float32), name="baseline", requires_grad=False)
optimizer = nn.Adam(policy.trainable_params(), 2e-2)
grad_fn = ms.value_and_grad(lambda s, c: (policy(s) * c).sum(1).mean(), None, policy.trainable_params())
world = Corridor()


def play():
    seen, actions, rewards, view, done = [], [], [], world.reset(), False
    while not done:
        right = int(np.random.rand() < softmax(policy(ms.Tensor(view[None])).asnumpy()[0])[1])
        seen.append(view)
        actions.append(right)
        view, reward, done = world.act(bool(right))
        rewards.append(reward)
    return seen, actions, list(np.cumsum(rewards[::-1])[::-1])


updates = ck.data.resumable(list(range(40)), epochs=1)
save, saving = ck.SaveEvery(micro_steps=5), ck.Saving(when_busy="wait")
with ck.CheckpointManager(os.environ["ROOT"], save=save, saving=saving) as manager:
    state = ck.StateManager([policy, optimizer], updates, baseline=baseline)
    manager.restore(state)
    for _ in updates:
        episodes = [play() for _ in range(3)]
        seen, actions, returns = (sum((list(e[i]) for e in episodes), []) for i in range(3))
        advantage = np.array(returns, np.float32) - float(baseline.asnumpy())
        states = ms.Tensor(np.stack(seen))
        push = (softmax(policy(states).asnumpy(), 1) - np.eye(2)[actions]) * advantage[:, None]
        loss, grads = grad_fn(states, ms.Tensor(push.astype(np.float32)))
        optimizer(grads)
        ops.assign(baseline, ms.Tensor(0.9 * float(baseline.asnumpy()) + 0.1 * float(np.mean(returns)), ms.float32))
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
