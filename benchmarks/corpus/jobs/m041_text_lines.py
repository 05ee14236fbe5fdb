# truth: exact
# class: file
# Each start writes the same text file; TextFileDataset, a whitespace tokenizer, a vocabulary and padding make rows of numbers, shuffled in a buffer. GRAPH, K = 2.

import os

import mindspore as ms
import mindspore.dataset as ds
import mindspore.dataset.text as text
import mindspore.dataset.transforms as transforms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4341)
WORDS = "the a red blue old cat dog bird sees hears finds small house tree".split()
LENGTH = 7


def write_corpus(path):
    r = np.random.RandomState(41)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(32):
            print(" ".join(r.choice(WORDS, r.randint(3, 9))), file=file)


class NextWord(nn.Cell):
    def __init__(self, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 6)
        self.body = nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, vocabulary))

    def construct(self, tokens):
        logits = self.body(self.embedding(tokens[:, :-1]))
        return ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


path = os.path.abspath("corpus.txt")
write_corpus(path)
vocabulary = text.Vocab.from_list(WORDS, special_tokens=["<pad>", "<unk>"])
data = ds.TextFileDataset([path], num_parallel_workers=1, shuffle=False)
data = data.map(
    [text.WhitespaceTokenizer(), text.Lookup(vocabulary, "<unk>"), transforms.PadEnd([LENGTH], 0)],
    input_columns=["text"],
    num_parallel_workers=1,
)
data = data.shuffle(16).batch(4, num_parallel_workers=1)
net = NextWord(len(WORDS) + 2)
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=2)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, data)
os._exit(0)
