# truth: differs
# class: attribute
# An asynchronous pipeline is simulated: each gradient is applied two steps after it was computed, and waits in a queue until then.

import os
import queue

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

DELAY = 2


class DelayedOptimizer:
    """Applies gradients with a delay, as the first stage of PipeDream sees it."""

    def __init__(self, optimizer, delay):
        self.optimizer = optimizer
        self.delay = delay
        self.pipe = queue.Queue()

    def push(self, grads):
        self.pipe.put(grads)
        if self.pipe.qsize() > self.delay:
            self.optimizer(self.pipe.get())


def make_rows(seed, n, bs):
    r = np.random.RandomState(seed)
    out = []
    for _ in range(n):
        x = r.uniform(-1, 1, (bs, 7)).astype(np.float32)
        out.append((ms.Tensor(x), ms.Tensor((x[:, :1] * x[:, 1:2]).astype(np.float32))))
    return out


def main():
    ms.set_seed(55)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = nn.SequentialCell(nn.Dense(7, 12), nn.LeakyReLU(0.1), nn.Dense(12, 1))
    loss_fn = nn.MSELoss()
    inner = nn.Momentum(net.trainable_params(), 0.1, 0.8)
    delayed = DelayedOptimizer(inner, DELAY)
    vg = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())
    batches = ck.data.resumable(make_rows(3, 10, 5), epochs=3)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager([net, inner], batches)
        manager.restore(state)
        for x, y in batches:
            loss, grads = vg(x, y)
            delayed.push(grads)
            manager.step(state, metrics={"loss": loss})
        manager.save_final(state)


if __name__ == "__main__":
    main()
    os._exit(0)
