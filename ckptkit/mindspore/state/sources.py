"""Holds the sources of a training's state: cells, counts, data, switches, and the objects given by name.

Guarantees: `Sources.sections` asks every source except the parameters, which `CellParameters.leaves` gives, and changes
nothing; `decoded` returns what `captured` was given. Whether the state may be saved, and in which order it is restored,
is decided elsewhere. Main thread only, between two micro-steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback

from ckptkit.core.contents import Capture, Contents
from ckptkit.core.progress import Progress
from ckptkit.core.state_encoding import decode_tree, encode_tree
from ckptkit.core.tensors import Array, Leaf
from ckptkit.core.text import some
from ckptkit.errors import CorruptCheckpointError, ResumeError, StateMismatchError
from ckptkit.manager.options import Ranks, refuse_unknown_choice
from ckptkit.mindspore.data.iterable import IterablePosition
from ckptkit.mindspore.data.pipeline_position import Augmentation, DatasetPosition
from ckptkit.mindspore.data.resumable import BatchObserver, Resumable, position_of
from ckptkit.mindspore.parameters.apply import can_be_live, mode_in_force
from ckptkit.mindspore.parameters.memory import SharedMemory, detached_of
from ckptkit.mindspore.parameters.parameters import CellParameters, KeptParameters
from ckptkit.mindspore.rng import capture_rng
from ckptkit.mindspore.state.cell_settings import Numerics, Switches
from ckptkit.mindspore.state.open_batch import OpenBatch
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks
from ckptkit.mindspore.state.stateful_objects import NamedAttributes, NamedCell, ParameterHolder, state_of, stateful_of
from ckptkit.mindspore.train.cell import AccumulationTrainCell, optimizers_of
from ckptkit.mindspore.train.micro_steps import CycleAdapter, counting_of

OnKChange: TypeAlias = Literal["refuse", "next_cycle"]
_SECTIONS = ("rng", "data", "train", "user")
_OBSERVED = "observed"  # a checkpoint without it has nothing to put back
_MAY_BE_UNSAID = ("mode", "numerics", "switches", "rates", "arrays", "shared_memory")
_TRAIN_KEYS = {"cell", "ended", "accumulation", "global_step_at_start", "first_world", *_MAY_BE_UNSAID}


@dataclass(frozen=True, kw_only=True)
class Training:
    """Says what ckptkit cannot see in the code of a training.

    Attributes:
        augmentation: ``"stateless"`` declares that the user's own code in the dataset depends on its input only,
            so that a resume need not replay the batches before; the first batch is checked in any case.
        cycle: Reports K and the micro-step of a train cell other than `AccumulationTrainCell`; not needed if
            that cell has the two attributes of `CycleAdapter` itself.
        on_k_change: What a restore does if the checkpoint has other accumulation steps than the cell: ``"refuse"``, or
            ``"next_cycle"``, which ends the running cycle with the old ones and then continues with the new ones.
        read_only: Callbacks of your own, or classes of them, that never change a parameter, so that saves may read
            parameters in place while they run; for `CheckpointCallback`.
        ignore: State of the script that matters to nothing, neither stored nor named: paths as the log names them, with
            ``*`` for any text, or objects.

    Raises:
        ValueError: If an option has an unknown value.
    """

    augmentation: Augmentation = None
    cycle: CycleAdapter | None = None
    on_k_change: OnKChange = "refuse"
    read_only: Sequence[Callback | type[Callback]] = ()
    ignore: Sequence[Any] = ()

    def __post_init__(self) -> None:
        refuse_unknown_choice("on_k_change", self.on_k_change, OnKChange)
        if self.augmentation not in (None, "stateless"):
            raise ValueError(f'augmentation must be None or "stateless", got {self.augmentation!r}')
        object.__setattr__(self, "read_only", tuple(self.read_only))
        object.__setattr__(self, "ignore", tuple(self.ignore))


class CycleStart(NamedTuple):
    progress: Progress
    sections: Mapping[str, Any]  # copies
    digests: Mapping[str, str]  # of what a forward pass can change


class Sources:
    def __init__(
        self,
        cells: Sequence[nn.Cell],
        given: Mapping[str, Any],
        dataset: ds.Dataset | Resumable | None,
        observer: BatchObserver,
        *,
        frozen: Iterable[str] | Callable[[str], bool] | None,
        training: Training,
        ranks: Ranks,
        world_size: int,
    ) -> None:
        _refuse_uncounted(cells, given)
        self.cells, self.given = cells, given  # not by name, and by name
        # The train cell, whose calls count.
        self.cell = next((cell for cell in cells if isinstance(cell, AccumulationTrainCell)), cells[0])
        may_change_k = training.on_k_change == "next_cycle"
        self.counting = counting_of(self.cell, cells, training.cycle, may_change_k=may_change_k)
        self.position = position_of(dataset, training.augmentation, observer)
        self.batches = dataset if isinstance(dataset, Resumable) else None
        # The train cell, where the loop has to tell it that an epoch ends; a loop may set its `remainder` at any time.
        is_own = self.batches is None and isinstance(self.position, DatasetPosition)
        self._cell_in_own_loop = self.cell if is_own and isinstance(self.cell, AccumulationTrainCell) else None
        # What stores each of those given by name.
        self.stateful = {name: stateful_of(name, value, may_change_k=may_change_k) for name, value in given.items()}
        self.named_cells = {name: holder for name, holder in self.stateful.items() if isinstance(holder, NamedCell)}
        self.parameters = CellParameters(cells, frozen, self.steady_optimizers(), ranks.placement)
        cut = self.parameters.roles.cut()
        if cut and world_size > 1 and isinstance(self.cell, AccumulationTrainCell):
            raise ValueError(
                f"placement says that {some(cut)} are parts of larger parameters, but an "
                "AccumulationTrainCell adds up the gradients of all ranks, which are those of other parts. Train cut "
                "parameters with a cell of your own"
            )
        self.open_batch = OpenBatch(is_handed_out=self.batches is not None)
        self.detached = detached_of(cells, given)
        self.rates = self.parameters.rates()  # digests of those that the run began with
        tensors, names = self.parameters.tensors(), self.parameters.roles.of_networks
        of_networks = [tensor for name, tensor in tensors.items() if name in names and isinstance(tensor, ms.Parameter)]
        self._switches = {"": Switches(cells, of_networks)}  # those of `cells`, and by name
        for name, cell in self.cells_by_name():
            if name not in self.named_cells:
                # The weights of an optimizer belong to its network.
                weights = () if optimizers_of([cell]) else tuple(cell.get_parameters())
                self._switches[name] = Switches([cell], weights, name)
        named = {**dict(self.trained_by_name()), **{name: cell.cell for name, cell in self.named_cells.items()}}
        self._kept_by_name = [KeptParameters([cell], name) for name, cell in named.items()]
        numbered = {f"cells[{place}]" if place else "": cell for place, cell in enumerate(cells)}
        self.numerics = Numerics({**numbered, **dict(self.cells_by_name())})
        self.shared_memory = SharedMemory(self.parameters, self.tensors_by_name)
        self.first_world: int | None = None  # number of ranks that the run began with; None for that of this job
        self.ended: str | None = None  # why training ended for good
        self.prepared = False  # data and switches, by a start
        self.cycle_start: CycleStart | None = None
        self.arrays: Mapping[str, str] = {}  # ``callbacks``: the classes that the run began with
        self.is_compiled = False  # the loop reaches a compiled function, which may train

    def steady_optimizers(self) -> list[nn.Cell]:
        """Return the steady optimizers whose parameters no train cell given by name updates, as that is not fenced."""
        others = [value.optimizer for value in self.given.values() if isinstance(value, AccumulationTrainCell)]
        written = {id(parameter) for optimizer in others for parameter in optimizer.get_parameters()}
        steady = self.counting.steady_optimizers()
        return [cell for cell in steady if written.isdisjoint(map(id, cell.get_parameters()))]

    def tensors_by_name(self) -> dict[str, ms.Tensor]:
        holders = [(name, holder) for name, holder in self.stateful.items() if isinstance(holder, ParameterHolder)]
        return {f"{name}/{place}": tensor for name, holder in holders for place, tensor in holder.tensors().items()}

    def tensors(self) -> dict[str, ms.Tensor]:
        return {**self.tensors_by_name(), **self.parameters.tensors()}

    @functools.cached_property
    def every_cell(self) -> list[nn.Cell]:
        return [*self.cells, *(named_cell.cell for named_cell in self.named_cells.values())]

    def cells_by_name(self) -> list[tuple[str, nn.Cell]]:
        return [(name, cell) for name, cell in self.given.items() if isinstance(cell, nn.Cell)]

    def trained_by_name(self) -> list[tuple[str, nn.Cell]]:
        """Return the other cells given by name that are trained: optimizers, and what an optimizer changes.

        Without an optimizer, all of them; see `StateManager`, whose list of cells may be empty.
        """
        known = {id(cell) for cell in self.every_cell}
        others = [(name, cell) for name, cell in self.cells_by_name() if id(cell) not in known]
        optimizers = optimizers_of([*self.every_cell, *(cell for _, cell in others)])
        changed = {id(parameter) for optimizer in optimizers for parameter in getattr(optimizer, "parameters", ())}
        return [
            (name, cell)
            for name, cell in others
            if not changed or optimizers_of([cell]) or not changed.isdisjoint(map(id, cell.get_parameters()))
        ]

    def refuse_detached(self) -> None:
        for memory in self.detached:
            memory.refuse()

    @functools.cached_property
    def switches(self) -> list[Switches]:
        return [*self._switches.values(), *(named_cell.switches for named_cell in self.named_cells.values())]

    @property
    def loader(self) -> Any:
        """The iterable of the data, if checkpoints hold the state that it gives of itself; None otherwise."""
        return self.position.stateful if isinstance(self.position, IterablePosition) else None

    def by_model(self) -> bool:
        """Return whether ``Model`` trains; a loop of the user's gives no callbacks."""
        return any(isinstance(holder, OtherCallbacks) for holder in self.stateful.values())

    def deliver(self, batches: int | None) -> None:
        """Count a delivered batch as `OwnCounting.deliver`; note the modes of its micro-step."""
        if self.batches is not None:  # it is handed out, and begins a micro-step; any other has ended one
            self.open_batch.begin()
        delivered = self.counting.deliver(batches)
        # The modes of a graph are stored, and asking every cell takes longer than all else of a micro-step.
        is_graph = self.is_compiled or mode_in_force() == "GRAPH"
        for switches in self._switches.values():
            if switches.begun_at is not None:
                switches.check_compiled(delivered, compiled=self.is_compiled)
            if not is_graph:
                switches.note()
            if switches.staying and self.batches is None:
                switches.end_step()

    def check_switches(self, delivered: int) -> None:
        for switches in self._switches.values():
            switches.check_compiled(delivered, compiled=self.is_compiled)
        for named_cell in self.named_cells.values():
            named_cell.switches.check_compiled(named_cell.cell.counters.micro_steps)

    def load_switches(self, recorded: Mapping[str, Any] | None, delivered: int) -> None:
        by_name = {"": recorded, **(recorded or {}).get("by_name", {})}
        for name, switches in self._switches.items():
            switches.load(by_name.get(name), delivered)

    def put_back(self) -> None:
        """Undo what the script has switched since the start; does nothing once the loop trains."""
        for switches in self.switches:
            switches.put_back(by_model=self.by_model())

    def progress(self) -> Progress:
        """Return the position of the training; ResumeError if the counters of cell and data disagree."""
        counters, delivered = self.counting.now()
        epoch, batch = self.position.at(delivered) if self.position else (0, delivered)
        cell = self._cell_in_own_loop
        if self.position and cell is not None and counters.micro_step > batch and cell.remainder != "carry":
            raise ResumeError(
                f'an epoch of {self.position.size} batches ended within a cycle and remainder="{cell.remainder}" '
                "was not applied: call the train cell's end_epoch() after the last micro-step of each epoch, "
                "before the save there"
            )
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
        except ValueError as error:
            advice = "Call it once per batch and for nothing else; evaluate with the network instead."
            if self.batches is not None and delivered > counters.micro_steps:
                advice = (
                    "Call it once for each batch. If the loop, or a generator around resumable(), takes the next batch "
                    "before this one is trained, a resume would skip it: read ahead before resumable() instead, in the "
                    "__iter__ of a loader that is given to it."
                )
            raise ResumeError(
                f"the train cell was called {counters.micro_steps} times, but {delivered} batches were delivered. "
                f"{advice}"
            ) from error

    def sections(self, progress: Progress, ranks: int) -> dict[str, Any]:
        for kept in self._kept_by_name:
            kept.refuse_replaced()
        how = {"by_model": self.by_model(), "compiled": self.is_compiled}
        by_name = {name: switches.record(**how) for name, switches in self._switches.items()}
        own = by_name.pop("")
        return {
            "rng": capture_rng(),
            "data": self.position.state(progress.batches_delivered) if self.position else None,
            "train": {
                "cell": type(self.cell).__qualname__,
                "ended": self.ended,
                "first_world": ranks if self.first_world is None else self.first_world,
                "mode": mode_in_force(),
                "numerics": self.numerics.record(),
                "switches": {**own, "by_name": by_name} if by_name else own,
                "rates": self.rates,
                "arrays": self.arrays,
                "shared_memory": self.shared_memory.groups(),
                **self.counting.record(),
            },
            "user": {name: stateful.state_dict() for name, stateful in self.stateful.items()},
        }

    def holding_memory(self, states: Mapping[str, Any]) -> tuple[str, list[str]]:
        """Return the first object given by name that holds arrays in the memory of parameters, and their names.

        ``states`` are the objects' states, as just taken.
        """
        tensors = self.parameters.tensors().items() if can_be_live() else ()
        # Private, since mindtorch replaces `Tensor.nbytes`. If MindSpore's own moves, this raises AttributeError.
        places = [(tensor.data_ptr(), tensor.data_ptr() + tensor._nbytes, name) for name, tensor in tensors]
        for given, stateful in self.stateful.items() if places else ():
            if isinstance(stateful, ParameterHolder) and not isinstance(self.given[given], NamedAttributes):
                continue  # what it gives is that memory
            shown = {id(array): array.__array_interface__["data"][0] for array in _shown_in(states[given])}
            # An array that is made for the state is another one at each call.
            held = [shown[id(array)] for array in _shown_in(state_of(stateful)) if id(array) in shown] if shown else []
            names = {name for begin, end, name in places if any(begin <= address < end for address in held)}
            if names:
                return given, sorted(names)
        return "", []


def captured(progress: Progress, leaves: list[Leaf], sections: Mapping[str, Any]) -> Capture:
    """Return a capture of ``leaves`` and ``sections``; TypeError if ``sections`` hold a value that cannot be stored."""
    state = {name: encode_tree(section, name, leaves) for name, section in sections.items()}
    return Capture(progress, tuple(leaves), state)


def decoded(contents: Contents) -> dict[str, Any]:
    """Return the sections of a checkpoint; StateMismatchError if it is not of a MindSpore training."""
    for name in _SECTIONS:
        if name not in contents.state:
            raise StateMismatchError(
                f"the checkpoint {contents.checkpoint} has no section {name!r}: it was not made by a StateManager"
            )
    sections = {name: contents.state.get(name) for name in (*_SECTIONS, _OBSERVED)}
    try:
        state = {name: decode_tree(section, contents.state_tensors) for name, section in sections.items()}
    except ValueError as error:
        raise CorruptCheckpointError(f"{contents.checkpoint}: {error}") from error
    for unsaid in _MAY_BE_UNSAID:
        state["train"].setdefault(unsaid, None)
    # A run that has known only one world may omit it.
    first_world = state["train"].setdefault("first_world", contents.world_size)
    if isinstance(first_world, bool) or not isinstance(first_world, int) or first_world < 1:
        raise CorruptCheckpointError(f"{contents.checkpoint}: the run began with {first_world!r} ranks")
    if state["train"].keys() != _TRAIN_KEYS:
        raise StateMismatchError(
            f"the section train of {contents.checkpoint} has {sorted(state['train'])}, not {sorted(_TRAIN_KEYS)}: it "
            "was made by another version of ckptkit. Install that one, or start under another root"
        )
    return state


def _refuse_uncounted(cells: Sequence[nn.Cell], named: Mapping[str, object]) -> None:
    """Raise ValueError unless at most one `AccumulationTrainCell` counts for the training and all others have a name.

    The first one among ``cells`` counts.
    """
    first = next((cell for cell in cells if isinstance(cell, AccumulationTrainCell)), None)
    inside = [inner for cell in cells for _, inner in cell.cells_and_names()]
    given = {id(value) for value in (first, *named.values())}
    lost = [cell for cell in inside if isinstance(cell, AccumulationTrainCell) and id(cell) not in given]
    if lost:
        counting = [
            f"the AccumulationTrainCell of {type(cell.network).__name__} ({cell.optimizer.parameters[0].name}, ...)"
            for cell in ([first] if first is not None else []) + lost
        ]
        first_words = "the one that is called once per batch" if first is not None else "the cell around it"
        raise ValueError(
            f"each of these counts its own cycles: {' and '.join(counting)}. Give {first_words} first, alone, and "
            "every other one by a name of its own: StateManager(CELL, dataset, NAME=OTHER_CELL), or "
            'CheckpointCallback(stateful={"NAME": OTHER_CELL})'
        )


def _shown_in(state: Any) -> Iterator[Array]:
    """Yield the arrays in a state that have no memory of their own."""
    if isinstance(state, (Mapping, list, tuple)):
        for part in state.values() if isinstance(state, Mapping) else state:
            yield from _shown_in(part)
    elif isinstance(state, np.ndarray) and state.base is not None and state.size:
        yield state
