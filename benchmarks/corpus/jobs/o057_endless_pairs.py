# truth: exact
# class: random
# Skip-gram with negative sampling on an endless stream: the number of the step says which window comes, from the restored one on, and the negatives are drawn by a generator given by name.

import itertools
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3557)
WORDS, WIDTH, BATCH, NEGATIVES, STEPS = 25, 6, 8, 4, 42


class SkipGram(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)

    def construct(self, word, context, negative):
        w = self.inner(word)
        good = ops.sigmoid((w * self.outer(context)).sum(-1))
        bad = ops.sigmoid((w.expand_dims(1) * self.outer(negative)).sum(-1))
        return ((1 - good) ** 2).mean() + (bad**2).mean()


r = np.random.RandomState(57)
text = np.cumsum(r.randint(-2, 4, 400)) % WORDS
frequency = np.bincount(text, minlength=WORDS) ** 0.75
frequency = frequency / frequency.sum()


def window(step):
    at = (step * BATCH + np.arange(BATCH)) % (len(text) - 2) + 1
    side = np.where(np.arange(BATCH) % 2 == 0, -1, 1)
    return text[at].astype(np.int32), text[at + side].astype(np.int32)


model = SkipGram()
optimizer = nn.Adam(model.trainable_params(), 0.05)
gradients = ms.value_and_grad(model, None, model.trainable_params())
rng = np.random.default_rng(3557)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([model, optimizer], rng=rng)
    point = manager.restore(state)
    for step in itertools.count(point.batches_delivered):
        if step == STEPS:
            break
        word, context = window(step)
        negative = rng.choice(WORDS, (BATCH, NEGATIVES), p=frequency).astype(np.int32)
        loss, grads = gradients(ms.Tensor(word), ms.Tensor(context), ms.Tensor(negative))
        optimizer(grads)
        state.count_delivered()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
