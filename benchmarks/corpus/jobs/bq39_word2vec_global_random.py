# truth: exact
# class: random

import os
import random
from collections import Counter

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SEED = 39
random.seed(SEED)
np.random.seed(SEED)
ms.set_seed(SEED)
WORDS = (
    "we train small models on small data and we train them again and again until the small models know the data " * 6
).split()


class SkipGram(nn.Cell):
    def __init__(self, vocab, dim=8):
        super().__init__()
        self.center, self.context = nn.Embedding(vocab, dim), nn.Embedding(vocab, dim)

    def construct(self, center, context, negative):
        c = self.center(center)
        good = ops.sigmoid((c * self.context(context)).sum(-1))
        bad = ops.sigmoid((c.expand_dims(1) * self.context(negative)).sum(-1))
        return ((1 - good) ** 2).mean() + (bad**2).mean()


class Corpus:
    def __init__(self, words, window=2):
        counts = Counter(words)
        self.words = sorted(counts)
        self.index = {w: i for i, w in enumerate(self.words)}
        frequency = np.array([counts[w] for w in self.words], float)
        self.keep = np.minimum(1.0, np.sqrt(0.05 * len(words) / frequency))
        self.noise = frequency**0.75 / (frequency**0.75).sum()
        ids = [self.index[w] for w in words]
        self.pairs = [
            (ids[i], ids[j])
            for i in range(len(ids))
            for j in range(max(0, i - window), min(len(ids), i + window + 1))
            if i != j
        ]

    def batch(self, size, negatives):
        chosen = []
        while len(chosen) < size:
            pair = random.choice(self.pairs)
            if random.random() < self.keep[pair[0]]:
                chosen.append(pair)
        chosen = np.array(chosen, np.int32)
        negative = np.random.choice(len(self.words), (size, negatives), p=self.noise).astype(np.int32)
        return Tensor(chosen[:, 0]), Tensor(chosen[:, 1]), Tensor(negative)


def main(steps=40):
    corpus = Corpus(WORDS)
    model = SkipGram(len(corpus.words))
    optimizer = nn.Adagrad(model.trainable_params(), learning_rate=0.2)
    train_step = nn.TrainOneStepCell(model, optimizer).set_train()
    total = 0.0
    run = ck.loop(
        ROOT,
        range(steps),
        epochs=1,
        train=train_step,
        save=ck.SaveEvery(micro_steps=5),
        saving=ck.Saving(when_busy="wait"),
    )
    for _ in run:
        step = run.step
        loss = train_step(*corpus.batch(16, 4))
        total += float(loss)
        if step % 10 == 9:
            print(f"step {step + 1} loss {total / 10:.4f}")
            total = 0.0


if __name__ == "__main__":
    main()
