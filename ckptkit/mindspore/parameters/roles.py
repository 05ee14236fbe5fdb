"""Says of each parameter of a training what it is for, where it is in a job of many ranks, and how long it stays.

Guarantees: each has one role, one placement and one lifetime. What the script says with ``frozen`` and ``placement`` is
checked against the cells, and refused by name. Changes no parameter. Main thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import mindspore as ms
from mindspore import nn
from mindspore.boost import GradientAccumulation

from ckptkit.core.placement import Box, Placement, PlacementByName
from ckptkit.core.tensors import Lifetime, Role
from ckptkit.core.text import some
from ckptkit.errors import StateMismatchError
from ckptkit.mindspore.train.cell import AccumulationTrainCell, optimizers_of

_log = logging.getLogger("ckptkit")
_WORDS = ("replicated", "per_rank")
_SMALL_BYTES = 64 * 1024  # below this, copying is cheaper than a fence


class Roles:
    def __init__(
        self,
        cells: Sequence[nn.Cell],
        by_name: Mapping[str, ms.Parameter],
        frozen: Iterable[str] | Callable[[str], bool] | None,
        steady: Collection[nn.Cell],
        placement: PlacementByName | None,
    ) -> None:
        self._placed = _placed_by_hand(by_name, placement)
        train_cell = next((cell for cell in cells if isinstance(cell, AccumulationTrainCell)), None)
        self._accumulates = train_cell is not None
        self.accumulators = (
            {parameter.name for parameter in train_cell.accumulators} if train_cell is not None else set()
        )
        self._boosts = _names_in_boosts(cells)
        optimizers = optimizers_of(cells)
        self._weights = {parameter.name for optimizer in optimizers for parameter in optimizer.parameters}
        if train_cell is not None:
            self._weights |= {parameter.name for parameter in train_cell.network.get_parameters()}
        owned = [(optimizer, {parameter.name for parameter in all_of(optimizer)}) for optimizer in optimizers]
        self.owned = {name for _, names in owned for name in names}
        scale = train_cell.loss_scale if train_cell is not None else None
        self._agreed = {parameter.name for parameter in scale.get_parameters()} if scale is not None else set()
        self.of_networks = frozenset(self._weights | (_of_networks(cells) - self.owned - self._boosts))
        self.frozen = _frozen_names(by_name, self.of_networks, frozen)
        _refuse_frozen_and_trained(self.frozen, cells)
        self._steady = _steady_names(owned, steady)
        self._demoted: set[str] = set()

    def cut(self) -> list[str]:
        """Return the names of parameters of which this rank holds a part, according to ``placement``."""
        return sorted(name for name, placed in self._placed.items() if isinstance(placed, Box))

    def role(self, name: str) -> Role:
        if name in self.accumulators or name in self._boosts:
            return "accumulators"
        if name in self._weights:
            return "weights"
        # The rest belongs to neither network nor optimizer: a loss scale, or a foreign cell's own parameters.
        return "optimizer" if self._accumulates or name not in self.of_networks else "weights"

    def placement(self, name: str) -> Placement:
        by_hand = self._placed.get(name)
        if by_hand is not None:
            return by_hand
        if name in self.accumulators:
            return "per_rank"
        # A parameter that was declared frozen but changes may change differently in each rank.
        still = name in self.frozen and name not in self._demoted
        return "replicated" if still or name in self.owned or name in self._agreed else "per_rank"

    def lifetime(self, name: str, size_bytes: int) -> Lifetime:
        if name in self._demoted:
            return "micro"
        if name in self.frozen:
            return "frozen"
        if name in self.accumulators or name not in self._steady or size_bytes < _SMALL_BYTES:
            return "micro"
        return "cycle"

    def demote(self, names: Collection[str]) -> None:
        self._demoted |= set(names)


def all_of(cell: nn.Cell) -> list[ms.Parameter]:
    """Return the parameters of ``cell``, with the learning rates that experimental optimizers keep in a plain list."""
    rates = [
        rate
        for optimizer in optimizers_of([cell])
        for rate in getattr(optimizer, "lrs", ())
        if isinstance(rate, ms.Parameter)
    ]
    return [*cell.get_parameters(), *rates]


def cells_of(given: Any, named: Mapping[str, Any]) -> tuple[nn.Cell, ...]:
    """Return the cells that ``given``, one of them or a list, consists of; TypeError if it is something else.

    None in a list stands for a cell that a configuration does not have, such as an average of the weights. A list
    without cells, beside objects that are ``named``, gives a cell without parameters, which stands for none.
    """
    several = [value for value in given if value is not None] if isinstance(given, (list, tuple)) else given
    cells = [given] if isinstance(given, nn.Cell) else several
    if not isinstance(cells, list) or not all(isinstance(cell, nn.Cell) for cell in cells):
        raise TypeError(f"train_cell must be an nn.Cell or a list of them, got {type(given).__name__}")
    if not cells and not named:
        raise TypeError(
            "train_cell must be an nn.Cell or a list of them, and the list is empty. Without cells, give what trains "
            "by name: StateManager([], dataset, model=..., optimizer=...)"
        )
    return tuple(cells) or (nn.Identity(),)


def _of_networks(cells: Sequence[nn.Cell]) -> frozenset[str]:
    """Return the names of all parameters except train cells' own, such as a foreign cell's loss scale."""
    names: set[str] = set()
    for cell in cells:
        network = getattr(cell, "network", None)
        if not optimizers_of([cell]):
            network = cell
        if isinstance(network, nn.Cell):
            names |= {parameter.name for parameter in network.get_parameters()}
        else:
            names |= {parameter.name for parameter in cell.get_parameters()}
            names -= {parameter.name for parameter in cell.get_parameters(expand=False)}
    return frozenset(names)


def _names_in_boosts(cells: Sequence[nn.Cell]) -> set[str]:
    """Return the names of what each `boost.GradientAccumulation` holds besides the weights: its sums and counter."""
    boosts = [inner for cell in cells for _, inner in cell.cells_and_names() if isinstance(inner, GradientAccumulation)]
    weights = {id(weight) for boost in boosts for weight in boost.weights}
    return {
        parameter.name
        for boost in boosts
        for parameter in boost.get_parameters(expand=False)
        if id(parameter) not in weights
    }


def _steady_names(owned: Sequence[tuple[nn.Cell, set[str]]], steady: Collection[nn.Cell]) -> set[str]:
    """Return the names that the ``steady`` optimizers own and no other optimizer writes."""
    steady_names: set[str] = set()
    written: set[str] = set()
    for optimizer, names in owned:
        (steady_names if any(optimizer is chosen for chosen in steady) else written).update(names)
    return steady_names - written


def _frozen_names(
    parameters: Collection[str], of_networks: Collection[str], frozen: Iterable[str] | Callable[[str], bool] | None
) -> frozenset[str]:
    if frozen is None:
        return frozenset()
    if callable(frozen):
        return frozenset(name for name in of_networks if frozen(name))
    names = frozenset([frozen] if isinstance(frozen, str) else frozen)
    unknown = sorted(name for name in names if name not in parameters)
    if unknown:
        raise StateMismatchError(f"frozen= names parameters that do not exist: {some(unknown)}")
    others = sorted(names - set(of_networks))
    if others:
        raise StateMismatchError(
            f"frozen= names parameters that do not belong to a network: {some(others)}. Training changes the "
            "parameters of the train cell and the optimizer. Remove them from frozen="
        )
    return names


def _refuse_frozen_and_trained(frozen: Collection[str], cells: Sequence[nn.Cell]) -> None:
    for optimizer in optimizers_of(cells):
        both = [parameter.name for parameter in optimizer.parameters if parameter.name in frozen]
        if both:
            raise StateMismatchError(
                f"frozen= names parameters that the optimizer ({type(optimizer).__name__}) updates: {some(both)}. "
                "Remove them from frozen=, or make the optimizer without them: set their requires_grad=False, then "
                "give it network.trainable_params()"
            )


def _placed_by_hand(parameters: Mapping[str, ms.Parameter], placement: PlacementByName | None) -> dict[str, Placement]:
    """Return the placements that ``placement`` gives, by the name of the parameter; None leaves one out."""
    if placement is None:
        return {}
    asked = {name: placement(name) for name in parameters}
    placed = {name: where for name, where in asked.items() if where is not None}
    for name, where in placed.items():
        _check_placement(name, tuple(parameters[name].shape), where)
    return placed


def _check_placement(name: str, shape: tuple[int, ...], placement: object) -> None:
    if not isinstance(placement, Box):
        if placement not in _WORDS:
            raise TypeError(
                f"Ranks(placement=...) gives {placement!r} for {name}: it takes {', '.join(map(repr, _WORDS))} or a Box"
            )
        return
    fits = len(shape) == len(placement.offsets) and all(
        at + extent <= whole for at, extent, whole in zip(placement.offsets, shape, placement.global_shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"Ranks(placement=...) gives {placement} for {name}, but its shape {shape} does not fit inside"
        )


def warn_if_no_weight_changes(names: Iterable[str]) -> None:
    """Warn of MindSpore's cells that accumulate in ``accu_grads.*``: a pass that CPU does not have fills these."""
    if ms.get_context("device_target") != "CPU" or ms.get_auto_parallel_context("parallel_mode") != "stand_alone":
        return
    unfilled = next((name for name in names if name.startswith("accu_grads.")), None)
    if unfilled is not None:
        _log.warning(
            "this training changes no weight: MindSpore's accumulation does not work on CPU, where it leaves %s and "
            "the like at zero and updates with them. Use ckptkit.AccumulationTrainCell",
            unfilled,
        )
