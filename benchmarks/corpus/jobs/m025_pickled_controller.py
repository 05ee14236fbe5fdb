# truth: exact
# class: attribute
# A controller with a deque, a Counter and a Decimal pickles its __dict__ into an array of bytes, which is its state_dict.

import os
import pickle
from collections import Counter, deque
from decimal import Decimal

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4325)


class Controller:
    def __init__(self):
        self.losses = deque(maxlen=6)
        self.classes = Counter()
        self.budget = Decimal("2.00")

    def rate(self, loss):
        self.losses.append(loss)
        spread = (max(self.losses) - min(self.losses)) / max(self.losses)
        cost = Decimal(f"{0.05 * (1 + spread):.2f}")
        if self.budget >= cost:
            self.budget -= cost
            return 0.05
        return 0.01

    def weights(self, labels):
        self.classes.update(labels.tolist())
        total = sum(self.classes.values())
        return np.array([total / (3 * self.classes[label]) for label in labels.tolist()], np.float32)

    def state_dict(self):
        return {"pickled": np.frombuffer(pickle.dumps(self.__dict__), np.uint8).copy()}

    def load_state_dict(self, state):
        self.__dict__.update(pickle.loads(np.asarray(state["pickled"], np.uint8).tobytes()))


r = np.random.RandomState(25)
rows = []
for _ in range(8):
    label = r.choice(3, 8, p=[0.6, 0.3, 0.1])
    rows.append((ms.Tensor((r.randn(8, 4) + label[:, None]).astype(np.float32)), label))
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 3))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.8)
hot = np.eye(3, dtype=np.float32)


def forward(x, y, w):
    return (((ops.softmax(net(x), -1) - y) ** 2).sum(-1) * w).mean()


gradients = ms.value_and_grad(forward, None, net.trainable_params())
controller = Controller()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, controller=controller)
    manager.restore(state)
    for x, label in batches:
        weights = controller.weights(np.asarray(label))
        loss, grads = gradients(x, ms.Tensor(hot[label]), ms.Tensor(weights))
        manager.fence()
        ops.assign(opt.learning_rate, ms.Tensor(controller.rate(float(loss.asnumpy())), ms.float32))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
