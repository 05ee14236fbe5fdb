"""Captures and restores everything that a checkpoint of a MindSpore training holds, by `StateManager`.

Guarantees: a capture is taken after every running operation has ended and advances no generator. A restore compares
every leaf, the accumulation steps, the data pipeline and its own counters before it changes anything; then it changes
all of it or, if reading fails, refuses to continue. It does not write files. Main thread only, between two
micro-steps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mindspore.dataset as ds
from mindspore import nn

from ckptkit.core.contents import Capture, Contents
from ckptkit.core.process_group import World
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import Leaf, digests_of
from ckptkit.core.text import some
from ckptkit.errors import ResumeError
from ckptkit.manager.options import Ranks, refuse_other_types
from ckptkit.mindspore.data.resumable import Resumable
from ckptkit.mindspore.nn.dropout import Dropout
from ckptkit.mindspore.observe.random_operators import Finding
from ckptkit.mindspore.parameters.roles import cells_of
from ckptkit.mindspore.process_group import world
from ckptkit.mindspore.rng import words_drawn_unseeded
from ckptkit.mindspore.state.cell_settings import warn_of_other_values
from ckptkit.mindspore.state.digest import differing
from ckptkit.mindspore.state.findings import Examination
from ckptkit.mindspore.state.restore import Start
from ckptkit.mindspore.state.sources import CycleStart, Sources, Training, captured
from ckptkit.mindspore.state.stateful_objects import Stateful
from ckptkit.mindspore.train.cell import AccumulationTrainCell, refuse_half_done

__all__ = ["StateManager", "Stateful", "Training"]

# MindSpore's classes share no public base class.
_KEEP_STATE = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, Dropout)
_WHY_NOT_AGAIN = (
    'Saving(mid_cycle="rewind") begins the running cycle again, and the same micro-batches would change this state '
    'a second time. Use "exact", which stores the accumulators, or "align", which saves at boundaries'
)


class StateManager:
    """Holds the whole state of one training, for `CheckpointManager.restore`, ``step`` and ``save``.

    Args:
        train_cell: The cell that is called once per micro-batch: an `AccumulationTrainCell`, or any other
            training cell, of which every call counts as a cycle unless there is a `CycleAdapter`. A loop without
            a train cell gives a list of its network, its optimizer and any other cells, with None for those that it
            does not have, ``[]`` if it has none. Give a further `AccumulationTrainCell`, such as that of a GAN's second
            network, by name. The cells' parameters and buffers (``register_buffer``, persistent or not) are stored.
        dataset: The pipeline that feeds the cell, or the result of `ckptkit.data.resumable` for it; None if the loop
            positions its data itself.
        frozen: Names of the network's parameters that training never changes, or a predicate, which is called for
            those only. They are written once per attempt and shared by its checkpoints.
        strict: Refuse what cannot be exact (see `findings`) instead of warning.
        training: What ckptkit cannot see in the code of the training.
        ranks: What matters in a job of many ranks.
        **stateful: Objects with ``state_dict()`` and ``load_state_dict()``, random generators of NumPy and Python,
            or objects with parameters in them (`amp.DynamicLossScaler`, learning-rate schedulers, cells, a parameter),
            stored by name; for objects of your own, with their plain attributes. `attributes` of an object stores those
            that it names. An `AccumulationTrainCell` is stored with its K and cycle, and may be called in any rhythm.
            The others' ``end_epoch`` does not include it: if its ``remainder`` is not ``"carry"``, the loop must call
            its ``end_epoch`` before the save.

    Attributes:
        cell: The train cell; of several cells the first `AccumulationTrainCell`, or else the first.
        position: Position in the dataset; None without one.
        last_batch: The columns that the last micro-step got, if reported; see `observe_step`.
        last_outputs: What the train cell returned for them.

    In one's own loop::

        state = ck.StateManager(cell, dataset)
        point = manager.restore(state)
        batches = dataset.create_tuple_iterator(num_epochs=epochs)
        state.iterator_made()

    Raises:
        TypeError: If a stateful object has neither the two methods nor a parameter, a cell is not an `nn.Cell`,
            ``cycle`` is not a `CycleAdapter`, or ``placement`` gives something else.
        ValueError: If an `AccumulationTrainCell` besides the first one, among the cells or inside them, has no name,
            or is given with ``cycle``; ``placement`` cuts parameters of one in a job of many ranks; an option has an
            unknown value; a box does not fit its parameter; or ``augmentation`` is given with a `resumable`.
        StateMismatchError: If parameters or buffers of two cells have one name, or ``frozen`` names no parameter, one
            that no network has, or one that an optimizer updates.
    """

    def __init__(
        self,
        train_cell: nn.Cell | Sequence[nn.Cell | None],
        dataset: ds.Dataset | Resumable | None = None,
        *,
        frozen: Iterable[str] | Callable[[str], bool] | None = None,
        strict: bool = False,
        training: Training | None = None,
        ranks: Ranks | None = None,
        **stateful: Any,
    ) -> None:
        refuse_other_types(training=(training, Training), ranks=(ranks, Ranks))
        training, ranks = training or Training(), ranks or Ranks()
        self._sources = Sources(
            cells_of(train_cell, stateful),
            stateful,
            dataset,
            self,
            frozen=frozen,
            training=training,
            ranks=ranks,
            world_size=self.world.size,
        )
        self.cell, self.position = self._sources.cell, self._sources.position
        self.examination = Examination(self._sources, strict=strict, ignore=training.ignore)
        self.start = Start(self._sources, self.examination, elastic=ranks.elastic)
        self.last_batch: Any = None
        self.last_outputs: Any = None
        self._marks_cycles = False
        self.has_all_epochs: Callable[[], bool] = dataset.is_over if isinstance(dataset, Resumable) else lambda: False

    @property
    def world(self) -> World:
        """The ranks of this job, as MindSpore's communication knows them now."""
        return world()

    @property
    def ended(self) -> str | None:
        """Why training ended for good, or None while it may continue."""
        return self._sources.ended

    def end(self, why: str | None) -> None:
        """Record ``why`` training ended for good; such a run is complete when it is started again."""
        self._sources.ended = why

    def is_over(self) -> bool:
        """Whether nothing is left to train: training ended for good, or all epochs were delivered, where that shows."""
        return self.ended is not None or self.has_all_epochs()

    def findings(self) -> tuple[Finding, ...]:
        """Return what no checkpoint of this training can make exact, in the present mode; runs nothing."""
        return self.examination.findings()

    def count_delivered(self, batches: int | None = None) -> None:
        """Set the number of batches delivered to training since epoch 0, or add one.

        An `AccumulationTrainCell` counts its own calls; with this call too, a capture requires that both agree. For
        any other cell, one's own loop has to call this after every batch; `CheckpointCallback` does it itself.

        Raises:
            ValueError: If ``batches`` is negative.
        """
        if batches is not None and batches < 0:
            raise ValueError(f"count_delivered({batches}): batches are counted from 0")
        self._sources.deliver(batches)

    def end_epoch(self) -> None:
        """Tell an `AccumulationTrainCell` that an epoch ended; does nothing for another cell."""
        self._sources.counting.end_epoch()
        self._sources.refuse_detached()  # the last epoch, too, which no save may have been due in

    def observe_step(self, batch: Any, outputs: Any) -> None:
        """Keep references to the inputs and outputs of the last micro-step, until the next one."""
        self.last_batch = batch
        self.last_outputs = outputs

    def observer(self) -> Any:
        """Return a `StateObserver` of all this state, for ``ckptkit doctor``."""
        from ckptkit.mindspore.state.doctor_digests import StateObserver

        return StateObserver(self, self._sources, self.examination)

    def progress(self) -> Progress:
        """Return the position of the training.

        Raises:
            ResumeError: If the cell's and the data's counters disagree, so that no resume could be exact, if another
                thread takes the batches of a `ckptkit.data.resumable`, if the last call of an `AccumulationTrainCell`
                was interrupted, or if a restore failed after it had changed something, and none has succeeded since.
        """
        refuse_half_done(self._sources.every_cell)
        if self._sources.batches is not None:
            self._sources.batches.refuse_another_thread()
            self.examination.judge_doubt(self._sources.counting.read_ahead())
        progress = self._sources.progress()
        for memory in self._sources.detached:
            if not memory.bound:
                memory.bind(progress.updates)
        for switches in self._sources.switches:
            if switches.begun_at is not None:
                self._sources.check_switches(progress.batches_delivered)
        return progress

    def complete_step(self) -> Progress:
        """Return the same as `progress`, and note that the last batch has been trained."""
        self._sources.open_batch.end()
        for switches in self._sources.switches:
            if switches.staying:
                switches.end_step()
        progress = self.progress()
        self.examination.end_step(progress.epoch)
        return progress

    def capture(self) -> Capture:
        """Return references to the whole state as it is now.

        Raises:
            ResumeError: As `progress`: such a checkpoint could not be resumed exactly. Or ``strict`` refuses.
            IncompleteStepError: If a batch was handed out, and `complete_step` was not called after it.
            TypeError: If a checkpoint cannot store something in the state; names it.
        """
        progress = self.progress()
        self._sources.open_batch.refuse(progress.batches_delivered)
        leaves = self._sources.parameters.leaves(at_boundary=progress.at_boundary)
        sections = self._sections(progress)  # before judge_save, with which strict refuses less
        self.examination.judge_save(leaves, sections["user"])
        if self._sources.ended is None:
            self._sources.counting.prove(progress, self._sources.parameters)
            if not self.is_over():  # then no update follows, and the best weights may have been loaded
                self._sources.refuse_detached()
        return captured(progress, leaves, sections)

    def leaves(self, *, at_boundary: bool) -> list[Leaf]:
        """Return references to all parameters and buffers; at a boundary without the accumulators."""
        return self._sources.parameters.leaves(at_boundary=at_boundary)

    def guard(self, fence: Callable[[], None]) -> None:
        """Call ``fence`` once, before the next update of the optimizer's parameters."""
        self._sources.counting.guard(fence)

    def mark_cycle_start(self) -> Progress:
        """At a boundary, keep what `capture_cycle_start` needs in the cycle that begins; return the position.

        Raises:
            ResumeError: If the cycle could not begin again: the forward pass changes parameters, or the train cell
                is not an `AccumulationTrainCell`.
        """
        if not isinstance(self.cell, AccumulationTrainCell):
            raise ResumeError(
                'Saving(mid_cycle="rewind") needs an AccumulationTrainCell, which knows where a cycle begins; this is '
                f'a {type(self.cell).__name__}. Use "exact"'
            )
        inner = self.cell.cells_and_names()
        keeping = [f"{name} ({type(cell).__name__})" for name, cell in inner if isinstance(cell, _KEEP_STATE)]
        if keeping:
            raise ResumeError(f"{some(keeping)} keeps state of every micro-batch. {_WHY_NOT_AGAIN}.")
        self._marks_cycles = True
        # Not progress(): this also runs before a restore, with parameters half restored.
        progress = self._sources.progress()
        if progress.at_boundary:
            sections = copy.deepcopy(self._sections(progress)) if self._sources.prepared else {}
            self._sources.cycle_start = CycleStart(progress, sections, self._digests_between_updates())
        return progress

    def _sections(self, progress: Progress) -> dict[str, Any]:
        sections = self._sources.sections(progress, self.world.size)
        observed = self.examination.observed()
        return sections if observed is None else {**sections, "observed": observed}

    def _digests_between_updates(self) -> dict[str, str]:
        return digests_of([*self._sources.parameters.mutable_leaves()])

    def capture_cycle_start(self) -> Capture:
        """Return references to the whole state as it was when the running cycle began.

        Returns the present state if a restore from the middle of the running cycle left no cycle start to go back to.

        Raises:
            ResumeError: If something else than the accumulators changed since then; names it.
            TypeError: As `capture`.
        """
        start = self._sources.cycle_start
        if start is None or start.progress.cycles != self.progress().cycles:
            return self.capture()
        changed = differing(start.digests, self._digests_between_updates())
        if changed:
            raise ResumeError(f"{some(changed)} changed since the cycle began. {_WHY_NOT_AGAIN}.")
        leaves = self._sources.parameters.leaves(at_boundary=True)
        self._sources.refuse_detached()
        return captured(start.progress, leaves, start.sections)

    def apply(self, contents: Contents) -> None:
        """Restore a checkpoint: parameters, counters, user objects, data position, random state.

        With a dataset, make its iterator next and then call `iterator_made`; `CheckpointCallback` does that.

        The parameters are read straight into their memory, and only then is it known whether they were altered. If
        reading fails, they are partly those of the checkpoint, and nothing else has been changed: from then on
        `progress`, `capture` and `begin` refuse, for every `StateManager` over one of these cells, as does a call of an
        `AccumulationTrainCell`, until another `apply` has succeeded. The call of any other cell, and of the network
        by itself, cannot be refused: do not train it after a restore that raised.

        Raises:
            StateMismatchError: If leaves or stateful objects differ; names the first of them. Nothing was changed.
            ResumeError: If K, the data pipeline or the counters differ, the number of ranks differs and ``elastic`` is
                not set or does not fit, or ``strict`` refuses. Nothing was changed.
            CorruptCheckpointError: If the stored state is malformed: nothing was changed. Or if a file of the
                parameters is altered: they are half restored, unless the file's size revealed it.
            CheckpointNotFoundError, StorageError: If reading failed; the parameters may be half restored.
        """
        if self._sources.batches is not None:
            self._sources.batches.refuse_begun()
        words_drawn_unseeded()  # before the seed of the data is set; a refusal of the data asks for it
        self.start.restore(contents, self.world)
        self._begin_own_loop()
        self.last_batch = self.last_outputs = None

    def begin(self, root: str) -> None:
        """Start afresh: seed the data and the operators if the user has not.

        With a dataset, make its iterator next and then call `iterator_made`.

        Raises:
            ResumeError: If the train cell has been called already: a later resume could not begin there. Or if this
                process began the run at ``root`` before and changed parameters since, which no checkpoint can undo.
                Or ``strict`` refuses. Or as `progress`.
        """
        if self._sources.batches is not None:
            self._sources.batches.refuse_begun()
        self.start.begin(root)
        self._begin_own_loop()

    def _begin_own_loop(self) -> None:
        """Begin to observe a loop that positions its data itself: there is no later moment that ckptkit knows."""
        self._sources.open_batch.restored()
        if self.position is None:
            self.examination.begin()

    def iterator_made(self) -> None:
        """Put back what was changed since the restore; call right after the dataset's iterator was made.

        Raises:
            ResumeError: If the dataset seed was changed since the restore, or ``strict`` refuses.
        """
        if self.position is not None:
            self.position.iterator_made()
        if self._sources.batches is not None:
            self._sources.counting.begin_loop()
        if changed := self.start.undo_changes():
            warn_of_other_values(changed)
        self.start.trained()
        if self._sources.batches is None:
            self.examination.begin()
        self.mark_again()

    def hand_out(self, batch: Any, delivered: int, *, ends_epoch: bool) -> None:
        """Note that a batch of `resumable`, the last of ``delivered``, is handed out to the loop.

        As the first one is, put back what the script keeps itself.
        """
        self._sources.deliver(delivered)
        self.observe_step(batch, None)
        self._sources.counting.expect_epoch_end(ends_epoch)
        self.examination.begin(ends_epoch=ends_epoch)

    def ask_batch(self) -> None:
        """Note that the last batch is done, and look at what the script does after its step(); call it for the next."""
        self._sources.open_batch.end()
        self.examination.ask_batch()

    def mark_again(self) -> None:
        """Mark the cycle start again, if cycle starts are marked: draws since the restore are kept."""
        if self._marks_cycles:
            self.mark_cycle_start()
