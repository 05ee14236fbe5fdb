"""Equal bits have one text in every process, and other bits another one; reading advances nothing."""

from __future__ import annotations

import collections
import json
import pathlib
import random

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from support.process import python
from unit.mindspore.observe.test_packing import Ident, Phase

from ckptkit.mindspore.observe.value_kinds import Known, described, text_of


def values():
    advanced = [np.random.default_rng(1), random.Random(1), np.random.RandomState(1), np.random.PCG64(4)]
    advanced[0].random(), advanced[1].random(), advanced[2].random_sample(), advanced[3].random_raw()
    return [
        *(None, False, True, 0, 1, 2**70, 10**5000, 0.0, -0.0, 1.0, float("nan"), float("inf"), 1j, "", "1", b"", b"1"),
        *("x" * 300, "x" * 299 + "y", b"x" * 300, np.float32(1), np.float64(1), np.int64(1), np.bool_(True)),
        *(Phase.WARM, Phase.MAIN, Ident(1), pathlib.Path("a"), pathlib.PurePosixPath("a")),
        *({1}, {1, 2}, {"a", "b", "c"}, frozenset({1}), {(1, "a")}, {(1, "b")}),
        *(np.arange(6, dtype="f4"), np.arange(6, dtype="f8"), np.arange(6, dtype="f4").reshape(2, 3)),
        *(np.zeros((1, 1)), np.zeros(1), np.array([[np.nan]]), np.zeros(0), np.zeros((0, 2))),
        *(ms.Tensor([1.0]), ms.Tensor([2.0]), ms.Tensor([1]), ms.Tensor([1.0], ms.bfloat16)),
        *(np.random.default_rng(2), random.Random(1), np.random.RandomState(1), np.random.PCG64(3), *advanced),
        *(np.array("2020", "M8[D]"), np.array(["a", "b"])),
    ]


def texts():
    return [text_of(value) for value in values()]


def test_no_two_values_have_one_text_and_reading_them_changes_none():
    held = values()
    first = [text_of(value) for value in held]
    assert first == [text_of(value) for value in held]
    assert None not in first
    assert [text for text, count in collections.Counter(first).items() if count > 1] == []


def test_texts_are_equal_in_another_process_with_other_hashes():
    code = f"import json; from {__name__} import texts; print(json.dumps(texts()))"
    done = python("-c", code, environment={"PYTHONHASHSEED": "7"})
    assert json.loads(done.stdout.splitlines()[-1]) == json.loads(json.dumps(texts()))


@pytest.mark.parametrize("kind", [np.array, ms.Tensor])
def test_a_large_array_is_read_by_a_sample(kind):
    before = np.zeros(1 << 20, np.float32)  # 4 MiB: each fourth element is read
    every, unread = before.copy(), before.copy()
    every += 1
    unread[1] = 1
    assert text_of(kind(every)) != text_of(kind(before))
    assert text_of(kind(unread)) == text_of(kind(before))


def test_a_tensor_without_data_or_above_64_mib_is_not_read():
    value = ms.Tensor(shape=(3,), dtype=ms.float32, init="ones")
    assert text_of(value) == "tensor Float32(3,)"
    assert value.has_init


@pytest.mark.parametrize("value", [nn.Dense(1, 1), [[]], ([],), {"a": []}, lambda: 0, iter([])])
def test_what_has_no_text_of_its_own_has_parts(value):
    assert described(value, Known())[1]
