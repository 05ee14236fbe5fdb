# truth: exact
# class: attribute
# A trainer with mixins keeps much (a heap of hard examples, histories, per-class accuracy, a clock), all of which is only printed; the step needs none of it.

import heapq
import os
import time
from collections import Counter, defaultdict, deque

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(360)


class ClockMixin:
    def after_step(self, info):
        super().after_step(info)
        self.ticks.append(time.monotonic())

    def report(self):
        spans = np.diff(self.ticks) if len(self.ticks) > 1 else np.zeros(1)
        return {**super().report(), "ms_per_step": round(1e3 * float(np.mean(spans)), 2)}


class HardExamplesMixin:
    def after_step(self, info):
        super().after_step(info)
        for number, value in zip(info["numbers"], info["errors"]):
            heapq.heappush(self.hard, (float(value), int(number)))
            if len(self.hard) > 5:
                heapq.heappop(self.hard)

    def report(self):
        return {**super().report(), "hard": [n for _, n in sorted(self.hard, reverse=True)]}


class AccuracyMixin:
    def after_step(self, info):
        super().after_step(info)
        for label, guess in zip(info["labels"], info["guesses"]):
            self.table[int(label)][bool(label == guess)] += 1

    def report(self):
        accuracy = {c: round(n[True] / sum(n.values()), 2) for c, n in sorted(self.table.items())}
        return {**super().report(), "accuracy": accuracy}


class Trainer:
    def __init__(self, net, opt):
        self.net, self.opt = net, opt
        self.ticks, self.hard, self.table = deque(maxlen=10), [], defaultdict(Counter)
        self.vg = ms.value_and_grad(self.forward, None, net.trainable_params(), has_aux=True)

    def forward(self, x, target):
        probs = ops.softmax(self.net(x), -1)
        return ((probs - target) ** 2).sum(-1).mean(), probs

    def step(self, numbers, x, labels):
        target = np.eye(3, dtype=np.float32)[labels]
        (loss, probs), grads = self.vg(ms.Tensor(x), ms.Tensor(target))
        self.opt(grads)
        probs = probs.asnumpy()
        errors = ((probs - target) ** 2).sum(1)
        self.after_step({"numbers": numbers, "errors": errors, "labels": labels, "guesses": probs.argmax(1)})

    def after_step(self, info): ...

    def report(self):
        return {}


class VerboseTrainer(ClockMixin, HardExamplesMixin, AccuracyMixin, Trainer):
    pass


r = np.random.RandomState(60)
labels = r.randint(0, 3, 48)
points = (2 * r.randn(3, 4)[labels] + r.randn(48, 4)).astype(np.float32)
rows = [(n, points[n], labels[n]) for n in np.arange(48).reshape(8, 6)]
net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 3))
trainer = VerboseTrainer(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([trainer.net, trainer.opt], batches)
    manager.restore(state)
    for batch in batches:
        trainer.step(*batch)
        manager.step(state)
        if batches.epoch == 2:
            print(trainer.report())
    manager.save_final(state)
os._exit(0)
