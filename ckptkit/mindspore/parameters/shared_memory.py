"""Stores and restores which parameters have one memory.

`Parameter.set_data` of another parameter, and `mindspore.load_param_into_net` of another network's, give both the same
memory, until one of them gets another one. A script that builds its networks in that way shares memory again at each
start, whatever training has done since; bits that are restored into one of the parameters would be the other's too.

Guarantees: after `SharedMemory.restore`, those parameters have one memory that had one at the save, and no others; each
keeps its value, if the values of those that are joined are equal. Parameters that overlap in part are left alone. Of
the cells' parameters, a save looks only at those that have moved; it asks those of objects given by name each time.
Main thread only.
"""

from __future__ import annotations

import bisect
import operator
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TypeAlias

import mindspore as ms

from ckptkit.core.tensors import Array, Leaf, bits_of, dtype_of
from ckptkit.mindspore.parameters.apply import tensor_of
from ckptkit.mindspore.parameters.parameters import CellParameters

_Named: TypeAlias = tuple[str, ms.Tensor]
_Place: TypeAlias = tuple[int, str, tuple[int, ...]]  # address, dtype and shape


class SharedMemory:
    """Knows which of a training's parameters and buffers have one memory.

    Args:
        cells: Those of the cells.
        by_name: Returns those of the objects given by name, by name and place.
    """

    def __init__(self, cells: CellParameters, by_name: Callable[[], Mapping[str, ms.Tensor]]) -> None:
        self._cells = cells
        self._by_name = by_name
        self._seen: Sequence[Leaf | None] = ()
        self._of_cells: dict[_Place, list[_Named]] = {}
        self._shared_in_cells: dict[_Place, list[_Named]] = {}
        self._ends: list[tuple[int, int, str]] | None = None  # of the memory of each, in order: begin, end, name

    def groups(self) -> list[list[str]]:
        """Return the names of those with one memory, for each such memory; `CellParameters.leaves` was called before.

        A parameter with several names has the first of them, in alphabetical order.
        """
        return sorted(sorted(name for name, _ in group) for group in self._groups())

    def owner_of(self, array: Array) -> str | None:
        """Return the name of the parameter or buffer of the cells in whose memory ``array`` lies, or None.

        Only where arrays can be such memory; see `can_be_live`.
        """
        if array.base is None or not array.size:  # it has memory of its own
            return None
        if self._ends is None:
            named = ((place[0], *group[0]) for place, group in self._of_cells.items())
            self._ends = sorted((address, address + _tensor_bytes(one), name) for address, name, one in named)
        address = array.__array_interface__["data"][0]
        at = bisect.bisect(self._ends, (address, sys.maxsize)) - 1
        return self._ends[at][2] if at >= 0 and address < self._ends[at][1] else None

    def restore(self, stored: Collection[Collection[str]]) -> bool:
        """Give the memory in common that `groups` returned, and none else; return whether any got another memory."""
        group_of = {name: number for number, group in enumerate(stored) for name in group}
        joined = self._join(stored)
        if joined:
            self._seen = ()  # so that `_groups` looks where they are now
        return self._part(lambda name: group_of.get(name, name)) or joined

    def part(self, differ: Callable[[Collection[str]], bool]) -> bool:
        """Give each of a group its own memory if what they shall hold differs; return whether any got another one."""
        apart = {name for group in self.groups() if differ(group) for name in group}
        return self._part(lambda name: name if name in apart else None)

    def renew(self, names: Collection[str]) -> None:
        """Give parameters other memory, with the values that they have."""
        tensors = {**self._by_name(), **self._cells.tensors()}
        for name in names:
            _renew(name, tensors[name])
        self._cells.leaves(at_boundary=False)  # looks where they are now

    def _groups(self) -> list[list[_Named]]:
        seen = self._cells.seen()
        if len(seen) != len(self._seen) or not all(map(operator.is_, seen, self._seen)):
            self._seen, self._of_cells, self._ends = seen, _by_place(self._cells.tensors()), None
            self._shared_in_cells = {place: group for place, group in self._of_cells.items() if len(group) > 1}
        named = _by_place(self._by_name())
        places = {place: [*self._of_cells.get(place, ()), *found] for place, found in named.items()}
        groups = map(_each_once, {**self._shared_in_cells, **places}.values())
        return [group for group in groups if len(group) > 1]

    def _part(self, kind: Callable[[str], Hashable]) -> bool:
        """Give those of a group that are not of one ``kind`` different memory."""
        changes = False
        for group in self._groups():
            kinds: dict[Hashable, list[_Named]] = defaultdict(list)
            for name, tensor in group:
                kinds[kind(name)].append((name, tensor))
            # A buffer keeps its memory: only a parameter can get another one.
            fixed_first = sorted(kinds.values(), key=lambda some: all(isinstance(one, ms.Parameter) for _, one in some))
            for some in fixed_first[1:]:
                (_, leader), *others = some
                _renew(some[0][0], leader)
                for _, one in others:
                    _set(one, leader)
                changes = True
        return changes

    def _join(self, groups: Collection[Collection[str]]) -> bool:
        """Give those of each group the memory of one of them: of a buffer, which keeps its own, if there is one."""
        tensors = {**self._by_name(), **self._cells.tensors()}
        changes = False
        for group in groups:
            found = [tensors[name] for name in group if name in tensors]
            first, *others = sorted(found, key=lambda one: isinstance(one, ms.Parameter))
            for one in others:
                if one.data_ptr() != first.data_ptr():
                    _set(one, first)
                    changes = True
        return changes


def _by_place(tensors: Mapping[str, ms.Tensor]) -> dict[_Place, list[_Named]]:
    found: dict[_Place, list[_Named]] = defaultdict(list)
    for name, one in tensors.items():
        address = one.data_ptr()
        if address and one.size:
            found[address, str(one.dtype), one.shape].append((name, one))
    return found


def _each_once(group: Sequence[_Named]) -> list[_Named]:
    """Return the first name of each tensor in alphabetical order, whatever the order in which they were given."""
    found: dict[int, _Named] = {}
    for name, one in sorted(group, key=lambda named: named[0]):
        found.setdefault(id(one), (name, one))
    return [*found.values()]


def _renew(name: str, tensor: ms.Tensor) -> None:
    array = tensor.asnumpy()
    _set(tensor, tensor_of(bits_of(array).copy(), dtype_of(name, array)))


def _set(tensor: ms.Tensor, data: ms.Tensor) -> None:
    if isinstance(tensor, ms.Parameter):
        tensor.set_data(data)


def _tensor_bytes(tensor: ms.Tensor) -> int:
    # Private, since mindtorch replaces `Tensor.nbytes` by one that fails for some dtypes. If MindSpore's own moves,
    # this raises AttributeError.
    size: int = tensor._nbytes
    return size
