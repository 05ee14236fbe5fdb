"""Networks that keep something in parameters, share it, or are changed in mid run."""

from __future__ import annotations

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck
from exactness.jobs.parts import (
    BATCH,
    CLASSES,
    EPOCHS,
    FEATURES,
    SAMPLES,
    K,
    accumulating,
    adam,
    slices,
)
from exactness.jobs.run import job


class Remembering(nn.Cell):
    """A recurrent cell whose state goes on from batch to batch."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(FEATURES, 6), nn.Dense(6, CLASSES)
        self.state = ms.Parameter(ops.zeros((BATCH, 6)), name="state", requires_grad=False)

    def construct(self, x, y):
        state = self.cell(x, self.state + 0.0)
        loss = ops.cross_entropy(self.head(state), y)
        return ops.depend(loss, ops.assign(self.state, ops.stop_gradient(state)))


@job("graph")
def memory_kept_between_batches(run):
    run.train(accumulating(Remembering()), EPOCHS, slices())


class Tied(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.bias = ms.Parameter(ops.zeros(9), name="bias")

    def construct(self, x, y):
        logits = ops.matmul(ops.tanh(self.embed(x)), self.embed.embedding_table.T) + self.bias
        return ops.cross_entropy(logits, y)


@job("graph")
def embedding_tied_to_the_output(run):
    x = np.random.default_rng(0).integers(0, 9, SAMPLES, np.int32)
    run.train(accumulating(Tied()), EPOCHS, ds.NumpySlicesDataset({"x": x, "y": (x + 1) % 9}).batch(BATCH))


class Tokens(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 6, padding_idx=0), nn.Dense(6, 9)

    def construct(self, x, y):
        mask = (y != 0).astype(ms.float32)
        logits = self.head(ops.tanh(self.embed(x))).reshape(-1, 9)
        loss = ops.cross_entropy(logits, y.reshape(-1), reduction="none").reshape(y.shape)
        return (loss * mask).sum(), mask.sum()


@job("graph")
def means_over_tokens_with_padding(run):
    x = np.random.default_rng(1).integers(0, 9, (SAMPLES, 5), np.int32)
    loss = Tokens()
    cell = ck.AccumulationTrainCell(loss, adam(loss), K, normalize="weights", clip_norm=0.5, remainder="drop")
    run.train(cell, EPOCHS, ds.NumpySlicesDataset({"x": x, "y": np.roll(x, -1, 1)}, shuffle=True).batch(BATCH))
