"""The parameters of the cells of a training: which they are, what each is for, how long its bits stay, how they return.

Guarantees: every parameter of the cells is a leaf exactly once, under its own name; a name that stands for two is
refused. Main thread only; the arrays of `CellParameters.leaves` may be live memory, good between two micro-steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import mindspore as ms
from mindspore import nn
from mindspore.experimental.optim import Optimizer as ExperimentalOptimizer  # mindspore.mint.optim's as well

from ckptkit.contents import Contents
from ckptkit.errors import StateMismatchError
from ckptkit.mindspore.landing import Landing
from ckptkit.mindspore.train_cell import AccumulationTrainCell
from ckptkit.tensors import Leaf, Lifetime, Role, leaf_of

_SMALL_BYTES = 64 * 1024  # below this a leaf counts as changing at every micro-step


class CellParameters:
    """Every parameter of ``cells``.

    Args:
        cells: The cell that is called once per micro-batch, or network, optimizer and what else there is of a
            training without one. A parameter that several share counts once.
        frozen: Names of parameters that training never changes, or a predicate over names; None for none.

    Raises:
        StateMismatchError: If two parameters have one name, or ``frozen`` names one that does not exist.
    """

    def __init__(self, cells: Sequence[nn.Cell], frozen: Iterable[str] | Callable[[str], bool] | None) -> None:
        self._by_name = _by_name(cells)
        self._frozen = _frozen_names(self._by_name, frozen)
        train_cell = next((one for one in cells if isinstance(one, AccumulationTrainCell)), None)
        self._accumulates = train_cell is not None
        self._accumulators = {one.name for one in train_cell.accumulators} if train_cell is not None else set()
        optimizers = _optimizers(cells)
        self._weights = {one.name for optimizer in optimizers for one in optimizer.parameters}
        if train_cell is not None:
            self._weights |= {one.name for one in train_cell.network.get_parameters()}
        self._owned = {one.name for optimizer in optimizers for one in _all_of(optimizer)}
        # Only of its own optimizer is it known that nothing changes between two updates.
        steady = _all_of(train_cell.optimizer) if train_cell is not None else ()
        self._steady = {one.name for one in steady}

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

    def stored(self, leaves: Mapping[str, Leaf], *, at_boundary: bool) -> dict[str, Leaf]:
        """Those of all ``leaves`` that a checkpoint holds."""
        return {name: leaf for name, leaf in leaves.items() if not (at_boundary and name in self._accumulators)}

    def mutable_leaves(self) -> Iterator[Leaf]:
        """Those that a micro-step may change, but for the accumulators, which it changes for sure."""
        return (leaf for leaf in self.leaves(at_boundary=True) if leaf.lifetime == "micro")

    def read_from(self, contents: Contents, seen: Mapping[str, Leaf]) -> None:
        """Give each its stored value, read straight into its memory; accumulators that were left out become zero.

        Args:
            contents: Compared with the parameters before.
            seen: All `leaves` by name, taken just now.

        Raises:
            CkptKitError: As `Contents.read_into`; the parameters then hold anything.
        """
        self._read(contents, seen, [name for name in self._by_name if name in contents.entries])

    def read_again_from(self, contents: Contents) -> None:
        """As `read_from`, after it, for what was changed since: reads only the files whose bytes are no longer here."""
        seen = {leaf.name: leaf for leaf in self.leaves(at_boundary=False)}
        memory = Landing(self._by_name, contents.entries, seen, ())
        live = {name: memory.live(name) for name in self._by_name if name in contents.entries}
        held = {name: bits for name, bits in live.items() if bits is not None}
        self._read(contents, seen, contents.differing(held))

    def _read(self, contents: Contents, seen: Mapping[str, Leaf], names: Collection[str]) -> None:
        landing = Landing(self._by_name, contents.entries, seen, names)
        contents.read_into(landing, landing.filled)
        for name in self._by_name:
            if name not in contents.entries:
                landing.zero(name)

    def _role(self, name: str) -> Role:
        if name in self._accumulators:
            return "accumulators"
        if name in self._weights:
            return "weights"
        # What is neither the network's nor the optimizer's: a loss scale, or a foreign cell's own parameters.
        return "optimizer" if name in self._owned or self._accumulates else "weights"

    def _lifetime(self, name: str, size_bytes: int) -> Lifetime:
        if name in self._frozen:
            return "frozen"
        if name in self._accumulators or name not in self._steady or size_bytes < _SMALL_BYTES:
            return "micro"
        return "cycle"


def _optimizers(cells: Sequence[nn.Cell]) -> list[nn.Cell]:
    kinds = (nn.Optimizer, ExperimentalOptimizer)
    return [one for cell in cells for _, one in cell.cells_and_names() if isinstance(one, kinds)]


def _all_of(cell: nn.Cell) -> list[ms.Parameter]:
    """Its parameters, with the learning rates that experimental optimizers keep in a plain list."""
    rates = [rate for one in _optimizers([cell]) for rate in getattr(one, "lrs", ()) if isinstance(rate, ms.Parameter)]
    return [*cell.get_parameters(), *rates]


def _by_name(cells: Sequence[nn.Cell]) -> dict[str, ms.Parameter]:
    found: dict[str, ms.Parameter] = {}
    twice: set[str] = set()
    for parameter in (one for cell in cells for one in _all_of(cell)):
        if found.setdefault(parameter.name, parameter) is not parameter:
            twice.add(parameter.name)
    if twice:
        raise StateMismatchError(
            f"parameters must have names of their own; used twice: {sorted(twice)}. "
            "Rename them (Cell.update_parameters_name), or give one of the cells by name: StateManager(..., ema=it)"
        )
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
