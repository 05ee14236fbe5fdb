"""Holds the sources of a training's state: cells, counts, data, switches, and the objects given by name.

Guarantees: `Sources.sections` asks every source except the parameters, which `CellParameters.leaves` gives; it changes
nothing. Whether the state may be saved, and in which order it is restored, is decided elsewhere. Main thread only,
between two micro-steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn
from pydantic import ValidationError

from ckptkit.core.progress import Progress
from ckptkit.core.tensors import Array
from ckptkit.errors import ResumeError
from ckptkit.mindspore.data.iterable import IterablePosition
from ckptkit.mindspore.data.pipeline_position import DatasetPosition
from ckptkit.mindspore.data.position import Position
from ckptkit.mindspore.data.resumable import Resumable
from ckptkit.mindspore.parameters.apply import can_be_live, mode_in_force
from ckptkit.mindspore.parameters.memory import Detached, SharedMemory
from ckptkit.mindspore.parameters.parameters import CellParameters, KeptParameters
from ckptkit.mindspore.rng import capture_rng
from ckptkit.mindspore.state.digest import tensors_in
from ckptkit.mindspore.state.holders import NamedAttributes, ParameterHolder, Stateful, digests_by_place, told_by
from ckptkit.mindspore.state.named_cell import NamedCell
from ckptkit.mindspore.state.numerics import Numerics
from ckptkit.mindspore.state.open_batch import OpenBatch
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks
from ckptkit.mindspore.state.rewind import CycleStart
from ckptkit.mindspore.state.switches import Switches
from ckptkit.mindspore.train.cell import optimizers_of
from ckptkit.mindspore.train.counting import Counting


@dataclass(kw_only=True)
class Sources:
    """Holds every source of state of one training."""

    cell: nn.Cell
    cells: Sequence[nn.Cell]
    given: Mapping[str, Any]
    stateful: Mapping[str, Stateful]
    named_cells: Mapping[str, NamedCell]
    counting: Counting
    open_batch: OpenBatch
    position: Position | None
    batches: Resumable | None
    parameters: CellParameters
    detached: Sequence[Detached]
    own_switches: Switches
    switches_by_name: Mapping[str, Switches]
    rates: dict[str, str]
    first_world: int | None = None
    ended: str | None = None
    prepared: bool = False
    cycle_start: CycleStart | None = None
    began_with: Mapping[str, str] = field(default_factory=dict)
    restored_states: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    arrays: Mapping[str, str] = field(default_factory=dict)
    is_compiled: bool = False

    def __post_init__(self) -> None:
        named = {**dict(self.trained_by_name()), **{name: one.cell for name, one in self.named_cells.items()}}
        self._kept_by_name = [KeptParameters([one], name) for name, one in named.items()]
        by_name = {name: one for name, one in self.given.items() if isinstance(one, nn.Cell)}
        numbered = {f"cells[{place}]" if place else "": one for place, one in enumerate(self.cells)}
        self.numerics = Numerics({**numbered, **by_name})
        self.shared_memory = SharedMemory(self.parameters, self.tensors_by_name)

    def tensors_by_name(self) -> dict[str, ms.Tensor]:
        """Return the parameters and buffers of the objects given by name, by name and place."""
        holders = [(name, one) for name, one in self.stateful.items() if isinstance(one, ParameterHolder)]
        return {f"{name}/{place}": tensor for name, one in holders for place, tensor in one.tensors().items()}

    def tensors(self) -> dict[str, ms.Tensor]:
        """Return all parameters and buffers: those of the cells, and those of the objects given by name."""
        return {**self.tensors_by_name(), **self.parameters.tensors()}

    def every_cell(self) -> list[nn.Cell]:
        """Return all cells of the training, with the train cells that were given by name."""
        by_name = [one.cell for one in self.named_cells.values()] if self.named_cells else []
        return [*self.cells, *by_name]

    def cells_by_name(self) -> list[nn.Cell]:
        """Return all cells that are given by name."""
        return [one for one in self.given.values() if isinstance(one, nn.Cell)]

    def trained_by_name(self) -> list[tuple[str, nn.Cell]]:
        """Return the other cells given by name that are trained: optimizers, and what an optimizer changes.

        Without an optimizer, all of them; see `StateManager`, whose list of cells may be empty.
        """
        cells = self.every_cell()
        others = [(name, one) for name, one in self.given.items() if isinstance(one, nn.Cell)]
        others = [(name, one) for name, one in others if all(one is not each for each in cells)]
        optimizers = optimizers_of([*cells, *(one for _, one in others)])
        changed = {id(one) for each in optimizers for one in getattr(each, "parameters", ())}
        if not changed:
            return others
        return [
            (name, one)
            for name, one in others
            if optimizers_of([one]) or any(id(each) in changed for each in one.get_parameters())
        ]

    def refuse_detached(self, updates: int) -> None:
        """Raise ResumeError as `Detached.refuse`, for any of them."""
        for one in self.detached:
            one.refuse(updates)

    def bind(self, updates: int) -> None:
        """Record the memory that the optimizers are bound to, if this process has just made its first update."""
        unbound = [one for one in self.detached if one.binds(updates)]
        if unbound:
            self.parameters.leaves(at_boundary=False)  # looks where the parameters are now
        for one in unbound:
            one.bind()

    def switches(self) -> list[Switches]:
        """Return the switches of all cells, those given by name included."""
        of_train_cells = (one.switches for one in self.named_cells.values())
        return [self.own_switches, *self.switches_by_name.values(), *of_train_cells]

    def objects(self) -> list[Any]:
        """Return the objects that are stored by name, as given; for `attributes`, the object that owns them."""
        return [one.owner if isinstance(one, NamedAttributes) else one for one in self.given.values()]

    @property
    def loader(self) -> Any:
        """The iterable of the data, if checkpoints hold the state that it gives of itself; None otherwise."""
        return self.position.stateful if isinstance(self.position, IterablePosition) else None

    def by_model(self) -> bool:
        """Return whether ``Model`` trains; a loop of the user's gives no callbacks."""
        return any(isinstance(one, OtherCallbacks) for one in self.stateful.values())

    def deliver(self, batches: int | None) -> None:
        """Count a delivered batch as `Counting.deliver`; note the modes of its micro-step."""
        self.open_batch.begin()
        delivered = self.counting.deliver(batches)
        for one in (self.own_switches, *self.switches_by_name.values()):
            one.note(delivered, compiled=self.is_compiled)

    def look_at_switches(self, delivered: int) -> None:
        """Look as `Switches.look`, also for the cells given by name."""
        for one in (self.own_switches, *self.switches_by_name.values()):
            one.look(delivered, compiled=self.is_compiled)
        for cell in self.named_cells.values():
            cell.look()

    def load_switches(self, recorded: Mapping[str, Any] | None, delivered: int) -> None:
        """Continue from the switches that `sections` returned, after ``delivered`` batches; see `Switches.load`."""
        self.own_switches.load(recorded, delivered)
        by_name = (recorded or {}).get("by_name", {})
        for name, one in self.switches_by_name.items():
            one.load(by_name.get(name), delivered)

    def progress(self) -> Progress:
        """Return the position of the training."""
        counters, delivered = self.counting.now()
        epoch, batch = self.position.at(delivered) if self.position else (0, delivered)
        if isinstance(self.position, DatasetPosition) and self.batches is None:
            self.counting.refuse_open_remainder(self.position.size)
        try:
            return Progress(
                epoch=epoch,
                batch=batch,
                cycles=counters.cycles,
                updates=counters.updates,
                micro_step=counters.micro_step,
                accumulation_steps=counters.accumulation_steps,
                batches_delivered=delivered,
                cycle_first_batch=counters.first_micro_step,
            )
        except ValidationError as error:
            raise ResumeError(
                f"the train cell was called {counters.micro_steps} times, but {delivered} batches were delivered. "
                f"{self._how_to_call(ahead=delivered > counters.micro_steps)}"
            ) from error

    def _how_to_call(self, *, ahead: bool) -> str:
        if self.batches is None or not ahead:
            return "Call it once per batch and for nothing else; evaluate with the network instead."
        return (
            "Call it once for each batch. If the loop, or a generator around resumable(), takes the next batch before "
            "this one is trained, a resume would skip it: read ahead before resumable() instead, in the "
            "__iter__ of a loader that is given to it."
        )

    def sections(self, progress: Progress, ranks: int) -> dict[str, Any]:
        """Return everything except the parameters, as a checkpoint at ``progress`` of a job of ``ranks`` stores it."""
        for kept in self._kept_by_name:
            kept.refuse_replaced()
        how = {"by_model": self.by_model(), "compiled": self.is_compiled}
        switches = self.own_switches.record(**how)
        by_name = {name: one.record(**how) for name, one in self.switches_by_name.items()}
        return {
            "rng": capture_rng(),
            "data": self.position.state(progress.batches_delivered) if self.position else None,
            "train": {
                "cell": type(self.cell).__qualname__,
                "ended": self.ended,
                "first_world": ranks if self.first_world is None else self.first_world,
                "mode": mode_in_force(),
                "numerics": self.numerics.record(),
                "switches": {**switches, "by_name": by_name} if by_name else switches,
                "rates": self.rates,
                "arrays": self.arrays,
                "shared_memory": self.shared_memory.groups(),
                **self.counting.record(),
            },
            "user": {name: one.state_dict() for name, one in self.stateful.items()},
        }

    def holding_memory(self, states: Mapping[str, Any]) -> tuple[str, list[str]]:
        """Return the first object given by name that holds arrays in the memory of parameters, and their names.

        ``states`` are the objects' states, as just taken.
        """
        for name, one in self.stateful.items() if can_be_live() else ():
            if isinstance(one, ParameterHolder) and not isinstance(self.given[name], NamedAttributes):
                continue  # what it gives is that memory
            found = ((id(array), self.shared_memory.owner_of(array)) for array in _arrays_in(states[name]))
            owners = {at: owner for at, owner in found if owner is not None}
            # An array that is made for the state is another one at each call.
            held = {id(array) for array in _arrays_in(told_by(one))} & owners.keys() if owners else set()
            if held:
                return name, sorted({owners[at] for at in held})
        return "", []

    def note_beginning(self, *, resumes: bool) -> None:
        """Remember the parameters, for `changed_since`; not where ``Model`` trains, for which they are restored again.

        In a loop that positions its data itself, only what ``resumes``, and no rates: such a loop may set them for its
        first batch before it calls anything.
        """
        self.began_with = {}
        if self.batches is not None:
            self.began_with = self.parameters.digests_in_place()
        elif resumes and not self.by_model():
            rates = self.parameters.rates()
            self.began_with = {
                name: one for name, one in self.parameters.digests_in_place().items() if name not in rates
            }

    def note_restored_states(self, steady: Mapping[str, Collection[str]]) -> None:
        """Remember the states of objects given by name, for `changed_since`, in a loop of `resumable`.

        Any other loop may have called them for its first batch when that is seen.
        """
        self.restored_states = {}
        if self.batches is not None:
            told = {name: digests_by_place(told_by(self.stateful[name])) for name in steady}
            self.restored_states = {
                name: {place: one for place, one in digests.items() if place in steady[name]}
                for name, digests in told.items()
            }

    def changed_since(self) -> list[str]:
        """Return the names of what the script has changed since it was remembered; forgets it."""
        now = self.parameters.digests_in_place() if self.began_with else {}
        parameters = [name for name, digest in self.began_with.items() if now.get(name) != digest]
        changed = sorted([*parameters, *filter(self._has_changed, self.restored_states)])
        self.began_with, self.restored_states = {}, {}
        return changed

    def _has_changed(self, name: str) -> bool:
        draws = self.position.own_draws if self.position is not None else ()
        digests = digests_by_place(told_by(self.stateful[name], keep=draws))
        return any(digests.get(place) != one for place, one in self.restored_states[name].items())

    def put_back(self) -> None:
        """Undo what the script has switched since the start; does nothing once the loop trains."""
        for one in self.switches():
            one.put_back(by_model=self.by_model())


def _arrays_in(state: Any) -> Iterator[Array]:
    return (value for value in tensors_in(state) if isinstance(value, np.ndarray))
