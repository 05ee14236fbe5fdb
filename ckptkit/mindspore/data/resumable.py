"""`resumable`: the batches of one's own training loop, from where the last start got to.

Guarantees: after ``manager.restore(state)``, one ``for`` loop delivers exactly the batches that are left of all
epochs, and the checkpoint knows of each whether it was delivered. It iterates once per start. Main thread only: batches
that another thread takes are refused at the next look at the counters.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import mindspore.dataset as ds

from ckptkit.errors import ResumeError
from ckptkit.mindspore.data.iterable import IterablePosition
from ckptkit.mindspore.data.pipeline_position import Augmentation, DatasetPosition
from ckptkit.mindspore.data.position import Position


class Observer(Protocol):
    """What the batches tell their state manager; a protocol, since that one knows `Resumable`."""

    def count_delivered(self, batches: int) -> None:
        """Batches since epoch 0, this one included."""
        ...

    def observe_step(self, batch: Any, outputs: Any) -> None:
        """The batch that is trained next."""
        ...

    def expect_epoch_end(self, last: bool) -> None:
        """Whether the batch that is trained next is the last of its epoch."""
        ...

    def end_epoch(self) -> None:
        """The next batch, if there is one, belongs to another epoch than the last."""
        ...

    def iterator_made(self) -> None:
        """The data stands where it should."""
        ...

    def release_data(self) -> None:
        """No batch will follow."""
        ...


class Counted(Position, Protocol):
    """A position that knows how far it was prepared."""

    @property
    def delivered(self) -> int:
        """Batches since epoch 0."""
        ...

    def ends_epoch(self, delivered: int) -> bool:
        """Whether an epoch is known to end with the batch ``delivered``, handed out last."""
        ...


class Resumable:
    """The batches of all epochs; made by `resumable`.

    Attributes:
        position: For the state manager.
    """

    def __init__(self, position: Counted, open_batches: Callable[[], Iterator[tuple[int, Any]]]) -> None:
        self.position = position
        self._open = open_batches
        self._observer: Observer | None = None
        self._begun = False
        self._epoch: int | None = None
        self._taken_by: int | None = None

    @property
    def epoch(self) -> int:
        """Zero-based epoch of the batch that was delivered last, or of the one to come where there was none yet.

        Raises:
            ResumeError: Before the restore.
        """
        return self.position.at(self.position.delivered)[0] if self._epoch is None else self._epoch

    def bind(self, observer: Observer) -> None:
        """Take note of the state manager that was made with these batches.

        Raises:
            ResumeError: If another one was.
        """
        if self._observer is not None:
            raise ResumeError("these batches belong to another StateManager; make new ones with resumable()")
        self._observer = observer

    def refuse_begun(self) -> None:
        """Raise ResumeError if they are being iterated already, and so cannot be put anywhere else."""
        if self._begun:
            raise ResumeError("these batches are being iterated already; make new ones, and restore before the loop")

    def refuse_another_thread(self) -> None:
        """Raise ResumeError if another thread than this one took the last batch: nobody knows what it takes next."""
        if self._taken_by not in (None, threading.get_ident()):
            raise ResumeError(
                "another thread than the one that trains and saves takes the batches of resumable(), ahead of "
                "training: a resume would leave out those that it holds. Read ahead in front of resumable() instead: "
                "a MindSpore pipeline does, or let the loader that you give it do so"
            )

    def __iter__(self) -> Iterator[Any]:
        """What is left, once.

        Raises:
            ResumeError: Before the restore, a second time, or if the data cannot go on exactly.
        """
        if self._observer is None:
            raise ResumeError(
                "these batches belong to no training: state = StateManager(cell, batches); manager.restore(state); "
                "then `for batch in batches`. A training has one resumable(): of two loaders that it reads, make one "
                "that gives the batches of both (zip), and give that to resumable()"
            )
        if self._begun:
            raise ResumeError(
                "resumable() delivers all epochs in one loop and only once; `batches.epoch` says which epoch it is. "
                "Make new ones, and restore, to start again"
            )
        delivered = self.position.delivered
        self._begun = True
        return self._run(self._observer, delivered)

    def _run(self, observer: Observer, delivered: int) -> Iterator[Any]:
        try:
            left = self._open()
            observer.iterator_made()
            # Where nobody knows that a batch is the last of its epoch, the epoch is ended here, also after a restore.
            running, inside = self.position.at(delivered)
            for epoch, batch in left:
                if epoch != running or not inside:
                    observer.end_epoch()
                running, inside = epoch, True
                delivered += 1
                self._epoch = epoch
                self._taken_by = threading.get_ident()
                observer.count_delivered(delivered)
                observer.observe_step(batch, None)
                observer.expect_epoch_end(self.position.ends_epoch(delivered))
                yield batch
            observer.end_epoch()
        finally:
            observer.release_data()


def resumable(
    dataset: ds.Dataset | Iterable[Any],
    epochs: int,
    seed: int | None = None,
    *,
    augmentation: Augmentation = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Resumable:
    """The batches of ``dataset`` for one's own loop, resumed where the last start got to.

    ::

        batches = ck.data.resumable(dataset, epochs=10, seed=7)
        state = ck.StateManager(cell, batches)
        manager.restore(state)
        for image, label in batches:            # all that is left of the 10 epochs
            loss = cell(image, label)
            manager.step(state)
        manager.save_final(state)

    Args:
        dataset: A MindSpore pipeline; or an iterable with ``state_dict()`` and ``load_state_dict()``, of which each
            ``iter()`` delivers the rest of the epoch that its state is in; or one that can be iterated again and
            again and gives the same batches (a list, a loader), which is replayed by counting.
        epochs: The total since epoch 0; may be raised later, and the run goes on from where it ended.
        seed: The dataset seed, of a MindSpore pipeline only; None for the one that the process has set.
        augmentation: As for `StateManager`, of a MindSpore pipeline only.
        monotonic: Gives seconds, to foresee the cost of a replay.

    Raises:
        TypeError: If ``dataset`` is none of these: an iterator without a state is used up by its first start.
        ValueError: If ``epochs`` is not positive, or an option does not fit the kind of ``dataset``.
    """
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ValueError(f"epochs is the total since epoch 0 and at least 1, got {epochs!r}")
    if isinstance(dataset, ds.Dataset):
        pipeline = DatasetPosition(dataset, augmentation=augmentation, seed=seed, monotonic=monotonic)
        return Resumable(pipeline, lambda: _batches_of(pipeline, epochs))
    if seed is not None or augmentation is not None:
        raise ValueError("seed and augmentation are for a MindSpore pipeline; an iterable is seeded by who makes it")
    if not isinstance(dataset, Iterable):
        raise TypeError(f"a {type(dataset).__name__} cannot be iterated")
    position = IterablePosition(dataset, monotonic=monotonic)
    return Resumable(position, lambda: position.batches(epochs))


def _batches_of(position: DatasetPosition, epochs: int) -> Iterator[tuple[int, Any]]:
    """Epoch and batch of all that is left; positioned when this returns."""
    epoch, done = position.at(position.delivered)
    if epoch >= epochs:
        position.nothing_left()
        return iter(())
    return _epochs_of(position, position.dataset.create_tuple_iterator(num_epochs=epochs), range(epoch, epochs), done)


def _epochs_of(
    position: DatasetPosition, iterator: Iterator[Any], epochs: range, done: int
) -> Iterator[tuple[int, Any]]:
    for epoch in epochs:
        for batch in iterator:
            done += 1
            if done > position.size:
                break
            yield epoch, batch
        if done != position.size:
            raise ResumeError(
                f"the dataset says that an epoch has {position.size} batches, but epoch {epoch} has another number. No "
                "position in such a pipeline can be resumed; let every epoch have the same number of batches"
            )
        done = 0
