"""What is put into a cell, replaced in it or taken out of it is noticed."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from ckptkit.errors import ResumeError
from ckptkit.mindspore.parameters.parameters import CellChanges, KeptParameters


def parameter(*shape: int) -> ms.Parameter:
    return ms.Parameter(np.zeros(shape, np.float32), name="new")


CHANGES = {
    "replaced parameter": lambda cell: setattr(cell[1][0], "weight", parameter(1, 3)),
    "added parameter": lambda cell: setattr(cell[1], "scale", parameter(1)),
    "replaced cell": lambda cell: cell[1].__setitem__(0, nn.Dense(3, 1)),
    "appended cell": lambda cell: cell[1].append(nn.Dense(1, 1)),
    "deleted cell": lambda cell: cell.__delitem__(1),
}


def test_other_objects_in_cells_are_noticed() -> None:
    for name, change in CHANGES.items():
        cell = nn.SequentialCell(nn.Dense(2, 3), nn.SequentialCell(nn.Dense(3, 1)))
        kept = KeptParameters([cell], "it")
        cell[0].weight.set_data(ms.Tensor(np.ones((3, 2), np.float32)))
        cell.set_train(True)
        cell.append(nn.Tanh())
        kept.refuse_replaced()
        slots = CellChanges([cell])
        assert not slots.are_changed(), name
        change(cell)
        assert slots.are_changed(), name
        assert not CellChanges([cell]).are_changed(), name
        with pytest.raises(ResumeError, match=r"parameters were replaced or added after .*: it/"):
            kept.refuse_replaced()
