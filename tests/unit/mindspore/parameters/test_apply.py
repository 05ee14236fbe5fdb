"""From stored bits to parameters: the bits arrive, everywhere."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from support.training import MODES, accumulation_cell, adam, begin_process, samples, tensors

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
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_and_shape_arrives_bit_by_bit(dtype, shape, mode):
    begin_process(mode=mode)
    bits = any_bits(dtype, shape)
    zeros = tensor_of(np.zeros(shape, DTYPES[dtype]), dtype)
    parameter = ms.Parameter(zeros, name="p")
    expected = bits.tobytes()
    assign(parameter, bits, dtype)
    back = leaf_of("p", parameter.asnumpy(), role="weights")
    assert (back.dtype, back.shape, back.array.tobytes()) == (dtype, shape, expected)
    assert parameter.dtype == zeros.dtype
    assert bits.tobytes() == expected


def test_parameter_holds_a_copy_of_its_own():
    bits = np.arange(6, dtype=np.float32)
    parameter = ms.Parameter(ms.Tensor(np.zeros(6, np.float32)), name="p")
    assign(parameter, bits, "F32")
    bits[:] = 7
    assert parameter.asnumpy().tolist() == [0, 1, 2, 3, 4, 5]


def test_read_only_bits_are_taken():
    bits = np.frombuffer(np.arange(6, dtype=np.float32).tobytes(), np.float32)
    parameter = ms.Parameter(ms.Tensor(np.zeros(6, np.float32)), name="p")
    assign(parameter, bits, "F32")
    assert parameter.asnumpy().tobytes() == bits.tobytes()


def momentum(weights):
    return nn.Momentum(weights, 0.1, 0.9)


def batch(seed):
    values = samples(4, seed)
    return ms.Tensor(values["x"]), ms.Tensor(values["y"])


@pytest.mark.covering(1)
@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("optimizer", [adam, momentum])
@pytest.mark.parametrize("calls_before", [0, 3])
def test_values_are_seen_by_what_is_compiled_already(mode, optimizer, calls_before):
    begin_process(mode=mode)
    whole = accumulation_cell(2, optimizer=optimizer).set_train()
    for seed in range(4):
        whole(*batch(seed))
    halfway = [(one.name, np.array(one.asnumpy())) for one in whole.get_parameters()]
    counters = whole.counters
    for seed in range(4, 8):
        whole(*batch(seed))

    begin_process(mode=mode)
    resumed = accumulation_cell(2, optimizer=optimizer).set_train()
    for seed in range(calls_before):
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


@pytest.mark.parametrize("live", [True, False])
def test_what_is_not_stored_becomes_zero(monkeypatch, live):
    monkeypatch.setattr("ckptkit.mindspore.parameters.apply.can_be_live", lambda: live)
    parameter = ms.Parameter(ms.Tensor(np.ones((2, 3), np.float32)), name="w")
    seen = {"w": leaf_of("w", parameter.asnumpy(), role="weights")}
    RestoreTarget({"w": parameter}, {}, seen, ()).zero("w")
    assert not parameter.asnumpy().any()


def test_memory_in_another_order_is_not_written():
    parameter = ms.Parameter(ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)), name="w")
    seen = parameter.asnumpy()
    assert live_bytes(parameter, seen).nbytes == 24
    assert live_bytes(parameter, seen.T) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_can_be_assigned_after_failed_step(dtype):
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
    parameter = ms.Parameter(ms.Tensor(np.ones((2, 2)), getattr(ms, dtype)), name="w")
    bits = np.array([[1, 2], [3, 4]], np.uint16 if dtype == "bfloat16" else np.float32)
    assign(parameter, bits, "BF16" if dtype == "bfloat16" else "F32")
    assert parameter.asnumpy().tobytes() == bits.tobytes()
    assert parameter.requires_grad
