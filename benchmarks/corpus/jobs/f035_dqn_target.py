# truth: differs
# class: random
# DQN: the replay is stored by state_dict, but the target network's weights are a dict of tensors that is made anew.

import os
import random
from collections import deque

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(1)
random.seed(1)


class Replay:
    def __init__(self, size):
        self.items = deque(maxlen=size)

    def add(self, *transition):
        self.items.append(tuple(float(t) for t in transition))

    def sample(self, n):
        return np.array(random.sample(list(self.items), n), np.float32)

    def state_dict(self):
        return {"items": [list(t) for t in self.items]}

    def load_state_dict(self, state):
        self.items = deque((tuple(t) for t in state["items"]), maxlen=self.items.maxlen)


def walk(s, a):
    """a chain of 7 places; a = 0 left, 1 right"""
    s2 = min(6, max(0, s + (1 if a else -1)))
    return s2, 1.0 if s2 == 6 else -0.05


class QLoss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.q = nn.SequentialCell(nn.Dense(7, 12), nn.ReLU(), nn.Dense(12, 2))

    def construct(self, s, a, goal):
        return (((self.q(s) * a).sum(1) - goal) ** 2).mean()


def onehot(v, n):
    return ms.Tensor(np.eye(n, dtype=np.float32)[np.asarray(v, int)])


def forward(weights, s):
    w0, b0, w1, b1 = weights.values()
    return np.maximum(s @ w0.T + b0, 0) @ w1.T + b1


agent = QLoss()
cell = ck.AccumulationTrainCell(agent, nn.Adam(agent.trainable_params(), 0.02), 1).set_train()
replay = Replay(20)
place = 3
for _ in range(8):
    act = random.randrange(2)
    nxt, rew = walk(place, act)
    replay.add(place, act, rew, nxt)
    place = nxt

target = {p.name: p.asnumpy().copy() for p in agent.trainable_params()}
steps = ck.data.resumable(range(28), epochs=1)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, steps, replay=replay)
    manager.restore(state)
    for t in steps:
        last = int(replay.items[-1][3])
        act = random.randrange(2) if random.random() < 0.3 else int(agent.q(onehot([last], 7)).argmax(-1))
        nxt, rew = walk(last, act)
        replay.add(last, act, rew, nxt)
        s, a, r, s2 = replay.sample(6).T
        goal = r + 0.9 * forward(target, np.eye(7, dtype=np.float32)[s2.astype(int)]).max(1)
        cell(onehot(s, 7), onehot(a, 2), ms.Tensor(goal, ms.float32))
        if t % 6 == 5:
            target = {p.name: p.asnumpy().copy() for p in agent.trainable_params()}
        manager.step(state)
    manager.save_final(state)
os._exit(0)
