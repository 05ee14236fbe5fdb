"""`StateManager`: everything a checkpoint of a MindSpore training holds, and how it gets back.

Guarantees: a capture is taken after every operation under way has ended and advances no generator; a restore
compares every leaf, the accumulation steps, the data pipeline and its own counters before it changes
anything, and then changes all of it. It does not write files. Main thread only, between two micro-steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn
from pydantic import JsonValue, ValidationError

from ckptkit.contents import Capture, Contents
from ckptkit.errors import CorruptCheckpointError, ResumeError, StateMismatchError
from ckptkit.mindspore.cycle import CycleCounters
from ckptkit.mindspore.data.position import Position
from ckptkit.mindspore.data.resumable import Resumable
from ckptkit.mindspore.dataset import Augmentation, DatasetPosition
from ckptkit.mindspore.parameters import CellParameters
from ckptkit.mindspore.proof import (
    check_cycle,
    check_data,
    check_leaves,
    check_stateful,
    prove_divisor,
    prove_updates,
)
from ckptkit.mindspore.rng import capture_rng, restore_rng, seed_operators
from ckptkit.mindspore.train_cell import AccumulationTrainCell
from ckptkit.progress import Progress
from ckptkit.tensors import Array
from ckptkit.tree import decode_tree, encode_tree


@runtime_checkable
class Stateful(Protocol):
    """Any object of the user's own that a checkpoint should hold."""

    def state_dict(self) -> Any:
        """Plain values, containers and NumPy arrays; must not advance the object."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Take over what `state_dict` returned, in another process."""
        ...


class StateManager:
    """The whole state of one training, for `CheckpointManager.restore`, ``step`` and ``save``.

    Args:
        train_cell: The cell that is called once per micro-batch: an `AccumulationTrainCell`, or any other
            training cell, of which every call counts as a cycle.
        dataset: The pipeline that feeds it, or what `ckptkit.data.resumable` made of it; None if the loop
            positions its data itself.
        frozen: Names of parameters that training never changes, or a predicate over parameter names. They
            are written once per attempt and shared by its checkpoints.
        augmentation: ``"stateless"`` declares that the user's own code in the dataset depends on its input only,
            so that a resume need not replay the batches before; the first batch is checked either way.
        **stateful: Objects with ``state_dict()`` and ``load_state_dict()``, stored by name.

    Attributes:
        cell: The train cell.
        position: Of the dataset; None without one.
        last_batch: The columns that the last micro-step got, where somebody tells; see `observe_step`.
        last_outputs: What the train cell returned for them.

    In one's own loop::

        state = ck.StateManager(cell, dataset)
        point = manager.restore(state)
        batches = dataset.create_tuple_iterator(num_epochs=epochs)
        state.iterator_made()

    Raises:
        TypeError: If a stateful object lacks one of the two methods, or the cell is not an `nn.Cell`.
        ValueError: If ``augmentation`` is something else, or is given beside a `ckptkit.data.resumable`.
        StateMismatchError: If two parameters have one name, or ``frozen`` names none.
    """

    def __init__(
        self,
        train_cell: nn.Cell,
        dataset: ds.Dataset | Resumable | None = None,
        *,
        frozen: Iterable[str] | Callable[[str], bool] | None = None,
        augmentation: Augmentation = None,
        **stateful: Stateful,
    ) -> None:
        if not isinstance(train_cell, nn.Cell):
            raise TypeError(f"train_cell must be an nn.Cell, got {type(train_cell).__name__}")
        for name, one in stateful.items():
            if not isinstance(one, Stateful):
                raise TypeError(f"{name}: a {type(one).__name__} has no state_dict() and load_state_dict()")
        self.cell = train_cell
        self._batches = dataset if isinstance(dataset, Resumable) else None
        self.position = self._position_of(dataset, augmentation)
        self._ended: str | None = None
        self._stateful = stateful
        self._parameters = CellParameters(train_cell, frozen)
        self._optimizer: nn.Optimizer | None = getattr(train_cell, "optimizer", None)
        self.last_batch: Any = None
        self.last_outputs: Any = None
        self._delivered: int | None = None
        self._global_step_base = self._global_step_at_start()
        self._rng: dict[str, Any] | None = None
        self._restored: Contents | None = None
        self._prepared = False

    @property
    def ended(self) -> str | None:
        """Why training ended for good, or None while it may go on."""
        return self._ended

    def end(self, why: str | None) -> None:
        """Record ``why`` training ended for good; a run that has ended is complete when it is started again."""
        self._ended = why

    def stateful_objects(self) -> list[Stateful]:
        """The objects that are stored by name."""
        return list(self._stateful.values())

    def count_delivered(self, batches: int) -> None:
        """Tell how many batches were delivered to training since epoch 0, where somebody counts them.

        An `AccumulationTrainCell` counts its own calls; told both, a capture insists that they agree. For
        any other cell, one's own loop has to call this after every batch; `CheckpointCallback` does it itself.
        """
        self._delivered = batches

    def observe_step(self, batch: Any, outputs: Any) -> None:
        """Keep references to what the last micro-step got and returned, until the next one."""
        self.last_batch = batch
        self.last_outputs = outputs

    def progress(self) -> Progress:
        """Where the training stands.

        Raises:
            ResumeError: If the cell's and the data's counters disagree, so that no resume could be exact.
        """
        if isinstance(self.cell, AccumulationTrainCell):
            counters = self.cell.counters
            delivered = counters.micro_steps if self._delivered is None else self._delivered
        else:
            delivered = self._delivered or 0
            counters = CycleCounters(1, 0, delivered, delivered, delivered, delivered)
        epoch, batch = self.position.at(delivered) if self.position else (0, delivered)
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
                f"the train cell was called {counters.micro_steps} times, but {delivered} batches were "
                "delivered. Call it once per batch and for nothing else; evaluate with the network instead."
            ) from error

    def capture(self) -> Capture:
        """References to the whole state as it is now.

        Raises:
            ResumeError: If the counters disagree: such a checkpoint could not be resumed exactly.
            TypeError: If something in the state has no place in a checkpoint; names it.
        """
        progress = self.progress()
        leaves = list(self._parameters.leaves(at_boundary=progress.at_boundary))
        if self._ended is None and isinstance(self.cell, AccumulationTrainCell):
            self._prove(progress, {leaf.name: leaf.array for leaf in leaves}, self._global_step_base)
        sections = {
            "rng": capture_rng(),
            "data": self.position.state(progress.batches_delivered, self.last_batch) if self.position else None,
            "train": {
                "cell": type(self.cell).__qualname__,
                "global_step_at_start": self._global_step_base,
                "ended": self._ended,
            },
            "user": {name: one.state_dict() for name, one in self._stateful.items()},
        }
        state = {name: encode_tree(section, name, leaves) for name, section in sections.items()}
        return Capture(progress, tuple(leaves), state)

    def apply(self, contents: Contents) -> None:
        """Take over a checkpoint: parameters, counters, user objects, data position, random state.

        With a dataset, make its iterator next and then call `iterator_made`; `CheckpointCallback` does that.

        Raises:
            StateMismatchError: If leaves or stateful objects differ; names every one. Nothing was changed.
            ResumeError: If K, the data pipeline or the counters differ. Nothing was changed.
            CorruptCheckpointError: If the stored state makes no sense. Nothing was changed.
        """
        if self._batches is not None:
            self._batches.refuse_begun()
        state = _decoded(contents)
        expected = self._parameters.leaves(at_boundary=contents.progress.at_boundary)
        check_leaves(contents, {leaf.name: leaf for leaf in expected})
        check_stateful(self._stateful.keys(), state["user"].keys())
        check_data(contents, self.position, state["data"])
        accumulates = isinstance(self.cell, AccumulationTrainCell)
        check_cycle(contents, self.cell.accumulation_steps if accumulates else 1)
        # When EarlyStopping ends a training, it may put the best weights back, accumulators and counters with them.
        if accumulates and state["train"]["ended"] is None:
            self._prove(contents.progress, contents.tensors, state["train"]["global_step_at_start"])
        self._parameters.assign(contents)
        progress = contents.progress
        if isinstance(self.cell, AccumulationTrainCell):
            self.cell.load_counters(_counters(progress))
        # An AccumulationTrainCell counts for itself, until somebody counts beside it.
        counts_itself = isinstance(self.cell, AccumulationTrainCell)
        self._delivered = None if counts_itself else progress.batches_delivered
        self.last_batch = self.last_outputs = None
        self._global_step_base = state["train"]["global_step_at_start"]
        self._ended = state["train"]["ended"]
        if self.position is not None:
            self.position.prepare(progress.batches_delivered, state["data"])
        self._prepared = True
        for name, one in self._stateful.items():
            one.load_state_dict(state["user"][name])
        self._rng = state["rng"]
        restore_rng(self._rng)
        self._restored = contents

    def begin(self) -> None:
        """Start afresh: settle the seeds of the data and of the operators where the user has set none.

        With a dataset, make its iterator next and then call `iterator_made`.

        Raises:
            ResumeError: If the train cell has been called already: a later resume could not begin there.
        """
        if self._batches is not None:
            self._batches.refuse_begun()
        called = self.progress().batches_delivered
        if called:
            raise ResumeError(
                f"there is no checkpoint to resume, but the train cell was called {called} times already. "
                "Build a new one for another run, or give the root of the run that it belongs to."
            )
        seed_operators()
        if self.position is not None and not self._prepared:
            self.position.prepare(0, None)
        self._prepared = True

    def iterator_made(self) -> None:
        """Call right after the dataset's iterator was made: restores the random state once more.

        Raises:
            ResumeError: If the dataset seed was changed since the restore.
        """
        if self.position is not None:
            self.position.iterator_made()
        self.restore_random_state()
        self.trained()

    def restore_random_state(self) -> None:
        """Put the checkpoint's random state back, after something drew that must not have; else do nothing."""
        if self._rng is not None:
            restore_rng(self._rng, keep=self.position.own_draws if self.position else ())

    def restore_again(self) -> None:
        """Undo what others did to parameters and random state since `apply`; without one, or trained, do nothing."""
        if self._restored is not None:
            self._parameters.assign(self._restored)
            self.restore_random_state()

    def trained(self) -> None:
        """Say that training goes on from here; `restore_again` has nothing to undo any more."""
        self._restored = None

    def release_data(self) -> None:
        """Leave the dataset and its seed as they were before, once training has ended or was refused."""
        if self.position is not None:
            self.position.leave()

    def _position_of(self, dataset: ds.Dataset | Resumable | None, augmentation: Augmentation) -> Position | None:
        if not isinstance(dataset, Resumable):
            return DatasetPosition(dataset, augmentation=augmentation) if dataset is not None else None
        if augmentation is not None:
            raise ValueError("augmentation: give it to ckptkit.data.resumable, which positions the data here")
        dataset.bind(self)
        return dataset.position

    def _global_step(self) -> int | None:
        step = getattr(self._optimizer, "global_step", None)
        return int(step.asnumpy().reshape(-1)[0]) if isinstance(step, ms.Parameter) else None

    def _global_step_at_start(self) -> int | None:
        step = self._global_step()
        if step is None or not isinstance(self.cell, AccumulationTrainCell):
            return step
        return step - self.cell.counters.updates  # of a cell that was called before, the run began back then

    def _prove(self, progress: Progress, arrays: Mapping[str, Array], base: int | None) -> None:
        """Compare what an `AccumulationTrainCell` counts in its parameters with what was counted beside it."""
        divisor = self.cell.accumulators[-1].name
        if divisor in arrays:
            prove_divisor(progress, divisor, float(arrays[divisor].reshape(-1)[0]))
        step = getattr(self._optimizer, "global_step", None)
        if isinstance(step, ms.Parameter):
            prove_updates(progress, int(arrays[step.name].reshape(-1)[0]), base)


def _counters(progress: Progress) -> CycleCounters:
    return CycleCounters(
        accumulation_steps=progress.accumulation_steps,
        micro_step=progress.micro_step,
        cycles=progress.cycles,
        updates=progress.updates,
        micro_steps=progress.batches_delivered,
        first_micro_step=progress.cycle_first_batch,
    )


def _decoded(contents: Contents) -> dict[str, Any]:
    sections = {name: _section(contents, name) for name in _SECTIONS}
    try:
        state = {name: decode_tree(section, contents.tensors) for name, section in sections.items()}
    except ValueError as error:
        raise CorruptCheckpointError(f"{contents.checkpoint}: {error}") from error
    return state


_SECTIONS = ("rng", "data", "train", "user")


def _section(contents: Contents, name: str) -> JsonValue:
    if name not in contents.state:
        raise StateMismatchError(
            f"the checkpoint {contents.checkpoint} has no section {name!r}: it was not made by a StateManager"
        )
    return contents.state[name]
