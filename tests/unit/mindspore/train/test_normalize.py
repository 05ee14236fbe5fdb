"""``normalize``: whatever the micro-batches are, the update is that of the one large batch, to the bit."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from support.integers import WIDTH, Linear, Tokens, momentum, rows
from support.training import begin_process, tensors

import ckptkit as ck

EQUAL = [4, 4, 4, 4]  # samples of the micro-batches of a cycle
UNEQUAL = [8, 4, 2, 2]


@pytest.fixture(params=["pynative", pytest.param("graph", marks=pytest.mark.extended)], autouse=True)
def mode(request):
    begin_process(mode=request.param)


def split(sizes, *columns):
    ends = np.cumsum(sizes)
    return [
        tuple(ms.Tensor(column[end - size : end]) for column in columns) for size, end in zip(sizes, ends, strict=True)
    ]


def trained(network, sizes, columns, cycles=3, **options):
    """Weights and moments after ``cycles`` cycles over the same rows, cut into ``sizes``."""
    network = network()
    cell = ck.AccumulationTrainCell(network, momentum(network), len(sizes), **options).set_train()
    for _ in range(cycles):
        for batch in split(sizes, *columns):
            cell(*batch)
    assert cell.counters.updates == cycles
    return learned(cell)


def learned(cell):
    return {name: bits for name, bits in tensors(cell).items() if name in ("w", "moments.w", "global_step")}


def stock(network, columns, cycles=3):
    """The same by MindSpore's own cell, over one large batch."""
    cell = nn.TrainOneStepCell(network, momentum(network)).set_train()
    for _ in range(cycles):
        cell(*(ms.Tensor(column) for column in columns))
    return learned(cell)


def test_samples_make_the_large_batch_where_sizes_differ():
    columns = [rows(16)]
    large = stock(Linear(), columns)
    assert trained(Linear, EQUAL, columns) == large
    assert trained(Linear, UNEQUAL, columns, normalize="samples") == large
    assert trained(Linear, EQUAL, columns, normalize="samples") == large
    assert trained(Linear, UNEQUAL, columns) != large  # a mean of means is something else


class MeanOverTokens(Tokens):
    def construct(self, x, mask):
        total, count = super().construct(x, mask)
        return total / count


def test_token_weights_match_large_batch():
    mask = np.zeros(16, np.float32)
    mask[[0, 1, 2, 3, 8, 13, 14, 15]] = 1  # 4, 1, 1 and 2 tokens in four micro-batches of four
    columns = [rows(16), mask]
    large = stock(MeanOverTokens(), columns)
    assert trained(Tokens, EQUAL, columns, normalize="weights") == large
    assert trained(Tokens, [16], columns, normalize="weights") == large
    assert trained(MeanOverTokens, EQUAL, columns) != large  # the well-known error
    mask = np.zeros(16, np.float32)
    mask[[0, 5]] = 1 / 8  # they may sum to less than one
    columns = [rows(16), mask]
    assert trained(Tokens, EQUAL, columns, normalize="weights") == stock(MeanOverTokens(), columns)


def test_micro_batch_without_tokens_adds_nothing():
    """Its loss is zero."""
    mask = np.array([1, 1, 1, 1, 0, 0, 0, 0], np.float32)
    cell = ck.AccumulationTrainCell(network := Tokens(), momentum(network), 2, normalize="weights").set_train()
    (full, empty), x = split([4, 4], mask), rows(8)
    mean = float((x[:4] @ np.arange(WIDTH)).sum() / 4)
    assert cell(ms.Tensor(x[:4]), *full).asnumpy().tolist() == mean
    sums = tensors(cell)["accum.w"]
    assert cell(ms.Tensor(x[4:]), *empty).asnumpy().tolist() == 0
    assert cell.counters.updates == 1
    assert learned(cell)["w"] == stock(MeanOverTokens(), [x[:4], mask[:4]], 1)["w"]
    assert sums == x[:4].sum(0).tobytes()


def test_cycle_without_tokens_has_zero_gradients():
    cell = ck.AccumulationTrainCell(network := Tokens(), momentum(network), 2, normalize="weights").set_train()
    before = tensors(cell)["w"]
    for _ in range(2):
        cell(ms.Tensor(rows(4)), ms.Tensor(np.zeros(4, np.float32)))
    assert cell.updated
    assert cell.gradient_norm.asnumpy().tolist() == 0
    assert tensors(cell)["w"] == before


def test_weights_of_one_element_or_integers_work():
    class Counted(Tokens):
        def construct(self, x, mask):
            total, count = super().construct(x, mask)
            return total, count.reshape((1,)).astype(ms.int32)

    columns = [rows(8), np.ones(8, np.float32)]
    assert trained(Counted, [4, 4], columns, normalize="weights") == stock(MeanOverTokens(), columns)


def test_gradient_norm_is_of_mean_before_clipping():
    columns = [rows(16)]
    network = Linear()
    cell = ck.AccumulationTrainCell(network, momentum(network), 4, clip_norm=0.5).set_train()
    assert cell.gradient_norm is None
    for done, batch in enumerate(split(EQUAL, *columns), 1):
        cell(*batch)
        assert cell.updated == (done == 4)
    mean = columns[0].mean(0)
    assert cell.gradient_norm.asnumpy() == np.sqrt(np.square(mean).sum(dtype=np.float32))
    assert float(cell.gradient_norm.asnumpy()) > 0.5
    cell(*split(EQUAL, *columns)[0])
    assert not cell.updated
