"""What is put into a cell, replaced in it or taken out of it is noticed."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.mindspore.parameters.parameters import CellChanges


def network() -> nn.Cell:
    return nn.SequentialCell(nn.Dense(2, 3), nn.SequentialCell(nn.Dense(3, 1)))


def replace_parameter(cell: nn.Cell) -> None:
    cell[1][0].weight = ms.Parameter(np.zeros((1, 3), np.float32), name="1.0.weight")


def add_parameter(cell: nn.Cell) -> None:
    cell[1].scale = ms.Parameter(np.zeros(1, np.float32), name="scale")


def replace_cell(cell: nn.Cell) -> None:
    cell[1][0] = nn.Dense(3, 1)


def append_cell(cell: nn.Cell) -> None:
    cell[1].append(nn.Dense(1, 1))


def delete_cell(cell: nn.Cell) -> None:
    del cell[1]


def test_other_objects_in_cells_are_noticed() -> None:
    for change in (replace_parameter, add_parameter, replace_cell, append_cell, delete_cell):
        cell = network()
        slots = CellChanges([cell])
        cell[0].weight.set_data(ms.Tensor(np.ones((3, 2), np.float32)))
        cell.set_train(True)
        assert not slots.are_changed()
        change(cell)
        assert slots.are_changed(), change.__name__
        assert not CellChanges([cell]).are_changed()
