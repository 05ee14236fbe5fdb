# truth: differs
# class: attribute
# the replay memory (deque of transitions) is not stored; later updates sample from it

import os
import random
from collections import deque, namedtuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))

random.seed(3)
Transition = namedtuple("Transition", "state action reward")


class ReplayMemory(deque):
    def push(self, *args):
        self.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self, batch_size)


class Agent:
    def __init__(self):
        self.q = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 3))
        self.optimizer = nn.Adam(self.q.trainable_params(), 0.01)
        self.memory = ReplayMemory(maxlen=200)
        self.grad_fn = ms.value_and_grad(self.td_loss, None, self.optimizer.parameters)

    def td_loss(self, states, actions, rewards):
        return (((self.q(states) * actions).sum(1) - rewards) ** 2).mean()

    def act(self, states):
        return np.argmax(self.q(states).asnumpy(), axis=1)

    def optimize(self, batch_size=6):
        if len(self.memory) < batch_size:
            return None
        batch = Transition(*zip(*self.memory.sample(batch_size)))
        columns = (np.stack(c).astype(np.float32) for c in batch)
        loss, grads = self.grad_fn(*(Tensor(c) for c in columns))
        self.optimizer(grads)
        return loss


agent = Agent()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([agent.q, agent.optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        for s, a, r in zip(x.asnumpy(), agent.act(x), y.asnumpy()[:, 0]):
            agent.memory.push(s, np.eye(3)[a], r * (a - 1))
        agent.optimize()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
