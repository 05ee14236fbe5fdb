# truth: differs
# class: attribute

import os
import random
from collections import deque

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]


class CartLine:
    """A point on a line that has to be kept near 0."""

    def reset(self):
        self.position, self.speed = np.random.uniform(-1, 1), 0.0
        return np.array([self.position, self.speed], np.float32)

    def step(self, action):
        self.speed += 0.2 if action else -0.2
        self.position += 0.1 * self.speed
        return np.array([self.position, self.speed], np.float32), -abs(self.position), abs(self.position) > 2


class Agent:
    def __init__(self, eps_start=0.9, eps_end=0.05, eps_decay=0.93):
        self.policy = nn.SequentialCell(nn.Dense(2, 16), nn.Tanh(), nn.Dense(16, 2))
        self.optimizer = nn.Adam(self.policy.trainable_params(), 0.01)
        self.memory = deque(maxlen=200)
        self.eps_start, self.eps_end, self.eps_decay = eps_start, eps_end, eps_decay
        self.episodes = 0
        self.grad_fn = ms.value_and_grad(self.loss, None, self.optimizer.parameters)

    @property
    def epsilon(self):
        return max(self.eps_end, self.eps_start * self.eps_decay**self.episodes)

    def act(self, obs):
        if random.random() < self.epsilon:
            return random.randrange(2)
        return int(self.policy(Tensor(obs[None])).asnumpy().argmax())

    def loss(self, obs, action, ret):
        logp = ops.log_softmax(self.policy(obs))
        return -((logp * action).sum(-1) * ret).mean()

    def learn(self, size=16):
        sample = random.sample(list(self.memory), min(size, len(self.memory)))
        obs, action, ret = (np.stack(c).astype(np.float32) for c in zip(*sample))
        loss, grads = self.grad_fn(Tensor(obs), Tensor(np.eye(2, dtype=np.float32)[action.astype(int)]), Tensor(ret))
        self.optimizer(grads)
        return float(loss)

    def state_dict(self):
        return {"memory": [(o.tolist(), a, float(r)) for o, a, r in self.memory]}

    def load_state_dict(self, state):
        self.memory.clear()
        self.memory.extend((np.array(o, np.float32), a, r) for o, a, r in state["memory"])


def run_episode(env, agent, gamma=0.95):
    obs, done, trajectory = env.reset(), False, []
    while not done and len(trajectory) < 12:
        action = agent.act(obs)
        following, reward, done = env.step(action)
        trajectory.append((obs, action, reward))
        obs = following
    ret = 0.0
    for obs, action, reward in reversed(trajectory):
        ret = reward + gamma * ret
        agent.memory.append((obs, action, ret))
    agent.episodes += 1


def main():
    ms.set_seed(1)
    random.seed(1)
    np.random.seed(1)
    env, agent = CartLine(), Agent()
    episodes = ck.data.resumable(list(range(36)), epochs=1)
    with ck.CheckpointManager(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
        state = ck.StateManager([agent.policy, agent.optimizer], episodes, agent=agent)
        manager.restore(state)
        for _ in episodes:
            run_episode(env, agent)
            agent.learn()
            manager.step(state)
        manager.save_final(state)


if __name__ == "__main__":
    main()
