"""Knows where the parameters of a training are: which share memory, and which a compiled step no longer sees.

Guarantees: `Detached` refuses a training whose optimizer uses memory that its parameters no longer have;
`CompiledMemory` names what a graph keeps as it was compiled; `SharedMemory` restores which parameters have one memory.
Costs nothing where no memory moved. Main thread only.
"""

from __future__ import annotations

import operator
import types
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import TypeAlias
from weakref import WeakKeyDictionary

import mindspore as ms
from mindspore import nn

from ckptkit.core.tensors import Leaf, bits_of, dtype_of
from ckptkit.core.text import some
from ckptkit.errors import ResumeError
from ckptkit.mindspore.parameters.apply import can_be_live, mode_in_force, tensor_of
from ckptkit.mindspore.parameters.parameters import CellParameters
from ckptkit.mindspore.parameters.roles import all_of
from ckptkit.mindspore.train.call_hooks import before_next_call
from ckptkit.mindspore.train.cell import AccumulationTrainCell, optimizers_of

_JIT_MODULES = ("mindspore.graph.api", "mindspore.common.api")
_Named: TypeAlias = tuple[str, ms.Tensor]
_Place: TypeAlias = tuple[int, str, tuple[int, ...]]  # address, dtype and shape
# By optimizer, where its parameters were at the first update: a later training in this process goes on with that.
_BOUND: WeakKeyDictionary[nn.Cell, list[tuple[ms.Parameter, int]]] = WeakKeyDictionary()


class Detached:
    """Checks whether the parameters of an optimizer have the memory that its compiled update uses."""

    def __init__(self, optimizer: nn.Cell, name: str = "", count: Callable[[], int] | None = None) -> None:
        self._optimizer = optimizer
        self._prefix = f"{name}/" if name else ""
        self._count = count
        self._begun_at = 0
        self.bound = _BOUND.setdefault(optimizer, [])

    def begin(self, updates: int) -> None:
        self._begun_at = updates if self._count is None else self._count()
        # Not at the end of the step: a callback may have given other memory by then.
        if not self.bound and mode_in_force() != "GRAPH":
            before_next_call(self._optimizer, self._bind)

    def bind_resumed(self) -> None:
        """Record the memory as a resumed run begins: without the interruption, the first update came before that."""
        if self._begun_at and mode_in_force() != "GRAPH":
            self._bind()

    def bind(self, updates: int) -> None:
        """Record the present memory after the first update, unless its call did: a user's ``@ms.jit`` may hide it."""
        if (updates if self._count is None else self._count()) > self._begun_at:
            self._bind()

    def has_compiled_update(self) -> bool:
        return any(is_compiled(member) for kind in type(self._optimizer).__mro__ for member in vars(kind).values())

    def _bind(self) -> None:
        if not self.bound:
            self.bound += [(parameter, parameter.data_ptr()) for parameter in all_of(self._optimizer)]

    def refuse(self) -> None:
        """Raise ResumeError if a parameter has other memory: a resumed run would see it, and this one does not."""
        if mode_in_force() != "GRAPH":
            moved = sorted(parameter.name for parameter, address in self.bound if parameter.data_ptr() != address)
            if moved:
                raise ResumeError(
                    f"{some([f'{self._prefix}{name}' for name in moved])} got new memory after the first update "
                    "(set_data, assign_value or load_param_into_net). In PYNATIVE_MODE, MindSpore's optimizer "
                    "continues with the old memory: its updates do not see the new value, but those of a resumed run "
                    "would, so no resume could be exact. Use ops.assign(parameter, value) instead, and continue from "
                    "an earlier checkpoint"
                )


def detached_of(cells: Sequence[nn.Cell], given: Mapping[str, object]) -> list[Detached]:
    """Return the checks of the optimizers in ``cells``, and of those and the train cells among the objects by name."""
    named = [(name, cell) for name, cell in given.items() if isinstance(cell, (nn.Optimizer, AccumulationTrainCell))]
    detached = [
        *(Detached(optimizer) for optimizer in optimizers_of(cells)),
        *(Detached(_optimizer_of(cell), name, partial(_updates_of, cell)) for name, cell in named),
    ]
    # Elsewhere memory may move by itself.
    return [memory for memory in detached if can_be_live() and memory.has_compiled_update()]


def _optimizer_of(cell: nn.Optimizer | AccumulationTrainCell) -> nn.Cell:
    return cell.optimizer if isinstance(cell, AccumulationTrainCell) else cell


def _updates_of(cell: nn.Optimizer | AccumulationTrainCell) -> int:
    return cell.counters.updates if isinstance(cell, AccumulationTrainCell) else int(cell.global_step.asnumpy().item())


def is_compiled(function: object) -> bool:
    # The module of MindSpore that makes them; if it moves, `test_memory_that_no_update_sees_fails_the_save` does.
    is_jit = type(function) is types.FunctionType and function.__globals__.get("__name__") in _JIT_MODULES
    return is_jit and vars(function).get("__wrapped__") is not None


class CompiledMemory:
    def __init__(
        self, parameters: CellParameters, cells: Sequence[nn.Cell], tensors: Callable[[], Mapping[str, ms.Tensor]]
    ) -> None:
        self._parameters = parameters
        self._tensors = tensors
        self._by_function = not any(optimizers_of([cell]) and not isinstance(cell, nn.Optimizer) for cell in cells)
        self.at_first: dict[str, int] | None = None  # addresses after the first micro-step
        self._told_of_buffers = self._told_of_parameters = False

    def first_step_ended(self) -> None:
        """Note where the parameters are: the step has been compiled."""
        self.at_first = self._addresses()

    def _addresses(self) -> dict[str, int]:
        # Only on CPU do they stay in place.
        return {name: tensor.data_ptr() for name, tensor in self._tensors().items()} if can_be_live() else {}

    def doubts(self, leaves: Sequence[Leaf], *, compiled: bool) -> list[tuple[str, bool]]:
        """Return what a resumed run has otherwise, given ``leaves`` taken just now; each with whether that is certain.

        New memory is not: which parameters a compiled function reads is unknown. An average that the loop sets by
        `Parameter.set_data` is read by none, and a run with it is exact, so it must not end in its middle.
        """
        is_graph = mode_in_force() == "GRAPH"
        doubts = []
        if is_graph and not self._told_of_buffers and (changed := self._parameters.changed_buffers(leaves)):
            self._told_of_buffers = True
            doubt = (
                f"Training changes the buffers {some(changed)}, but a graph reads a buffer as it was when the graph "
                "was compiled, and a resumed run compiles again. Make them Parameters with requires_grad=False, or "
                "train in PYNATIVE mode"
            )
            doubts.append((doubt, True))
        if (compiled or (is_graph and self._by_function)) and not self._told_of_parameters and self.at_first:
            now = self._addresses()
            moved = sorted(name for name, address in self.at_first.items() if now.get(name) != address)
            if moved:
                self._told_of_parameters = True
                doubt = (
                    f"{some(moved)} got new memory after the first micro-step (set_data or load_param_into_net). A "
                    "compiled function that reads them continues with the old memory, and a resumed run compiles "
                    "again. Use ops.assign(parameter, value) instead"
                )
                doubts.append((doubt, False))
        return doubts


class SharedMemory:
    def __init__(self, cells: CellParameters, by_name: Callable[[], Mapping[str, ms.Tensor]]) -> None:
        self._cells = cells
        self._by_name = by_name
        self._seen: Sequence[Leaf | None] = ()
        self._of_cells: dict[_Place, list[_Named]] = {}
        self._shared_in_cells: dict[_Place, list[_Named]] = {}

    def groups(self) -> list[list[str]]:
        """Return the names of those with one memory, for each such memory; `CellParameters.leaves` was called before.

        A parameter with several names has the first of them, in alphabetical order.
        """
        return sorted(sorted(name for name, _ in group) for group in self._groups())

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
        tensors = {**self._by_name(), **self._cells.tensors()}
        for name in names:
            _renew(name, tensors[name])
        self._cells.leaves(at_boundary=False)  # looks where they are now

    def _groups(self) -> list[list[_Named]]:
        seen = self._cells.seen()
        if len(seen) != len(self._seen) or not all(map(operator.is_, seen, self._seen)):
            self._seen, self._of_cells = seen, _by_place(self._cells.tensors())
            self._shared_in_cells = {place: group for place, group in self._of_cells.items() if len(group) > 1}
        named = _by_place(self._by_name())
        places = {place: [*self._of_cells.get(place, ()), *named_there] for place, named_there in named.items()}
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
            fixed_first = sorted(
                kinds.values(), key=lambda named: all(isinstance(tensor, ms.Parameter) for _, tensor in named)
            )
            for same_kind in fixed_first[1:]:
                (_, leader), *others = same_kind
                _renew(same_kind[0][0], leader)
                for _, other in others:
                    _set(other, leader)
                changes = True
        return changes

    def _join(self, groups: Collection[Collection[str]]) -> bool:
        """Give those of each group the memory of one of them: of a buffer, which keeps its own, if there is one."""
        tensors = {**self._by_name(), **self._cells.tensors()}
        changes = False
        for group in groups:
            members = [tensors[name] for name in group if name in tensors]
            first, *others = sorted(members, key=lambda tensor: isinstance(tensor, ms.Parameter))
            for tensor in others:
                if tensor.data_ptr() != first.data_ptr():
                    _set(tensor, first)
                    changes = True
        return changes


def _by_place(tensors: Mapping[str, ms.Tensor]) -> dict[_Place, list[_Named]]:
    by_place: dict[_Place, list[_Named]] = defaultdict(list)
    for name, tensor in tensors.items():
        address = tensor.data_ptr()
        if address and tensor.size:
            by_place[address, str(tensor.dtype), tensor.shape].append((name, tensor))
    return by_place


def _each_once(group: Sequence[_Named]) -> list[_Named]:
    """Return the first name of each tensor in alphabetical order, whatever the order in which they were given."""
    first_names: dict[int, _Named] = {}
    for name, tensor in sorted(group, key=lambda named: named[0]):
        first_names.setdefault(id(tensor), (name, tensor))
    return [*first_names.values()]


def _renew(name: str, tensor: ms.Tensor) -> None:
    array = tensor.asnumpy()
    _set(tensor, tensor_of(bits_of(array).copy(), dtype_of(name, array)))


def _set(tensor: ms.Tensor, data: ms.Tensor) -> None:
    if isinstance(tensor, ms.Parameter):
        tensor.set_data(data)
