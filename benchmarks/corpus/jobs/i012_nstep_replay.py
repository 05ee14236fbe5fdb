# truth: differs
# class: outside
# Q-learning with n-step returns: replay ring and generator are stored by name, the short queue of transitions that wait for their n rewards is not.

import os
from collections import deque, namedtuple

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(312)
Transition = namedtuple("Transition", "obs action reward following")


class Replay:
    def __init__(self, capacity, dim):
        self.obs = np.zeros((capacity, dim), np.float32)
        self.following = np.zeros((capacity, dim), np.float32)
        self.action = np.zeros(capacity, np.int64)
        self.reward = np.zeros(capacity, np.float32)
        self.size = 0
        self.head = 0

    def add(self, t):
        self.obs[self.head], self.following[self.head] = t.obs, t.following
        self.action[self.head], self.reward[self.head] = t.action, t.reward
        self.head = (self.head + 1) % len(self.obs)
        self.size = min(self.size + 1, len(self.obs))

    def state_dict(self):
        return {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in vars(self).items()}

    def load_state_dict(self, state):
        for k, v in state.items():
            setattr(self, k, v)


class NStep:
    def __init__(self, replay, n=4, gamma=0.9):
        self.replay, self.gamma = replay, gamma
        self.window = deque(maxlen=n)

    def observe(self, transition):
        self.window.append(transition)
        if len(self.window) == self.window.maxlen:
            ret = sum(t.reward * self.gamma**k for k, t in enumerate(self.window))
            first = self.window[0]
            self.replay.add(Transition(first.obs, first.action, ret, transition.following))


q = nn.SequentialCell(nn.Dense(3, 12), nn.Tanh(), nn.Dense(12, 2))
opt = nn.Adam(q.trainable_params(), 0.01)


def td(obs, onehot, target):
    return (((q(obs) * onehot).sum(1) - target) ** 2).mean()


vg = ms.value_and_grad(td, None, q.trainable_params())
replay, sampler = Replay(64, 3), np.random.default_rng(12)
collector = NStep(replay)
r = np.random.RandomState(6)
paths = [(r.randn(7, 3).cumsum(0).astype(np.float32),) for _ in range(8)]

batches = ck.data.resumable(paths, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([q, opt], batches, replay=replay, sampler=sampler)
    manager.restore(state)
    for (path,) in batches:
        for obs, following in zip(path[:-1], path[1:]):
            action = (
                int(q(ms.Tensor(obs[None])).asnumpy().argmax()) if sampler.random() > 0.2 else int(sampler.integers(2))
            )
            reward = float(following[0] - obs[0]) * (1 if action else -1)
            collector.observe(Transition(obs, action, reward, following))
        if replay.size:
            pick = sampler.integers(0, replay.size, 8)
            best = q(ms.Tensor(replay.following[pick])).asnumpy().max(1)
            target = (replay.reward[pick] + 0.9**4 * best).astype(np.float32)
            onehot = np.eye(2, dtype=np.float32)[replay.action[pick]]
            loss, grads = vg(ms.Tensor(replay.obs[pick]), ms.Tensor(onehot), ms.Tensor(target))
            opt(grads)
        else:
            loss, grads = vg(
                ms.Tensor(path), ms.Tensor(np.ones((7, 2), np.float32)), ms.Tensor(np.zeros(7, np.float32))
            )
            opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
