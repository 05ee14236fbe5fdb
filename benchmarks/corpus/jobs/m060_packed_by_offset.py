# truth: exact
# class: data
# Language model on packed windows: window n is tokens n*L to (n+1)*L of one long stream, found by searchsorted in the documents' offsets; GRAPH, K = 3, weights.

import functools
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4360)
VOCABULARY, LENGTH, WINDOWS, END = 9, 8, 32, 0


class PackedWindows:
    """documents one after the other, with an end token behind each; nothing moves along, every window is looked up"""

    def __init__(self, lengths):
        self.offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths) + 1)])
        self.read = 0

    @functools.lru_cache(maxsize=8)
    def document(self, number):
        self.read += 1
        rng = np.random.default_rng([60, number])
        length = int(self.offsets[number + 1] - self.offsets[number] - 1)
        return np.append(1 + np.cumsum(rng.integers(0, 3, length)) % (VOCABULARY - 1), END)

    def __len__(self):
        return WINDOWS

    def __getitem__(self, n):
        begin, end = int(n) * LENGTH, (int(n) + 1) * LENGTH + 1
        first = int(np.searchsorted(self.offsets, begin, side="right")) - 1
        last = int(np.searchsorted(self.offsets, end, side="left"))
        tokens = np.concatenate([self.document(d) for d in range(first, last)])
        tokens = tokens[begin - self.offsets[first] :][: LENGTH + 1].astype(np.int32)
        return tokens[:-1], tokens[1:], (tokens[:-1] != END).astype(np.float32)


class LanguageModel(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6)
        self.body = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, VOCABULARY))
        self.hot = ms.Tensor(np.eye(VOCABULARY, dtype=np.float32))

    def construct(self, now, then, weight):
        share = ops.softmax(self.body(self.embedding(now)), -1)
        error = ((share - ops.gather(self.hot, then, 0)) ** 2).sum(-1)
        return (error * weight).sum(), weight.sum()


lengths = np.random.default_rng(60).integers(3, 20, 40)
windows = PackedWindows(lengths)
data = ds.GeneratorDataset(
    windows, ["now", "then", "weight"], shuffle=True, num_parallel_workers=1, python_multiprocessing=False
).batch(4)
net = LanguageModel()
cell = ck.AccumulationTrainCell(
    net, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=3, normalize="weights", remainder="flush"
)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, data)
print(f"{windows.read} documents were read")
os._exit(0)
