"""Parameters of which a rank holds a part: saved as that part, restored as any other part of the same whole.

The cuts are made by hand, because MindSpore cuts no parameters on CPU.
"""

from __future__ import annotations

from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

import ckptkit as ck
from ckptkit.core.placement import Box
from ckptkit.errors import CorruptCheckpointError, StateMismatchError

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
    """The cell for the rows, after a checkpoint of it."""
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
    other, _ = cut(0, 3)
    state = ck.StateManager(other)  # nobody says that it is a part
    before = bits(other)
    with pytest.raises(StateMismatchError, match="table"):
        ck.CheckpointManager(tmp_path).restore(state)
    assert bits(other) == before


def test_sums_over_ranks_of_different_parts_are_refused():
    class Second(ck.StateManager):
        world = SimpleNamespace(rank=1, size=2)

    cell, _ = cut(0, 3)
    with pytest.raises(ValueError, match=r"table are parts .* a cell of your own"):
        Second(cell, ranks=ck.Ranks(placement=lambda name: Box(WHOLE, (0, 0)) if name.endswith("table") else None))
