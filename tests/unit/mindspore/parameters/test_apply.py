"""From stored bits to parameters: the bits arrive, everywhere, also of the part that a rank holds."""

import itertools
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from support.training import MODES, accumulation_cell, begin_process, samples, tensors

import ckptkit as ck
from ckptkit.core.placement import Box
from ckptkit.core.tensors import DTYPES, leaf_of
from ckptkit.errors import CorruptCheckpointError, StateMismatchError
from ckptkit.mindspore.parameters.apply import assign, live_bytes, tensor_of

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


@pytest.mark.parametrize("mode", list(MODES))
def test_values_are_seen_by_what_is_compiled_already(mode):
    def trained(cell, seeds):
        for seed in seeds:
            cell(*map(ms.Tensor, samples(4, seed).values()))
        return cell

    begin_process(mode=mode)
    whole = trained(accumulation_cell(2).set_train(), range(4))
    halfway = {one.name: np.array(one.asnumpy()) for one in whole.get_parameters()}
    counters = whole.counters
    trained(whole, range(4, 8))
    begin_process(mode=mode)
    resumed = trained(accumulation_cell(2).set_train(), range(99, 102))
    views = {one.name: one.asnumpy() for one in resumed.get_parameters()}
    for name, parameter in resumed.parameters_dict().items():
        assign(parameter, halfway[name], leaf_of(name, halfway[name], role="weights").dtype)
    resumed.load_counters(counters)
    trained(resumed, range(4, 8))
    assert tensors(resumed) == tensors(whole)
    # In place: whoever holds the memory still sees the parameter.
    assert {name: view.tobytes() for name, view in views.items()} == tensors(whole)


def test_memory_in_another_order_is_not_written():
    parameter = ms.Parameter(ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)), name="w")
    seen = parameter.asnumpy()
    assert live_bytes(parameter, seen).nbytes == 24
    assert live_bytes(parameter, seen.T) is None


def test_weights_can_be_assigned_after_failed_step():
    """PYNATIVE still records gradients then and refuses in-place writes to what requires them."""

    class Breaking(nn.Dense):
        def construct(self, x):
            super().construct(x)
            raise KeyError("boom")

    network = Breaking(3, 2)
    with pytest.raises(KeyError):
        ms.value_and_grad(network, None, network.trainable_params())(ms.Tensor(np.ones((2, 3), np.float32)))
    for dtype, kind, name in ((ms.float32, np.float32, "F32"), (ms.bfloat16, np.uint16, "BF16")):
        parameter = ms.Parameter(ms.Tensor(np.ones((2, 2)), dtype), name="w")
        bits = np.array([[1, 2], [3, 4]], kind)
        assign(parameter, bits, name)
        assert parameter.asnumpy().tobytes() == bits.tobytes(), name
        assert parameter.requires_grad


# Parameters of which a rank holds a part; the cuts are made by hand, because MindSpore cuts none on CPU


WHOLE = (6, 4)


class Table(nn.Cell):
    """Trains rows ``first`` to ``last`` of a table; every row by itself, so that a part trains as in the whole."""

    def __init__(self, first, last):
        super().__init__()
        rows = np.arange(24, dtype=np.float32).reshape(WHOLE)[first:last]
        self.table = ms.Parameter(ms.Tensor(rows), name="table")

    def construct(self, x):
        return ops.square(self.table * x).sum()


def cut(first, last):
    """A cell for the rows, and the state manager that knows what they are rows of."""
    network = Table(first, last)
    cell = ck.AccumulationTrainCell(network, nn.Adam(network.trainable_params(), 0.1), 3).set_train()
    box = Box(WHOLE, (first, 0))
    return cell, ck.StateManager(cell, ranks=ck.Ranks(placement=lambda name: box if name.endswith("table") else None))


def trained(cell, steps):
    for step in range(steps):
        cell(ms.Tensor(np.float32(0.1 + step)))


def bits(cell, first=0, last=6):
    return {
        one.name: one.asnumpy()[first:last].tobytes() for one in cell.get_parameters() if one.name.endswith("table")
    }


def saved(root, first, last, steps=3):
    cell, state = cut(first, last)
    with ck.CheckpointManager(root) as manager:
        manager.restore(state)
        trained(cell, steps)
        manager.save(state).result()
    return cell


@pytest.mark.parametrize(("mode", "steps"), [(ms.PYNATIVE_MODE, 5), (ms.GRAPH_MODE, 3)])
def test_a_part_comes_back_as_another_part(tmp_path, mode, steps):
    ms.set_context(mode=mode)
    cell = saved(tmp_path, 0, 6, steps)
    other, its_state = cut(2, 5)
    ck.CheckpointManager(tmp_path).restore(its_state)
    assert bits(other) == bits(cell, 2, 5)
    assert {"table", "moment1.table", "moment2.table", "accum.table"} <= bits(other).keys()
    for one in other.get_parameters():  # as by a script, before its loop
        one.set_data(ms.Tensor(np.ones(one.shape), one.dtype))
    its_state.start.undo_changes()
    assert bits(other) == bits(cell, 2, 5)
    trained(cell, 4)
    trained(other, 4)
    assert bits(other) == bits(cell, 2, 5)


def test_rows_that_nobody_stored_are_refused(tmp_path):
    saved(tmp_path, 0, 3)
    with pytest.raises(CorruptCheckpointError, match="table"):
        ck.CheckpointManager(tmp_path).restore(cut(2, 5)[1])


def test_another_whole_is_refused(tmp_path):
    saved(tmp_path, 0, 6)
    cell, _ = cut(0, 3)
    before = bits(cell)
    with pytest.raises(StateMismatchError, match="table"):
        ck.CheckpointManager(tmp_path).restore(ck.StateManager(cell))  # nobody says that it is a part
    assert bits(cell) == before


def test_sums_over_ranks_of_different_parts_are_refused():
    class Second(ck.StateManager):
        world = SimpleNamespace(rank=1, size=2)

    cell, _ = cut(0, 3)
    with pytest.raises(ValueError, match=r"table are parts .* a cell of your own"):
        Second(cell, ranks=ck.Ranks(placement=lambda name: Box(WHOLE, (0, 0)) if name.endswith("table") else None))
