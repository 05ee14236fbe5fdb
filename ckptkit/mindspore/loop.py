"""Trains in a loop of one's own that resumes exactly: `loop`, and the `Loop` that it returns.

Guarantees: what `Loop` hands out is what the uninterrupted run would have trained next. A batch counts once the body of
the loop has ended; a save is taken between two bodies. In a loop of epochs, what follows the last batch of an epoch
belongs to its body. Main thread only.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import types
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from traceback import walk_tb
from typing import Any

import mindspore.dataset as ds
from mindspore import nn

from ckptkit.core.progress import ResumePoint
from ckptkit.core.save_policy import SavePolicy
from ckptkit.core.text import many
from ckptkit.errors import ResumeError
from ckptkit.manager.heartbeat import HEARTBEAT, Phase
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Mirrors, Preemption, Ranks, Saving, mirrors_of, refuse_other_types
from ckptkit.manager.process import AT_EXIT, show_log
from ckptkit.mindspore.data.resumable import Resumable, resumable
from ckptkit.mindspore.observe.walk_roots import users_frames
from ckptkit.mindspore.state.manager import StateManager, Training
from ckptkit.run.keep_policy import KeepPolicy, rankings
from ckptkit.storage import Storage

_log = logging.getLogger("ckptkit")
_ENDED: dict[str, tuple[types.CodeType | None, int]] = {}  # by run root: the script that ended its loop, and its epochs


def loop(
    root: str | os.PathLike[str] | Storage,
    dataset: ds.Dataset | Iterable[Any],
    epochs: int,
    *,
    train: nn.Cell | Sequence[nn.Cell | None],
    save: SavePolicy | None = None,
    keep: KeepPolicy | None = None,
    storage_options: Mapping[str, Any] | None = None,
    stateful: Mapping[str, Any] | None = None,
    frozen: Iterable[str] | Callable[[str], bool] | None = None,
    strict: bool = False,
    training: Training | None = None,
    saving: Saving | None = None,
    mirror: Mirrors = None,
    ranks: Ranks | None = None,
    preemption: Preemption | None = None,
    seed: int | None = None,
    as_dict: bool = False,
    checkpoint: str | int = "latest",
    rewind: bool = False,
) -> Loop:
    """Resume a training, and return the batches that it has left.

    ::

        for x, y in ck.loop("runs/x", dataset, epochs=3, train=[network, optimizer]):
            loss = step(x, y)

    `Loop.epochs` is for a loop of epochs. The checkpoint is restored at once. Whatever the script and its loop keep in
    variables and objects is put back as the first batch is handed out. A save is due between two bodies of the loop,
    also after a ``continue``. After the last body the last state is saved, and the next start trains nothing. After
    SIGTERM the state is saved and `Preempted` is raised. A loop that ``break``, ``return`` or an error leaves gets no
    final save, since nobody knows whether its last batch was trained: the next start trains on from the newest
    checkpoint. `Loop.stop` ends a training for good.

    Args:
        root: The run root, one per training: a path or a URL.
        dataset: A MindSpore pipeline, or a Python iterable as for `ckptkit.data.resumable`.
        epochs: The total since epoch 0, all in one call; a later start may raise it, and the run continues.
        train: The cells that the loop trains, such as network and optimizer, or a train cell; as for `StateManager`.
        save: When to save; default every 100 updates, and every ten minutes if that takes at most 1 % of the time.
        keep: What to keep; default the latest 3. With `KeepBest`, each batch that has logged its metric is saved.
        storage_options: For the storage's backend.
        stateful: Further objects to store, by name, as for `StateManager`.
        frozen: Names of the parameters that this training never changes; as for `CheckpointCallback`.
        strict: Refuse what cannot be resumed exactly instead of warning.
        training: What ckptkit cannot see in the code of the training.
        saving: How saves are taken and reported.
        mirror: A second root that follows the first one; as for `CheckpointCallback`.
        ranks: What matters in a job of many ranks.
        preemption: What happens after SIGTERM or SIGUSR1.
        seed: The seed of a MindSpore pipeline; None for the one that the process has set.
        as_dict: Hand out each batch of a MindSpore pipeline as a dict of its columns.
        checkpoint: The checkpoint to continue from, as for `CheckpointManager.restore`.
        rewind: Go back to that checkpoint even if the run has already continued from it.

    Raises:
        ResumeError: If the run could not continue exactly; says what to change.
        StateMismatchError: If the checkpoint does not fit the cells; names the first leaves that differ.
        CkptKitError: Any of its other subclasses, as for `CheckpointManager.restore`.
        TypeError, ValueError: If an argument is of another type, or an option has an unknown value.
    """
    refuse_other_types(training=(training, Training))
    show_log()
    training = training or Training()
    batches = resumable(dataset, epochs, seed, as_dict=as_dict, augmentation=training.augmentation)
    manager = CheckpointManager(
        root,
        save=save,
        keep=keep,
        storage_options=storage_options,
        saving=saving,
        mirror=mirrors_of(mirror) or None,
        ranks=ranks,
        preemption=preemption,
    )
    state = StateManager(
        train,
        batches,
        frozen=frozen,
        strict=strict,
        training=replace(training, augmentation=None),
        ranks=ranks,
        **(stateful or {}),
    )
    try:
        _refuse_more(manager.url, epochs)
        point = manager.restore(state, checkpoint=checkpoint, rewind=rewind)
    except BaseException:
        batches.position.leave()
        raise
    return Loop(manager, state, batches, point, frozenset(best.metric for best in rankings(keep)))


class Loop(Iterable[Any]):
    """Hands out the batches of a training, and saves between the bodies of its loop; made by `loop`.

    Attributes:
        point: Where this start continues.
        batch: Zero-based number of the batch within its epoch.
        step: Zero-based number of the batch since epoch 0.
    """

    def __init__(
        self,
        manager: CheckpointManager,
        state: StateManager,
        batches: Resumable,
        point: ResumePoint,
        ranked: Collection[str],
    ) -> None:
        self._manager, self._state, self._batches, self._ranked = manager, state, batches, ranked
        self._metrics: dict[str, Any] = {}
        self._wants_save = False
        self._reason: str | None = None
        self.point, self.batch, self.step = point, point.batch, point.batches_delivered
        if point.checkpoint is not None and state.is_over():
            self.point = replace(point, complete=True)
            leave_complete(manager, state, point, batches.epochs)
            if not state.ended:
                _ENDED[manager.url] = _script(), batches.epochs

    @property
    def epoch(self) -> int:
        """Zero-based epoch of the batch."""
        return self._batches.epoch

    @property
    def epochs(self) -> Iterator[tuple[int, EpochBatches]]:
        """The epochs that are left, to iterate over once: the number of each, and its batches.

        ::

            run = ck.loop("runs/x", dataset, epochs=3, train=[network, optimizer])
            for epoch, dataset in run.epochs:
                for x, y in dataset.create_tuple_iterator():
                    loss = step(x, y)
                score = evaluate()

        The batches stand for the dataset. What the loop does in an epoch before its batches is done again by a start
        that continues within this epoch; after that, variables and objects get the values that they had. What it does
        after them belongs to the last batch: a save waits for it.

        Raises:
            ResumeError: If the data has no length; or later, if the loop goes on without all batches of an epoch.
        """
        if not self.point.complete:
            self._size_of_epoch()
        return _Epochs(self, self._state, self._batches, self._bodies())

    @property
    def epoch_ends(self) -> bool:
        """Whether the batch is the last one of its epoch, so that the body may evaluate.

        Raises:
            ResumeError: If the data has no length.
        """
        return self.batch + 1 == self._size_of_epoch()

    def _size_of_epoch(self) -> int:
        size = self._batches.position.size
        if size is None:
            raise ResumeError(
                "the data does not say how many batches an epoch has, so nobody knows yet which one is its last. Give "
                "it __len__, or iterate over ck.loop itself and compare `epoch` with that of the batch before"
            )
        return size

    @property
    def preempted(self) -> bool:
        """Whether a signal or `Preemption.when` ended the training, so that it is incomplete."""
        return self._manager.preempted

    def log(self, **metrics: Any) -> None:
        """Record numbers, or tensors of one element, of this batch: for the report, `KeepBest` and ``ckptkit ls``."""
        self._metrics |= metrics

    def save(self) -> None:
        """Save as the body of the loop ends, whatever is due."""
        self._wants_save = True

    def stop(self, reason: str) -> None:
        """End the training for good as the body of the loop ends; the next start says the reason, and trains nothing.

        In a loop of epochs the batches end first, and what follows them in the epoch is the end of the body. In a job
        of many ranks any rank may call it; all of them stop at the end of the epoch.
        """
        self._reason = reason

    @property
    def _is_stopping(self) -> bool:
        """Whether `stop` ends the training with this batch; with many ranks it waits for the end of the epoch."""
        return self._reason is not None and self._manager.ranks == 1

    def fence(self) -> None:
        """Make sure that no save reads the weights any more; call it before the body changes them otherwise.

        A train cell calls it before its updates; a body that swaps averaged weights in, for an evaluation, has to.
        """
        self._manager.fence()

    def close(self) -> None:
        """Wait for a save that is under way, and release the run; the end of the loop and of the program do it, too.

        Raises:
            CkptKitError: As `CheckpointManager.close`.
        """
        self._manager.close()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches that are left, once."""
        iterator = _Iterator(self._bodies().__next__)
        self._batches.handed_out_by(iterator)
        return iterator

    def _bodies(self) -> Generator[Any, None, None]:
        if self.point.complete:
            self._state.examination.begin()  # puts back what the script keeps itself, as at a first batch
            return
        run, state, begun = self._manager.live(), self._state, self.point.batches_delivered
        delivered, before = begun, (self.point.epoch, self.point.batch - 1)
        is_finalizing = sys.is_finalizing  # a generator that ends with the interpreter finds no modules
        try:
            for delivered, batch in enumerate(self._batches, begun + 1):
                self.step = delivered - 1
                self.batch = before[1] + 1 if self.epoch == before[0] else 0
                before = self.epoch, self.batch
                self._metrics, self._wants_save = {}, False
                yield batch
                state.end(self._agreed_reason())
                self._manager.step(state, self._metrics)
                is_ranked = any(name in self._metrics for name in self._ranked)
                if (self._wants_save or is_ranked) and not (state.ended or run.is_over):
                    self._manager.save(state, self._metrics)
                if run.is_over or state.ended:
                    break
            if not run.is_over:
                run.is_complete = run.is_complete or delivered == begun
                name = self._manager.save_final(state, self._metrics)
                why = f" ({state.ended})" if state.ended else ""
                _log.info("training ended after %s%s; %s is committed", many(delivered, "batch", "batches"), why, name)
                if not state.ended:
                    _ENDED[self._manager.url] = _script(), self._batches.epochs
        except GeneratorExit:  # whether an error left the loop is known as the program ends, and not here
            if not is_finalizing():
                run.leave(delivered)
                frame = sys._getframe(1)
                AT_EXIT.add(partial(_exit_left, self._manager, (id(frame), frame.f_lineno)))
            raise
        except BaseException as error:
            _exit(self._manager, error)
            raise
        _exit(self._manager, None)

    def _agreed_reason(self) -> str | None:
        if self._manager.ranks == 1:
            return self._reason
        if not self.epoch_ends or not self._manager.agree(self._reason is not None):
            return None
        return self._reason or "another rank stopped"


class _Iterator(Iterator[Any]):
    """Iterates over the bodies of a `Loop`; nobody else holds it, so that a ``break`` ends it.

    A class, since a generator that runs hides what iterates over it.
    """

    def __init__(self, next_batch: Callable[[], Any]) -> None:
        self._next_batch = next_batch

    def __next__(self) -> Any:
        return self._next_batch()


class _Epochs(Iterator[tuple[int, "EpochBatches"]]):
    """Iterates over the epochs of a `Loop`; nobody else holds it, so that a ``break`` ends it."""

    def __init__(self, loop: Loop, state: StateManager, batches: Resumable, bodies: Iterator[Any]) -> None:
        batches.handed_out_by(self)
        self._loop = loop
        self._state = state
        self._batches = batches
        self._bodies = bodies
        # An epoch's first batch is taken before the loop's code for the epoch runs: there a checkpoint between two
        # epochs goes on, and what the code makes has changed since. One within an epoch goes on after this code.
        self._takes_first = loop.point.complete or loop.point.batch == 0
        self._taken: list[Any] = []
        self._left = 0  # batches of the epoch
        self.begun = 0  # batches of the epoch that an earlier start trained
        self._is_given = False  # a batch of the epoch
        self._is_iterated = False  # over its batches

    def __next__(self) -> tuple[int, EpochBatches]:
        loop = self._loop
        if self._left and not loop._is_stopping:
            raise ResumeError(
                f"the loop goes on after epoch {loop.epoch} without {many(self._left, 'batch', 'batches')} of it, and "
                "no resume would be exact. Shorten the dataset with take(), or call run.stop(reason) before the break"
            )
        self._state.examination.note_place()
        if self._takes_first:
            self._taken = [next(self._bodies)]
        self._takes_first = True
        self._is_given = False
        self._is_iterated = False
        batches = EpochBatches(self, self._batches, loop._size_of_epoch())
        self.begun = loop.batch
        self._left = len(batches) - self.begun
        return loop.epoch, batches

    def begin(self) -> None:
        if self._is_iterated:
            raise ResumeError(f"the batches of epoch {self._loop.epoch} are iterated over already; they come once")
        self._is_iterated = True

    def next_batch(self) -> Any:
        """Return the next batch of the epoch; at its end, what reads the weights ends, since the loop may change them.

        Raises:
            StopIteration: At the end of the epoch, or once the training is to be stopped.
        """
        loop, is_first = self._loop, not self._is_given
        self._is_given = True
        if is_first:
            if self.begun:  # without a warning: the loop has to do again what precedes the batches
                self._state.start.undo_changes()
            self._state.examination.note_place()
        elif not self._left or loop._is_stopping:
            loop.fence()
            raise StopIteration
        try:
            batch = self._taken.pop() if self._taken else next(self._bodies)
        except StopIteration:  # a signal ended the training
            self._left = 0
            raise
        self._left -= 1
        return batch


class EpochBatches(Iterable[Any]):
    """The batches of an epoch that are left; stands for the dataset in a loop of epochs. Made by `Loop.epochs`."""

    def __init__(self, epochs: _Epochs, batches: Resumable, size: int) -> None:
        self._epochs = weakref.ref(epochs)
        self._batches = batches
        self._size = size

    def __len__(self) -> int:
        """Return how many batches an epoch has, of which some may be trained already."""
        return self._size

    def get_dataset_size(self) -> int:
        """Return the same as ``len``."""
        return self._size

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches that are left, once, each as `loop` was asked to give it."""
        return self._iterator(lambda batch: batch)

    def create_tuple_iterator(self, num_epochs: int = 1, output_numpy: bool = False) -> Iterator[list[Any]]:
        """Iterate over the batches that are left, once, each as a list of its columns."""
        names = self._columns(num_epochs)
        return self._iterator(lambda batch: [*_by_column(names, batch, output_numpy).values()])

    def create_dict_iterator(self, num_epochs: int = 1, output_numpy: bool = False) -> Iterator[dict[str, Any]]:
        """Iterate over the batches that are left, once, each as a dict of its columns."""
        names = self._columns(num_epochs)
        return self._iterator(lambda batch: _by_column(names, batch, output_numpy))

    def _columns(self, num_epochs: int) -> list[str]:
        dataset = getattr(self._batches.position, "dataset", None)
        if not isinstance(dataset, ds.Dataset):
            raise TypeError("the data is no MindSpore pipeline; iterate over the batches themselves")
        if num_epochs not in (-1, 1):
            raise ValueError(f"num_epochs={num_epochs!r}, but these are the batches of one epoch; ck.loop has them all")
        names: list[str] = dataset.get_col_names()
        return names

    def _iterator(self, form: Callable[[Any], Any]) -> Iterator[Any]:
        self.running().begin()
        iterator = _EpochIterator(self, form)
        self._batches.handed_out_by(iterator)
        return iterator

    def running(self) -> _Epochs:
        """Return the loop over the epochs; ResumeError if it has ended."""
        if (epochs := self._epochs()) is None:
            raise ResumeError("the loop over the epochs of this training has ended, and so have its batches")
        return epochs


class _EpochIterator(Iterator[Any]):
    """Iterates over the batches of an epoch; an ``enumerate`` around it begins with the number of the batch."""

    moves_enumerate_on = True

    def __init__(self, batches: EpochBatches, form: Callable[[Any], Any]) -> None:
        self._batches = batches
        self._form = form
        self._is_moving = False  # while an enumerate around it is moved on
        self._has_begun = False

    def __next__(self) -> Any:
        if self._is_moving:
            return None
        epochs = self._batches.running()
        batch = self._form(epochs.next_batch())
        if epochs.begun and not self._has_begun:
            self._is_moving = True
            for counter in gc.get_referrers(self):
                for _ in range(epochs.begun if type(counter) is enumerate else 0):
                    next(counter)  # asks for a batch, and counts it afterwards
            self._is_moving = False
        self._has_begun = True
        return batch


def _by_column(names: Sequence[str], batch: Any, as_numpy: bool) -> dict[str, Any]:
    values = batch.values() if isinstance(batch, Mapping) else batch
    return {name: value.asnumpy() if as_numpy else value for name, value in zip(names, values, strict=True)}


def _script() -> types.CodeType | None:
    """Return the user's outermost code that runs: a script, or one cell of a notebook."""
    frames = users_frames(sys._getframe(1))
    return frames[-1].f_code if frames else None


def _refuse_more(url: str, epochs: int) -> None:
    """Refuse a loop of epochs around `loop`: after a kill, the end of each epoch would run with later weights."""
    script, ended = _ENDED.get(url, (None, epochs))
    if script is not None and script is _script() and epochs > ended:
        raise ResumeError(
            f"this script has trained {url} to the end of {many(ended, 'epoch')}, and asks for {epochs}: a loop of "
            "epochs around ck.loop cannot be resumed. Give all epochs to one call, and do what belongs to the end of "
            "an epoch inside of it, if run.epoch_ends"
        )


def leave_complete(manager: CheckpointManager, state: StateManager, point: ResumePoint, epochs: int) -> None:
    """Say that nothing is left to train of a run that was restored, and release it."""
    assert state.position is not None  # noqa: S101 - without data, nobody knows that all is trained
    done, rest = state.position.at(point.batches_delivered)
    within = f" and {many(rest, 'batch', 'batches')} of the next" if rest else ""
    trained = f"{many(point.batches_delivered, 'batch', 'batches')} are {many(done, 'epoch')}{within}"
    more = "" if state.ended else f" To train on, give more than {many(done, 'epoch')}; you gave {epochs}."
    why = state.ended or trained
    _log.info("training is complete (%s); nothing to do. %s is restored.%s", why, point.checkpoint, more)
    state.start.random_state()
    state.start.trained()
    state.position.leave()
    manager.declare_complete()
    manager.close()


def _exit_left(manager: CheckpointManager, left_at: tuple[int, int]) -> None:
    """Close the manager as the program ends; an error that was raised where the loop was left came in training."""
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    if error is not None and left_at in [(id(frame), line) for frame, line in walk_tb(error.__traceback__)]:
        HEARTBEAT.enter(Phase.TRAINING)
    _exit(manager, error)


def _exit(manager: CheckpointManager, error: BaseException | None) -> None:
    manager.__exit__(None if error is None else type(error), error, None)
