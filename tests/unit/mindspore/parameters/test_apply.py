"""From stored bits to parameters: the bits arrive, everywhere."""

from __future__ import annotations

import itertools

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from support.training import MODES, accumulation_cell, begin_process, samples, tensors

from ckptkit.core.tensors import DTYPES, leaf_of
from ckptkit.mindspore.parameters.apply import RestoreTarget, assign, live_bytes, tensor_of

SHAPES = [(), (1,), (3,), (2, 0), (5, 7)]


def any_bits(dtype, shape):
    """Random bits: NaN payloads, infinities, subnormal numbers and signed zeros among them."""
    kind = DTYPES[dtype]
    size = int(np.prod(shape)) * kind.itemsize
    octets = np.random.default_rng(len(shape)).integers(0, 2 if dtype == "BOOL" else 256, size, dtype=np.uint8)
    return octets.view(kind).reshape(shape)


@pytest.mark.parametrize("mode", list(MODES))
def test_every_dtype_and_shape_arrives_bit_by_bit(mode):
    begin_process(mode=mode)
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        bits = any_bits(dtype, shape)
        zeros = tensor_of(np.zeros(shape, DTYPES[dtype]), dtype)
        parameter = ms.Parameter(zeros, name="p")
        expected = bits.tobytes()
        assign(parameter, bits, dtype)
        bits[...] = 1
        back = leaf_of("p", parameter.asnumpy(), role="weights")
        assert (back.dtype, back.shape, back.array.tobytes()) == (dtype, shape, expected)
        assert parameter.dtype == zeros.dtype, dtype
        read_only = np.frombuffer(expected, DTYPES[dtype]).reshape(shape)
        assign(parameter, read_only, dtype)
        assert parameter.asnumpy().tobytes() == expected, (dtype, shape)


def batch(seed):
    values = samples(4, seed)
    return ms.Tensor(values["x"]), ms.Tensor(values["y"])


@pytest.mark.parametrize("mode", list(MODES))
def test_values_are_seen_by_what_is_compiled_already(mode):
    begin_process(mode=mode)
    whole = accumulation_cell(2).set_train()
    for seed in range(4):
        whole(*batch(seed))
    halfway = [(one.name, np.array(one.asnumpy())) for one in whole.get_parameters()]
    counters = whole.counters
    for seed in range(4, 8):
        whole(*batch(seed))

    begin_process(mode=mode)
    resumed = accumulation_cell(2).set_train()
    for seed in range(3):
        resumed(*batch(99 + seed))
    views = {one.name: one.asnumpy() for one in resumed.get_parameters()}
    there = resumed.parameters_dict()
    for name, bits in halfway:
        assign(there[name], bits, leaf_of(name, bits, role="weights").dtype)
    resumed.load_counters(counters)
    for seed in range(4, 8):
        resumed(*batch(seed))
    assert tensors(resumed) == tensors(whole)
    # In place: whoever holds the memory still sees the parameter.
    assert {name: view.tobytes() for name, view in views.items()} == tensors(whole)


def test_what_is_not_stored_becomes_zero(monkeypatch):
    for live in (True, False):
        monkeypatch.setattr("ckptkit.mindspore.parameters.apply.can_be_live", lambda live=live: live)
        parameter = ms.Parameter(ms.Tensor(np.ones((2, 3), np.float32)), name="w")
        seen = {"w": leaf_of("w", parameter.asnumpy(), role="weights")}
        RestoreTarget({"w": parameter}, {}, seen, ()).zero("w")
        assert not parameter.asnumpy().any(), live


def test_memory_in_another_order_is_not_written():
    parameter = ms.Parameter(ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)), name="w")
    seen = parameter.asnumpy()
    assert live_bytes(parameter, seen).nbytes == 24
    assert live_bytes(parameter, seen.T) is None


def test_weights_can_be_assigned_after_failed_step():
    """PYNATIVE still records gradients then and refuses in-place writes to what requires them."""
    ms.set_context(mode=ms.PYNATIVE_MODE)

    class Breaking(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(3, 2)

        def construct(self, x):
            self.dense(x)
            raise KeyError("boom")

    network = Breaking()
    with pytest.raises(KeyError):
        ms.value_and_grad(network, None, network.trainable_params())(ms.Tensor(np.ones((2, 3), np.float32)))
    for dtype, kind, name in ((ms.float32, np.float32, "F32"), (ms.bfloat16, np.uint16, "BF16")):
        parameter = ms.Parameter(ms.Tensor(np.ones((2, 2)), dtype), name="w")
        bits = np.array([[1, 2], [3, 4]], kind)
        assign(parameter, bits, name)
        assert parameter.asnumpy().tobytes() == bits.tobytes(), name
        assert parameter.requires_grad
