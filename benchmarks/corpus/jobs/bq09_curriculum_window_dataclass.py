# truth: differs
# class: attribute

import os
from collections import deque
from dataclasses import dataclass, field

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ROOT = os.environ["ROOT"]
ms.set_seed(2)


@dataclass
class Curriculum:
    level: int = 1
    top: int = 5
    threshold: float = 0.55
    window: deque = field(default_factory=lambda: deque(maxlen=4))

    def select(self, x, y, difficulty):
        keep = difficulty <= self.level
        return (x[keep], y[keep]) if keep.any() else (x, y)

    def report(self, loss):
        self.window.append(loss)
        if len(self.window) == self.window.maxlen and np.mean(self.window) < self.threshold and self.level < self.top:
            self.level += 1
            self.window.clear()


def load():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(240, 5)).astype(np.float32)
    difficulty = rng.integers(1, 6, 240)
    y = (x[:, :1] - 0.4 * x[:, 1:2] + 0.1 * difficulty[:, None] * rng.normal(size=(240, 1))).astype(np.float32)
    return [(x[i : i + 12], y[i : i + 12], difficulty[i : i + 12]) for i in range(0, 240, 12)]


def main():
    net = nn.Dense(5, 1)
    loss_fn = nn.MSELoss()
    opt = nn.SGD(net.trainable_params(), 0.1)
    step = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, opt.parameters)
    curriculum = Curriculum()
    batches = ck.data.resumable(load(), epochs=2)
    with ck.CheckpointManager(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
        state = ck.StateManager([net, opt], batches, curriculum=ck.attributes(curriculum, "level"))
        manager.restore(state)
        for x, y, difficulty in batches:
            x, y = curriculum.select(x, y, difficulty)
            loss, grads = step(Tensor(x), Tensor(y))
            opt(grads)
            curriculum.report(float(loss))
            manager.step(state)
        manager.save_final(state)


if __name__ == "__main__":
    main()
    os._exit(0)
