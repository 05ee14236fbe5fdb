"""The process-wide generators: taken without advancing them, put back whole."""

import random

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn, ops
from support.training import begin_process, disturb, rng_digest

from ckptkit.core.state_encoding import decode_tree, encode_tree
from ckptkit.mindspore.rng import (
    capture_host_rng,
    capture_rng,
    host_rng_drawn,
    restore_rng,
    seed_operators,
    undisturbed,
    words_drawn_unseeded,
)


def draws():
    ones = ms.Tensor(np.ones(64, np.float32))
    return (
        random.random(),
        random.gauss(0, 1),
        np.random.rand(3).tobytes(),
        np.random.normal(),  # keeps a second number back
        ops.dropout(ones, p=0.5).asnumpy().tobytes(),
        ops.uniform((8,), ms.Tensor(0.0), ms.Tensor(1.0), seed=3).asnumpy().tobytes(),
        ops.standard_normal((8,)).asnumpy().tobytes(),
    )


def test_restoring_gives_the_same_draws():
    """From what was stored, too; it holds the state of the moment at which it was taken."""
    draws()
    before = rng_digest()
    leaves = []
    state = capture_rng()
    assert rng_digest() == before
    stored = encode_tree(capture_rng(), "rng", leaves)
    first, second = draws(), draws()
    assert all(one != other for one, other in zip(first, second, strict=True))
    for again in (state, decode_tree(stored, {leaf.name: leaf.array for leaf in leaves})):
        disturb()
        restore_rng(again)
        assert rng_digest() == before
        assert (draws(), draws()) == (first, second)


def test_only_a_seed_that_was_set_stays():
    ms.set_seed(0)
    before = rng_digest()
    seed_operators()
    assert rng_digest() == before
    begin_process(seed=None)
    state, before = capture_rng(), ms.get_rng_state().asnumpy().tobytes()
    ms.set_seed(3)
    ms.manual_seed(12345)
    ops.dropout(ms.Tensor(np.ones(4, np.float32)), p=0.5)
    assert ms.get_rng_state().asnumpy().tobytes() != before
    restore_rng(state)
    assert (ms.get_seed(), capture_rng()["mindspore"]["kernel_seeds"]) == (None, [])
    assert ms.get_rng_state().asnumpy().tobytes() == before


def test_every_draw_of_the_process_is_seen():
    for draw, drawn in [
        (lambda: None, set()),
        (random.random, {"python"}),
        (np.random.random, {"numpy"}),
        (lambda: np.random.random(312), {"numpy"}),  # all that was generated at once: the place is the same again
        (np.random.normal, {"numpy"}),  # the one that was kept back
    ]:
        np.random.seed(3)
        np.random.normal()
        before = capture_host_rng()
        draw()
        assert host_rng_drawn(before) == drawn, draw


def test_undisturbed_protects_python_and_numpy():
    draws()
    before = rng_digest()

    def seed_and_fail():
        with undisturbed():
            ds.config.set_seed(77)
            assert rng_digest() != before  # it does seed both
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        seed_and_fail()
    assert (rng_digest(), ds.config.get_seed()) == (before, 77)


def test_draws_without_a_seed_are_counted(unseeded):
    """Only a generator that nobody has seeded still has what it was made of; this fails if NumPy keeps it longer."""
    for name, draw, words in [
        ("nothing", lambda: None, 0),
        ("initializers", lambda: nn.Dense(3, 2), 2 + 2),  # weight and bias
        ("numbers", lambda: np.random.random_sample(5000), 10000),
        ("bytes", lambda: np.random.bytes(4 * 700_000), 700_000),
        ("more than is counted", lambda: np.random.bytes(2**26 + 2**23), 2**24),
        ("NumPy's seed", lambda: np.random.seed(3), 0),
        ("MindSpore's seed", lambda: ms.set_seed(3), 0),
        ("seed of the data", lambda: ds.config.set_seed(3), 0),
    ]:
        unseeded()
        draw()
        after = np.random.get_state(legacy=False)
        assert words_drawn_unseeded() == words, name
        assert not host_rng_drawn({"python": random.getstate(), "numpy": after}), name
        np.random.bytes(40)
        assert words_drawn_unseeded() == words, "what the first call saw is before the restore"
