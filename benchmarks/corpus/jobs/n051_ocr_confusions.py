# truth: exact
# class: data
# OCR of rendered words: a confusion matrix, the best error rate so far and a heap of the worst words are kept for tables; words and blots come from (seed, epoch, number). GRAPH, K = 2.

import heapq
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4451)
GLYPHS = ["111101101101111", "010110010010111", "111001111100111", "101101111001001", "111100111101111"]
FONT = np.array([[int(bit) for bit in glyph] for glyph in GLYPHS]).reshape(-1, 5, 3)
LETTERS, BATCH, CLASSES = 3, 6, 5


def render(word, rng):
    image = np.concatenate([np.pad(FONT[letter], ((0, 0), (0, 1))) for letter in word], 1).astype(np.float64)
    image = np.roll(image, int(rng.integers(-1, 2)), axis=0) * rng.uniform(0.6, 1.0)
    return image + rng.normal(0, 0.2, image.shape)


def make_batch(epoch, number):
    rng = np.random.default_rng([4451, epoch, number])
    words = rng.integers(0, len(FONT), (BATCH, LETTERS))
    return np.stack([render(word, rng) for word in words]).astype(np.float32), words


class Reader(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(
            nn.Flatten(), nn.Dense(5 * 4 * LETTERS, 16), nn.ReLU(), nn.Dense(16, LETTERS * CLASSES)
        )

    def construct(self, image):
        return ops.softmax(self.body(image).reshape(-1, LETTERS, CLASSES), -1)


class ReaderLoss(nn.Cell):
    def __init__(self, reader):
        super().__init__()
        self.reader = reader

    def construct(self, image, hot):
        return ((self.reader(image) - hot) ** 2).sum(-1).mean()


class Report:
    def __init__(self):
        self.confusions = np.zeros((len(FONT), len(FONT)), int)
        self.best, self.worst = 1.0, []

    def add(self, words, guessed, where):
        np.add.at(self.confusions, (words.ravel(), guessed.ravel()), 1)
        error = float((words != guessed).mean())
        self.best = min(self.best, error)
        heapq.heappush(self.worst, (-error, where))
        self.worst = heapq.nsmallest(3, self.worst)

    def show(self):
        print(self.confusions)
        print(f"best batch {self.best:.2f}; worst:", [f"{where} {-error:.2f}" for error, where in self.worst])


reader = Reader()
loss = ReaderLoss(reader)
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.01), accumulation_steps=2).set_train()
report = Report()
batches = ck.data.resumable(list(range(8)), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for number in batches:
        images, words = make_batch(batches.epoch, int(number))
        cell(ms.Tensor(images), ms.Tensor(np.eye(len(FONT), dtype=np.float32)[words]))
        guessed = reader(ms.Tensor(images)).asnumpy().argmax(-1)
        report.add(words, guessed, f"{batches.epoch}/{int(number)}")
        manager.step(state)
    manager.save_final(state)
report.show()
os._exit(0)
