# truth: exact
# class: outside
# DQN on a chain of states: the environment, the replay deque and the exploration have a state_dict.

import collections
import hashlib
import os
import random

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(42)
random.seed(42)


class Chain:
    size = 6

    def __init__(self):
        self.place = 0

    def reset(self):
        self.place = 0
        return self.place

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]

    def step(self, action):
        self.place = max(0, min(self.size - 1, self.place + (1 if action else -1)))
        done = self.place == self.size - 1
        return self.place, 1.0 if done else -0.01, done


def onehot(places):
    return np.eye(Chain.size, dtype=np.float32)[np.array(places)]


class Agent:
    def __init__(self):
        self.q = nn.SequentialCell(nn.Dense(Chain.size, 12), nn.Tanh(), nn.Dense(12, 2))
        self.opt = nn.Adam(self.q.trainable_params(), 0.01)
        self.memory = collections.deque(maxlen=60)
        self.epsilon = 0.9

    def act(self, place):
        if random.random() < self.epsilon:
            return random.randrange(2)
        return int(self.q(ms.Tensor(onehot([place]))).asnumpy().argmax())

    def state_dict(self):
        return {"memory": [list(item) for item in self.memory], "epsilon": self.epsilon}

    def load_state_dict(self, state):
        self.memory.clear()
        self.memory.extend(tuple(item) for item in state["memory"])
        self.epsilon = state["epsilon"]

    def loss(self, s, action, target):
        return (((self.q(s) * action).sum(1) - target) ** 2).mean()


agent, env = Agent(), Chain()
grad_fn = ms.value_and_grad(agent.loss, None, agent.opt.parameters)
ticks = ck.data.resumable([np.array([i]) for i in range(12)], epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([agent.q, agent.opt], ticks, agent=agent, env=env)
    manager.restore(state)
    for tick in ticks:
        for _ in range(4):
            place = env.place
            action = agent.act(place)
            after, reward, done = env.step(action)
            agent.memory.append((place, action, reward, after, done))
            if done:
                env.reset()
        s, a, rew, t, d = zip(*random.sample(list(agent.memory), min(8, len(agent.memory))))
        future = agent.q(ms.Tensor(onehot(t))).asnumpy().max(1)
        target = np.array(rew) + 0.9 * future * (1 - np.array(d))
        loss, grads = grad_fn(
            ms.Tensor(onehot(s)), ms.Tensor(np.eye(2, dtype=np.float32)[list(a)]), ms.Tensor(target.astype(np.float32))
        )
        agent.opt(grads)
        agent.epsilon = max(0.1, agent.epsilon * 0.97)
        manager.step(state)
    manager.save_final(state)
net = agent.q
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
