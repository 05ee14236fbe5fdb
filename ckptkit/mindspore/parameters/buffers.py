"""Finds the buffers of cells (`nn.Cell.register_buffer`): tensors of a cell that are not parameters.

Guarantees: every buffer of the cells is found once, persistent or not, under its path in the network, as in
`nn.Cell.state_dict`; a name used for two buffers is refused. Buffers registered again or later are found at the next
call. A MindSpore without buffers has none. Main thread only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import mindspore as ms
from mindspore import nn

from ckptkit.core.text import some
from ckptkit.errors import StateMismatchError


class Buffers:
    """Finds the buffers of ``cells``.

    Args:
        cells: Cells of a training. Buffers in a train cell's ``network`` are named by their path in that network, so
            that another train cell does not rename them.
        parameters: Parameters of these cells; buffers must not have their names.
    """

    def __init__(self, cells: Sequence[nn.Cell], parameters: Mapping[str, ms.Parameter]) -> None:
        self._parameters = parameters
        places: dict[int, tuple[str, nn.Cell]] = {}
        for prefix, one in itertools.chain.from_iterable(map(_places, cells)):
            places.setdefault(id(one), (prefix, one))
        self._places = list(places.values())
        self._kept = [vars(one)["_buffers"] for _, one in self._places if "_buffers" in vars(one)]

    def now(self) -> dict[str, ms.Tensor]:
        """Return each present buffer by its name.

        Raises:
            StateMismatchError: If two buffers have one name, or one has the name of a parameter.
        """
        if len(self._kept) == len(self._places) and not any(self._kept):
            return {}  # shortcut for most networks, in a tenth of the time
        seen = {id(one) for one in self._parameters.values()}
        found: dict[str, ms.Tensor] = {}
        twice = []
        for prefix, cell in self._places:
            # named_buffers() walks all cells, which would take milliseconds of every save.
            for key, one in vars(cell).get("_buffers", {}).items():
                if one is None or id(one) in seen:
                    continue
                seen.add(id(one))
                name = f"{prefix}{key}"
                if name in found or name in self._parameters:
                    twice.append(name)
                found[name] = one
        if twice:
            raise StateMismatchError(
                "buffers must have names of their own, and not those of parameters; used twice: "
                f"{some(sorted(twice))}. Register them by other names, or give one of the cells by name: "
                "StateManager(..., ema=it)"
            )
        return found


def _places(cell: nn.Cell) -> Iterator[tuple[str, nn.Cell]]:
    """Yield the cells in ``cell`` with the prefix of their buffers' names; a train cell's network comes first."""
    network = getattr(cell, "network", None)
    for root in (network, cell) if hasattr(cell, "optimizer") else (cell,):
        if isinstance(root, nn.Cell):
            yield from ((f"{path}." if path else "", one) for path, one in root.cells_and_names())
