"""Finds the layers that an `nn.SequentialCell` really calls, and replaces cells by name.

The cell calls the layers in its ``cell_list``, which assigning an attribute does not change. ``seq.drop = other``
registers another layer, but the old one in ``cell_list`` is still called, and is then in no parameter list, no
``set_train`` and no checkpoint. ``seq[i] = other`` changes both. The list and the dict of registered cells are
MindSpore internals, read only in this module; if they are missing, every list is empty.

Guarantees: only `put` changes anything; runs no user code. Main thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mindspore import nn


def called_by(cell: nn.Cell) -> list[nn.Cell]:
    """Return the layers that ``cell`` calls from its list, in order; none for any cell but an `nn.SequentialCell`.

    Also none if its own ``construct`` does not use the list.
    """
    if not isinstance(cell, nn.SequentialCell):
        return []
    code = getattr(type(cell).construct, "__code__", None)
    # "construct" stands for super().construct(x).
    if code is None or not {"cell_list", "construct"} & {*code.co_names}:
        return []
    listed = vars(cell).get("cell_list", ())
    return [one for one in listed if isinstance(one, nn.Cell)] if isinstance(listed, list) else []


def registered_in(cell: nn.Cell) -> Mapping[str, nn.Cell]:
    """Return the cells of ``cell`` under all their names; `nn.Cell.name_cells` gives only one name per cell."""
    cells = vars(cell).get("_cells", {})
    return {name: one for name, one in cells.items() if one is not None}


class Found(NamedTuple):
    """Describes a cell found in a training.

    Attributes:
        name: Path from the root, such as ``network.seq.cell_list[1]``; empty for the root itself.
        cell: The cell.
        registered: False if the root does not know the cell but an `nn.SequentialCell` still calls it.
    """

    name: str
    cell: nn.Cell
    registered: bool


def cells_of(root: nn.Cell) -> Sequence[Found]:
    """Return each cell that belongs to ``root`` or is called by one that does, once, callers first."""
    found: list[Found] = []
    waiting = deque(Found(name, cell, True) for name, cell in root.cells_and_names())
    seen = {id(one.cell) for one in waiting}
    while waiting:
        found.append(waiting.popleft())
        for place, listed in enumerate(called_by(found[-1].cell)):
            prefix = f"{found[-1].name}.cell_list[{place}]".lstrip(".")
            inner = [Found(name, cell, False) for name, cell in listed.cells_and_names(name_prefix=prefix)]
            fresh = [one for one in inner if id(one.cell) not in seen]
            seen.update(id(one.cell) for one in fresh)
            waiting.extend(fresh)
    return found


def put(parent: nn.Cell, name: str, cell: nn.Cell) -> None:
    """Register ``cell`` under ``name`` in ``parent``, and call it in place of the old one."""
    before = registered_in(parent)
    place = list(before).index(name)
    listed = called_by(parent)
    setattr(parent, name, cell)
    # If all cells are in the list, replace by position, since the called layer may differ from the registered one.
    # Otherwise replace the old cell itself.
    is_whole = len(listed) == len(before)
    for at in [place] if is_whole else [at for at, one in enumerate(listed) if one is before[name]]:
        parent.cell_list[at] = cell
