"""Stores an `AccumulationTrainCell` other than the one that counts for the training, such as a GAN's discriminator.

Guarantees: the cell's parameters, accumulators, counters and switches are stored under its given name, wherever the
training as a whole is in its cycle. All of them, with K, options and counts, are compared before anything is changed.
Main thread only, between two micro-steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from mindspore import nn

from ckptkit.core.text import some
from ckptkit.mindspore.state.holders import ParameterHolder
from ckptkit.mindspore.state.switches import Switches
from ckptkit.mindspore.train.cell import AccumulationTrainCell, CycleCounters
from ckptkit.mindspore.train.counting import OwnCounting, accumulation_of
from ckptkit.mindspore.train.schedule import check_cycle, check_same_training


class NamedCell(ParameterHolder):
    """Stores a train cell, and what a loop switches in its network, as a stateful object."""

    def __init__(self, name: str, cell: AccumulationTrainCell, *, may_change_k: bool) -> None:
        super().__init__(name, cell)
        self.cell = cell
        self.switches = Switches([cell], list(cell.network.get_parameters()), name)
        self._may_change_k = may_change_k
        self._counting = OwnCounting(cell, may_change_k=may_change_k)

    def state_dict(self) -> dict[str, Any]:
        """Return the cell's parameters and counters; ResumeError if these disagree."""
        counters, parameters = self.cell.counters, super().state_dict()
        self._counting.prove(counters, {name: packed[1] for name, packed in parameters.items()})
        return {
            "parameters": parameters,
            "counters": asdict(counters),
            "global_step_at_start": self._counting.base,
            "accumulation": accumulation_of(self.cell),
            "switches": self.switches.record(),
        }

    def check(self, state: Any) -> None:
        known = isinstance(state, dict) and state.keys() >= {"parameters", "counters", "accumulation"}
        super().check(state["parameters"] if known else None)
        stored = f"the train cell {self._name} of the checkpoint"
        check_same_training(stored, state["accumulation"], accumulation_of(self.cell))
        counters, schedule = CycleCounters(**state["counters"]), self.cell.schedule
        check_cycle(stored, counters, state["accumulation"], schedule, may_change=self._may_change_k)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``; a changed K applies from the next boundary on, which may be the current position."""
        super().load_state_dict(state["parameters"])
        counters = CycleCounters(**state["counters"])
        if not counters.micro_step:
            counters = replace(counters, accumulation_steps=self.cell.schedule.at(counters.updates))
        self.cell.load_counters(counters)
        self._counting.base = state["global_step_at_start"]
        self.switches.load(state.get("switches"), counters.micro_steps)


def refuse_uncounted(cells: Sequence[nn.Cell], named: Mapping[str, object]) -> None:
    """Raise ValueError unless at most one `AccumulationTrainCell` counts for the training and all others have a name.

    The first one among ``cells`` counts.
    """
    first = next((cell for cell in cells if isinstance(cell, AccumulationTrainCell)), None)
    inside = [inner for cell in cells for _, inner in cell.cells_and_names()]
    given = {id(value) for value in (first, *named.values())}
    lost = [cell for cell in inside if isinstance(cell, AccumulationTrainCell) and id(cell) not in given]
    if lost:
        both = " and ".join(_words(cell) for cell in ([first] if first is not None else []) + lost)
        first_words = "the one that is called once per batch" if first is not None else "the cell around it"
        raise ValueError(
            f"each of these counts its own cycles: {both}. Give {first_words} first, alone, and every other one "
            "by a name of its own: StateManager(CELL, dataset, NAME=OTHER_CELL), or CheckpointCallback(stateful="
            '{"NAME": OTHER_CELL})'
        )


def refuse_sums_of_parts(cell: nn.Cell, cut: Sequence[str], ranks: int) -> None:
    """Raise ValueError if an `AccumulationTrainCell` would add up gradients of other parts of ``cut`` parameters."""
    if cut and ranks > 1 and isinstance(cell, AccumulationTrainCell):
        raise ValueError(
            f"placement says that {some(cut)} are parts of larger parameters, but an "
            "AccumulationTrainCell adds up the gradients of all ranks, which are those of other parts. Train cut "
            "parameters with a cell of your own"
        )


def steady_beside(optimizers: Sequence[nn.Cell], others: Sequence[AccumulationTrainCell]) -> list[nn.Cell]:
    """Return the optimizers whose parameters none of ``others`` updates; ``others`` are not fenced."""
    written = {id(parameter) for cell in others for parameter in cell.optimizer.get_parameters()}
    return [cell for cell in optimizers if written.isdisjoint(map(id, cell.get_parameters()))]


def _words(cell: AccumulationTrainCell) -> str:
    return f"the AccumulationTrainCell of {type(cell.network).__name__} ({cell.optimizer.parameters[0].name}, ...)"
