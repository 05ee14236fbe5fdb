"""Generators that belong to a sample: pure, distinct, and the same for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptkit.data import sample_rng
from ckptkit.mindspore.data.sampling import epoch_order

anything = st.integers(min_value=0, max_value=2**200)


@given(anything, anything, anything)
def test_the_same_numbers_give_the_same_stream(seed, epoch, index):
    np.random.seed(1)
    before = sample_rng(seed, epoch, index).bytes(32)
    np.random.seed(2)
    assert sample_rng(seed, epoch, index).bytes(32) == before


@given(st.lists(st.tuples(anything, anything, anything), unique=True, min_size=2, max_size=20))
def test_distinct_numbers_give_distinct_streams(triples):
    assert len({sample_rng(*triple).bytes(16) for triple in triples}) == len(triples)


def test_numbers_do_not_run_into_each_other():
    triples = [(0, 1, 2**32), (0, 2**32, 1), (2**32, 0, 1), (1, 12, 3), (1, 1, 23), (11, 2, 3), (0, 0, 0), (0, 0, 1)]
    assert len({sample_rng(*triple).bytes(16) for triple in triples}) == len(triples)


def test_streams_are_those_of_stored_runs():
    assert sample_rng(7, 2, 11).bit_generator.random_raw(2).tolist() == RAW
    assert epoch_order(8, 7, 2).tolist() == ORDER


RAW = [15989104381840726999, 7078718186923323812]
ORDER = [0, 2, 4, 6, 5, 7, 3, 1]


@given(st.integers(1, 300), anything, anything)
def test_an_order_is_a_permutation(count, seed, epoch):
    assert sorted(epoch_order(count, seed, epoch).tolist()) == list(range(count))


def test_numpy_integers_are_integers():
    assert sample_rng(np.int64(7), np.uint8(2), np.int32(11)).bytes(8) == sample_rng(7, 2, 11).bytes(8)


@pytest.mark.parametrize("wrong", [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
def test_negative_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match="must not be negative"):
        sample_rng(*wrong)


def test_a_float_is_refused():
    with pytest.raises(TypeError):
        sample_rng(0, 0, 1.0)
