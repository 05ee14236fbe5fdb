"""What an `nn.SequentialCell` really calls: its list of layers, which assigning an attribute leaves as it was.

``seq.drop = other`` registers another layer, and the old one in ``cell_list`` is still called: it then belongs to no
parameter list, no ``set_train`` and no checkpoint. ``seq[i] = other`` changes both. The list and the registered cells
behind the names are MindSpore's own matter and asked for here only; where they are gone, every list is empty.

Guarantees: reads, but for `put`; runs no code of the user's. Main thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mindspore import nn

from ckptkit.mindspore.inspect.attributes import own_attributes


def called_by(cell: nn.Cell) -> list[nn.Cell]:
    """The layers that ``cell`` calls out of its list, in order; none for any cell but an `nn.SequentialCell`.

    Nor for one whose own ``construct`` goes another way than through the list.
    """
    if not isinstance(cell, nn.SequentialCell):
        return []
    code = getattr(type(cell).construct, "__code__", None)
    # "construct" stands for super().construct(x).
    if code is None or not {"cell_list", "construct"} & {*code.co_names}:
        return []
    listed = own_attributes(cell).get("cell_list", ())
    return [one for one in listed if isinstance(one, nn.Cell)] if isinstance(listed, list) else []


def registered_in(cell: nn.Cell) -> Mapping[str, nn.Cell]:
    """The cells that ``cell`` holds by name, also one that it holds by several; `nn.Cell.name_cells` tells one name."""
    cells = own_attributes(cell).get("_cells", {})
    return {name: one for name, one in cells.items() if one is not None}


class Found(NamedTuple):
    """A cell among those of a training.

    Attributes:
        name: From the root, such as ``network.seq.cell_list[1]``; empty for the root itself.
        cell: It.
        registered: Whether the root knows of it; otherwise an `nn.SequentialCell` calls it all the same.
    """

    name: str
    cell: nn.Cell
    registered: bool


def cells_of(root: nn.Cell) -> Iterator[Found]:
    """All cells that belong to ``root`` or are called by one that does, each once; after those that call them."""
    waiting = deque(Found(name, cell, True) for name, cell in root.cells_and_names())
    seen = {id(one.cell) for one in waiting}
    while waiting:
        found = waiting.popleft()
        yield found
        for place, listed in enumerate(called_by(found.cell)):
            prefix = f"{found.name}.cell_list[{place}]".lstrip(".")
            inner = [Found(name, cell, False) for name, cell in listed.cells_and_names(name_prefix=prefix)]
            fresh = [one for one in inner if id(one.cell) not in seen]
            seen.update(id(one.cell) for one in fresh)
            waiting.extend(fresh)


def put(parent: nn.Cell, name: str, cell: nn.Cell) -> None:
    """Make ``cell`` the one of that name in ``parent``, and the one that is called in its place."""
    before = registered_in(parent)
    place = list(before).index(name)
    listed = called_by(parent)
    setattr(parent, name, cell)
    # By place, since another layer may be called than the one of that name; beside others that are in no list, itself.
    is_whole = len(listed) == len(before)
    for at in [place] if is_whole else [at for at, one in enumerate(listed) if one is before[name]]:
        parent.cell_list[at] = cell
