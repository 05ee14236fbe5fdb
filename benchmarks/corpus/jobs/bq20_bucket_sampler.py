# truth: exact
# class: data

import os
import random

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
ms.set_seed(9)


class BucketBatches:
    """Batches of sentences of about the same length, padded; other batches in each epoch."""

    def __init__(self, sentences, labels, batch_size, seed=0):
        self.sentences, self.labels, self.batch_size = sentences, labels, batch_size
        self.random = random.Random(seed)

    def __iter__(self):
        order = sorted(range(len(self.sentences)), key=lambda i: (len(self.sentences[i]), self.random.random()))
        chunks = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        self.random.shuffle(chunks)
        for chunk in chunks:
            yield self.collate(chunk)

    def collate(self, chunk):
        longest = max(len(self.sentences[i]) for i in chunk)
        ids = np.zeros((len(chunk), longest), np.int32)
        for row, i in enumerate(chunk):
            ids[row, : len(self.sentences[i])] = self.sentences[i]
        return Tensor(ids), Tensor((ids > 0).astype(np.float32)), Tensor(self.labels[chunk])


class Bag(nn.Cell):
    def __init__(self, vocab, dim, classes):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, dim), nn.Dense(dim, classes)

    def construct(self, ids, mask):
        e = self.embed(ids) * mask.expand_dims(-1)
        return self.head(e.sum(1) / mask.sum(1, keepdims=True))


rng = np.random.default_rng(0)
sentences = [rng.integers(1, 50, rng.integers(3, 12)) for _ in range(120)]
labels = np.array([int(s.mean() > 25) for s in sentences], np.int32)
net = Bag(50, 8, 2)
opt = nn.LazyAdam(net.trainable_params(), 0.02)
criterion = nn.CrossEntropyLoss()
grad_fn = ms.value_and_grad(lambda i, m, y: criterion(net(i, m), y), None, opt.parameters)
loader = BucketBatches(sentences, labels, 10, seed=13)
run = ck.loop(
    ROOT, loader, epochs=3, train=[net, opt], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
)
for ids, mask, y in run:
    number = run.step
    loss, grads = grad_fn(ids, mask, y)
    opt(grads)
    if number % 12 == 0:
        print(number, float(loss), ids.shape)
os._exit(0)
