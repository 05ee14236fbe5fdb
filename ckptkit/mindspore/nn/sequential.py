"""Finds the layers that an `nn.SequentialCell` really calls, and replaces cells by name.

The cell calls the layers in its ``cell_list``, which assigning an attribute does not change. ``seq.drop = other``
registers another layer, but the old one in ``cell_list`` is still called, and is then in no parameter list, no
``set_train`` and no checkpoint. The list and the dict of registered cells are MindSpore internals, read only in this
module; if they are missing, every list is empty. Runs no user code. Main thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mindspore import nn


def called_by(cell: nn.Cell) -> list[nn.Cell]:
    """Return the layers that an `nn.SequentialCell` calls, in order; none if its ``construct`` uses no list."""
    if not isinstance(cell, nn.SequentialCell):
        return []
    code = getattr(type(cell).construct, "__code__", None)
    # "construct" stands for super().construct(x).
    if code is None or not {"cell_list", "construct"} & {*code.co_names}:
        return []
    listed = vars(cell).get("cell_list", ())
    return [layer for layer in listed if isinstance(layer, nn.Cell)] if isinstance(listed, list) else []


def registered_in(cell: nn.Cell) -> Mapping[str, nn.Cell]:
    """Return the cells of ``cell`` under all their names; `nn.Cell.name_cells` gives only one name per cell."""
    cells = vars(cell).get("_cells", {})
    return {name: inner for name, inner in cells.items() if inner is not None}


class CellInTraining(NamedTuple):
    name: str  # path from the root, such as ``network.seq.cell_list[1]``; empty for the root itself
    cell: nn.Cell
    registered: bool  # False if the root does not know the cell but an `nn.SequentialCell` still calls it


def cells_of(root: nn.Cell) -> Sequence[CellInTraining]:
    """Return each cell that belongs to ``root`` or is called by one that does, once, callers first."""
    cells: list[CellInTraining] = []
    waiting = deque(CellInTraining(name, cell, True) for name, cell in root.cells_and_names())
    seen = {id(named.cell) for named in waiting}
    while waiting:
        cells.append(caller := waiting.popleft())
        for place, layer in enumerate(called_by(caller.cell)):
            prefix = f"{caller.name}.cell_list[{place}]".lstrip(".")
            inner = [CellInTraining(name, cell, False) for name, cell in layer.cells_and_names(name_prefix=prefix)]
            fresh = [named for named in inner if id(named.cell) not in seen]
            seen.update(id(named.cell) for named in fresh)
            waiting.extend(fresh)
    return cells


def put(parent: nn.Cell, name: str, cell: nn.Cell) -> None:
    """Register ``cell`` under ``name`` in ``parent``, and call it in place of the old one."""
    before = registered_in(parent)
    place = list(before).index(name)
    listed = called_by(parent)
    setattr(parent, name, cell)
    is_whole = len(listed) == len(before)  # then one layer may stand in several places, each with a name
    for at, layer in enumerate(listed):
        if layer is before[name] and (at == place or not is_whole):
            parent.cell_list[at] = cell
