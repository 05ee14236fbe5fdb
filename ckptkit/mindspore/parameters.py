"""The parameters of a train cell: which they are, what each is for, how long its bits stay, and how they get back.

Guarantees: every parameter of the cell is a leaf exactly once, under its own name; a name that stands for two is
refused. Main thread only; the arrays of `CellParameters.leaves` may be live memory, good between two micro-steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import mindspore as ms
from mindspore import nn

from ckptkit.contents import Contents
from ckptkit.errors import StateMismatchError
from ckptkit.mindspore.apply import assign, assign_zeros
from ckptkit.mindspore.train_cell import AccumulationTrainCell
from ckptkit.tensors import Leaf, Lifetime, Role, leaf_of

_SMALL_BYTES = 64 * 1024  # below this a leaf counts as changing at every micro-step


class CellParameters:
    """Every parameter of ``train_cell``.

    Args:
        train_cell: The cell that is called once per micro-batch.
        frozen: Names of parameters that training never changes, or a predicate over names; None for none.

    Raises:
        StateMismatchError: If two parameters have one name, or ``frozen`` names one that does not exist.
    """

    def __init__(self, train_cell: nn.Cell, frozen: Iterable[str] | Callable[[str], bool] | None) -> None:
        self._by_name = _by_name(train_cell)
        self._frozen = _frozen_names(self._by_name, frozen)
        self._accumulates = isinstance(train_cell, AccumulationTrainCell)
        self._accumulators = {one.name for one in train_cell.accumulators} if self._accumulates else set()
        network = getattr(train_cell, "network", train_cell)
        self._weights = {one.name for one in network.get_parameters()}
        optimizer: nn.Optimizer | None = getattr(train_cell, "optimizer", None)
        self._owned = {one.name for one in optimizer.get_parameters()} if optimizer else set()

    def objects(self) -> list[ms.Parameter]:
        """The parameters themselves."""
        return list(self._by_name.values())

    def leaves(self, *, at_boundary: bool) -> Iterator[Leaf]:
        """Each as a leaf; at a boundary the accumulators are zero and are left out."""
        for name, parameter in self._by_name.items():
            if at_boundary and name in self._accumulators:
                continue
            # On CPU this is the live memory; the call waits for every operation under way.
            array = parameter.asnumpy()
            yield leaf_of(name, array, role=self._role(name), lifetime=self._lifetime(name, array.nbytes))

    def assign(self, contents: Contents) -> None:
        """Give each its stored value; accumulators that were left out become zero."""
        for name, parameter in self._by_name.items():
            if name in contents.tensors:
                assign(parameter, contents.tensors[name], contents.dtypes[name])
            else:
                assign_zeros(parameter)

    def _role(self, name: str) -> Role:
        if name in self._accumulators:
            return "accumulators"
        return "weights" if name in self._weights or name not in self._owned else "optimizer"

    def _lifetime(self, name: str, size_bytes: int) -> Lifetime:
        if name in self._frozen:
            return "frozen"
        if name in self._accumulators or name not in self._owned or size_bytes < _SMALL_BYTES:
            return "micro"
        return "cycle" if self._accumulates else "micro"


def _by_name(cell: nn.Cell) -> dict[str, ms.Parameter]:
    found: dict[str, ms.Parameter] = {}
    twice: set[str] = set()
    for parameter in cell.get_parameters():
        if found.setdefault(parameter.name, parameter) is not parameter:
            twice.add(parameter.name)
    if twice:
        raise StateMismatchError(f"parameters must have names of their own; used twice: {sorted(twice)}")
    return found


def _frozen_names(
    parameters: Mapping[str, ms.Parameter], frozen: Iterable[str] | Callable[[str], bool] | None
) -> frozenset[str]:
    if frozen is None:
        return frozenset()
    if callable(frozen):
        return frozenset(name for name in parameters if frozen(name))
    names = frozenset([frozen] if isinstance(frozen, str) else frozen)
    unknown = sorted(names - parameters.keys())
    if unknown:
        raise StateMismatchError(f"frozen= names parameters that do not exist: {unknown}")
    return names
