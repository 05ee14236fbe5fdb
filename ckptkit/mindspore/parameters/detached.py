"""Refuses saves of a training whose optimizer uses memory that its parameters no longer have.

MindSpore compiles the update of its optimizers in PYNATIVE too, and binds it to the memory that weights, moments
and rates have at its first call. After `Parameter.set_data` replaced that memory, the update no longer writes to, or
reads from, the parameter; after a resume, which compiles anew, it does. Seen on CPU with MindSpore 2.10; GRAPH is not
affected.

Guarantees: if a parameter that such an update uses got new memory after the first update, it is named at the second
check after that, provided that an update lies between the two checks. Costs nothing if no memory was replaced. Main
thread only.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import mindspore as ms
from mindspore import nn

from ckptkit.core.text import some
from ckptkit.errors import ResumeError
from ckptkit.mindspore.parameters.apply import can_be_live
from ckptkit.mindspore.parameters.roles import all_of, optimizers_of
from ckptkit.mindspore.state.switches import mode_in_force

_JIT_MODULES = ("mindspore.graph.api", "mindspore.common.api")


class Detached:
    """Checks the memory of the parameters of the optimizers of ``cells``.

    Args:
        cells: Cells of the training.
        moved: Returns the names of parameters whose memory has changed since its last call.
        name: Name under which the cells were given, for messages.
        count: Returns the number of updates of their optimizer, if that is not the training's.
    """

    def __init__(
        self,
        cells: Sequence[nn.Cell],
        moved: Callable[[], set[str]],
        name: str = "",
        count: Callable[[], int] | None = None,
    ) -> None:
        self._ask = moved
        self._count = count
        bound = [one for one in optimizers_of(cells) if _has_compiled_method(one)]
        self._names = {held.name for one in bound for held in all_of(one)}
        self._prefix = f"{name}/" if name else ""
        self._begun_at = 0
        self._bound = False
        self._moved: set[str] = set()
        self._moved_at = 0

    def begin(self, updates: int) -> None:
        """Set the number of updates at which this process begins."""
        self._begun_at = updates if self._count is None else self._count()

    def binds(self, updates: int) -> bool:
        """Return whether this process has made its first update and `bind` has not been called yet."""
        if self._bound or not self._names:
            return False
        return (updates if self._count is None else self._count()) > self._begun_at

    def bind(self) -> None:
        """Record that the present memory is that of the first update."""
        self._bound = True
        self._ask()

    def refuse(self, updates: int) -> None:
        """Raise ResumeError if a parameter was updated without effect; every save calls this."""
        moved = self._ask() & self._names
        if not self._bound or mode_in_force() == "GRAPH":
            return
        updates = updates if self._count is None else self._count()
        if self._moved and updates > self._moved_at:
            raise ResumeError(_words([f"{self._prefix}{name}" for name in sorted(self._moved)]))
        if moved:
            self._moved |= moved
            self._moved_at = updates


def detached_of(given: Mapping[str, object], without: Collection[str]) -> list[Detached]:
    """Return the checks of the optimizers among the objects given by name, except those named ``without``."""
    found = {name: one for name, one in given.items() if isinstance(one, nn.Optimizer) and name not in without}
    return [Detached([one], Addresses.of(one).moved, name, partial(_updates_of, one)) for name, one in found.items()]


def _updates_of(optimizer: nn.Optimizer) -> int:
    return int(optimizer.global_step.asnumpy().item())


class Addresses:
    """Tracks where tensors are.

    Args:
        tensors: Returns them by name.
    """

    def __init__(self, tensors: Callable[[], Mapping[str, ms.Tensor]]) -> None:
        self._tensors = tensors
        self._seen: dict[str, int] = {}

    @classmethod
    def of(cls, cell: nn.Cell) -> Addresses:
        """Track the parameters that ``cell`` has now."""
        parameters = {one.name: one for one in all_of(cell)}
        return cls(lambda: parameters)

    def moved(self) -> set[str]:
        """Return the names of tensors whose address changed since the last call; see `CellParameters.moved`."""
        now = {name: one.data_ptr() for name, one in self._tensors().items()} if can_be_live() else {}
        moved = {name for name, address in self._seen.items() if now.get(name) != address}
        self._seen = now
        return moved


def _words(names: Sequence[str]) -> str:
    return (
        f"{some(names)} got new memory after the first update (set_data, assign_value or load_param_into_net). In "
        "PYNATIVE_MODE, MindSpore's optimizer continues with the old memory: its updates have no effect, but would "
        "have one after a resume, so no resume could be exact. Use ops.assign(parameter, value) instead, and "
        "continue from an earlier checkpoint"
    )


def is_compiled(function: object) -> bool:
    """Return whether ``@ms.jit`` made an object of a function."""
    # The module of MindSpore that makes them; if it moves, `test_memory_of_optimizers_is_watched` fails.
    is_jit = type(function) is types.FunctionType and function.__globals__.get("__name__") in _JIT_MODULES
    return is_jit and vars(function).get("__wrapped__") is not None


def _has_compiled_method(cell: nn.Cell) -> bool:
    return any(is_compiled(member) for kind in type(cell).__mro__ for member in vars(kind).values())
