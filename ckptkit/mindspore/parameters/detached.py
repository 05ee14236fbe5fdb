"""Refuses saves of a training whose optimizer goes on with memory that its parameters no longer have.

MindSpore compiles the update of its optimizers in PYNATIVE as well, and binds it to the memory that weights, moments
and rates have at its first call. What `Parameter.set_data` replaces later is not updated, or not read, any more; after
a resume, which compiles anew, it is. Seen on CPU with MindSpore 2.10; in GRAPH all is well.

Guarantees: a parameter that such an update uses, that got other memory after the first update, and was there at a look
with an update after it, is named, once the second look comes. Costs nothing where nothing got other memory. Main thread
only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mindspore import nn

from ckptkit.errors import ResumeError
from ckptkit.mindspore.inspect.bytecode import is_compiled
from ckptkit.mindspore.parameters.apply import can_be_live
from ckptkit.mindspore.parameters.parameters import all_of, optimizers_of
from ckptkit.mindspore.state.compatibility import some
from ckptkit.mindspore.state.switches import mode_in_force


class Detached:
    """Looks at the parameters of the optimizers of ``cells``.

    Args:
        cells: Of the training.
        moved: Gives the names of those parameters that have other memory than when it was asked before.
        name: That the cells were given by, for messages.
    """

    def __init__(self, cells: Sequence[nn.Cell], moved: Callable[[], set[str]], name: str = "") -> None:
        self._ask = moved
        bound = [one for one in optimizers_of(cells) if _is_bound(one)]
        self._names = {held.name for one in bound for held in all_of(one)}
        self._prefix = f"{name}/" if name else ""
        self._begun_at = 0
        self._bound = False
        self._moved: set[str] = set()
        self._moved_at = 0

    def begin(self, updates: int) -> None:
        """So many updates were counted where this process begins."""
        self._begun_at = updates

    def binds(self, updates: int) -> bool:
        """Whether the first update of this process was made since the last call of `bind`."""
        return not self._bound and updates > self._begun_at and bool(self._names)

    def bind(self) -> None:
        """Take the memory as that of the first update."""
        self._bound = True
        self._ask()

    def refuse(self, updates: int) -> None:
        """Raise ResumeError if one was updated without effect; called by each save."""
        moved = self._ask() & self._names
        if not self._bound or mode_in_force() == "GRAPH":
            return
        if self._moved and updates > self._moved_at:
            raise ResumeError(_words([f"{self._prefix}{name}" for name in sorted(self._moved)]))
        if moved:
            self._moved |= moved
            self._moved_at = updates


class Addresses:
    """Where the parameters of ``cell`` lie."""

    def __init__(self, cell: nn.Cell) -> None:
        self._parameters = {one.name: one for one in all_of(cell)}
        self._seen: dict[str, int] = {}

    def moved(self) -> set[str]:
        """Names of those that lie elsewhere than at the call before; see `CellParameters.moved`."""
        now = {name: one.data_ptr() for name, one in self._parameters.items()} if can_be_live() else {}
        moved = {name for name, address in self._seen.items() if now.get(name) != address}
        self._seen = now
        return moved


def _words(names: Sequence[str]) -> str:
    return (
        f"{some(names)} got other memory after the first update (set_data, assign_value or "
        "load_param_into_net). In PYNATIVE_MODE MindSpore's optimizer goes on with the former one: what it does there "
        "has no effect, and would have after a resume, so none could be exact. Write into the parameter instead: "
        "ops.assign(parameter, value). Go on from a checkpoint before"
    )


def _is_bound(optimizer: nn.Cell) -> bool:
    """Whether some method of its class, or of one that it is made of, is compiled in any mode."""
    return any(is_compiled(one) for kind in type(optimizer).__mro__ for one in vars(kind).values())
