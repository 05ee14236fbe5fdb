"""Provides `resumable`: the batches of a custom training loop, from where the last start got to.

Guarantees: after ``manager.restore(state)``, one ``for`` loop delivers exactly the remaining batches of all epochs, and
the checkpoint knows how many were delivered. Main thread only: if another thread takes batches, this is refused the
next time the counters are read.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from typing import Any, Protocol

import mindspore.dataset as ds

from ckptkit.errors import ResumeError
from ckptkit.mindspore.data.iterable import IterablePosition
from ckptkit.mindspore.data.pipeline_position import Augmentation, DatasetPosition
from ckptkit.mindspore.data.replay import unequal_epochs


class Position(Protocol):
    """Connects a checkpoint's state and its data; implemented for MindSpore pipelines and Python iterables.

    Call order: `check` (in another world it gets the result of `folded`), `prepare`, then the consumer makes its
    iterator, then `iterator_made`.
    """

    @property
    def own_draws(self) -> Collection[str]:
        """Global generators (``"python"``, ``"numpy"``) that the data has positioned and that must not be restored."""

    @property
    def delivered(self) -> int:
        """Batches since epoch 0; ResumeError before `prepare`."""

    @property
    def size(self) -> int | None:
        """Batches of the epoch; None if that is not known."""

    def at(self, delivered: int) -> tuple[int, int]:
        """Return the epoch, and the batches of it delivered, after ``delivered`` batches since epoch 0."""

    def ends_epoch(self, delivered: int) -> bool:
        """Return whether an epoch is known to end with the batch ``delivered``, the last one delivered."""

    def state(self, delivered: int) -> dict[str, Any]:
        """Return what a checkpoint records after ``delivered`` batches, with the last one's digest as delivered."""

    def check(self, recorded: Mapping[str, Any]) -> None:
        """Raise ResumeError, naming what differs, unless the data is unchanged; changes nothing."""

    def folded(self, recorded: Mapping[str, Any], ranks: int, onto: int) -> dict[str, Any]:
        """Convert the record of a checkpoint of ``ranks`` to one of ``onto``, for `check` and all later calls.

        Raises ResumeError if nothing guarantees that both worlds have one order of samples, or it does not fold.
        """

    def prepare(self, delivered: int, recorded: Mapping[str, Any] | None) -> None:
        """Let the next iterator begin after ``delivered`` batches; ``recorded`` is None on a fresh start."""

    def iterator_made(self) -> None:
        """Undo what was only needed while the iterator was made."""

    def leave(self) -> None:
        """Leave the process as it was before `prepare`."""


class BatchObserver(Protocol):
    """The part of `StateManager`, which imports this module, that learns of the batches."""

    def hand_out(self, batch: Any, delivered: int, *, ends_epoch: bool) -> None: ...
    def end_epoch(self) -> None: ...
    def ask_batch(self) -> None: ...
    def iterator_made(self) -> None: ...


class Resumable:
    """Iterates over the batches of all ``epochs``, from a ``position`` on; made by `resumable`."""

    def __init__(self, position: Position, epochs: int, open_batches: Callable[[], Iterator[tuple[int, Any]]]) -> None:
        self.position = position
        self.epochs = epochs
        self._open = open_batches
        self._observer: BatchObserver | None = None
        self._begun = False
        self._epoch: int | None = None
        self._taken_by: int | None = None
        self._iterators: list[Any] = []

    @property
    def epoch(self) -> int:
        """Zero-based epoch of the last delivered batch, or of the first one to come; ResumeError before the restore."""
        return self.position.at(self.position.delivered)[0] if self._epoch is None else self._epoch

    def is_over(self) -> bool:
        return self.position.at(self.position.delivered)[0] >= self.epochs

    def bind(self, observer: BatchObserver) -> None:
        if self._observer is not None:
            raise ResumeError("these batches belong to another StateManager; make new ones with resumable()")
        self._observer = observer

    def refuse_begun(self) -> None:
        if self._begun:
            raise ResumeError("these batches are being iterated already; make new ones, and restore before the loop")

    def refuse_another_thread(self) -> None:
        """Raise ResumeError if another thread took the last batch: what it takes next is unknown."""
        if self._taken_by not in (None, threading.get_ident()):
            raise ResumeError(
                "a thread other than the training thread takes the batches of resumable() ahead of training: a "
                "resume would skip those that it holds. Read ahead before resumable() instead: a MindSpore pipeline "
                "does so, or use a loader that does"
            )

    def __iter__(self) -> Generator[Any, None, None]:
        """Yield the remaining batches, once; ResumeError if the data cannot continue exactly."""
        if self._observer is None:
            raise ResumeError(
                "these batches do not belong to a training: state = StateManager(cell, batches); "
                "manager.restore(state); then `for batch in batches`. A training has one resumable(): to read two "
                "loaders, combine them into one (zip), and give that to resumable()"
            )
        if self._begun:
            raise ResumeError(
                "resumable() delivers all epochs in one loop and only once; `batches.epoch` says which epoch it is. "
                "Make new ones, and restore, to start again"
            )
        delivered = self.position.delivered
        self._begun = True
        batches = self._run(self._observer, delivered)
        self.handed_out_by(batches)
        return batches

    def handed_out_by(self, iterator: Any) -> None:
        """Note an iterator of ckptkit's that hands out these batches to the user's loop."""
        self._iterators.append(weakref.ref(iterator))

    def iterators(self) -> list[Any]:
        return [iterator for reference in self._iterators if (iterator := reference()) is not None]

    def _run(self, observer: BatchObserver, delivered: int) -> Generator[Any, None, None]:
        try:
            left = self._open()
            observer.iterator_made()
            # If the last batch of an epoch was not known to be the last, end the epoch here, also after a restore.
            running, inside = self.position.at(delivered)
            for epoch, batch in left:
                if epoch != running or not inside:
                    observer.end_epoch()
                running, inside = epoch, True
                delivered += 1
                self._epoch = epoch
                self._taken_by = threading.get_ident()
                observer.hand_out(batch, delivered, ends_epoch=self.position.ends_epoch(delivered))
                yield batch
                observer.ask_batch()
            observer.end_epoch()
        finally:
            self.position.leave()


def resumable(
    dataset: ds.Dataset | Iterable[Any],
    epochs: int,
    seed: int | None = None,
    *,
    as_dict: bool = False,
    augmentation: Augmentation = None,
) -> Resumable:
    """Return the batches of ``dataset`` for a custom loop, resumed where the last start got to.

    ::

        batches = ck.data.resumable(dataset, epochs=10, seed=7)
        state = ck.StateManager(cell, batches)
        manager.restore(state)
        for image, label in batches:            # all that is left of the 10 epochs
            loss = cell(image, label)
            manager.step(state)
        manager.save_final(state)

    `ckptkit.loop` does all this around the body of one's own loop.

    Args:
        dataset: A MindSpore pipeline; or an iterable with ``state_dict()`` and ``load_state_dict()``, of which each
            ``iter()`` delivers the rest of the epoch that its state is in; or one that can be iterated repeatedly
            and gives the same batches each time (a list, a loader), which is read again from epoch 0 on. A state counts
            a batch before it is given, and is that of the next epoch after the last one.
        epochs: The total since epoch 0; may be raised later, and the run continues from where it ended.
        seed: The dataset seed, for a MindSpore pipeline only; None for the one that the process has set.
        as_dict: Deliver each batch as a dict of its columns, as ``create_dict_iterator`` does; for a MindSpore
            pipeline only.
        augmentation: As for `StateManager`, for a MindSpore pipeline only.

    Raises:
        TypeError: If ``dataset`` cannot be iterated.
        ResumeError: If it is an iterator without a state whose ``iter()`` only gives itself: a start uses it up.
        ValueError: If ``epochs`` is not positive, or an option does not fit the kind of ``dataset``.
    """
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ValueError(f"epochs is the total since epoch 0 and at least 1, got {epochs!r}")
    if isinstance(dataset, ds.Dataset):
        pipeline = DatasetPosition(dataset, augmentation=augmentation, seed=seed)
        maker = "create_dict_iterator" if as_dict else "create_tuple_iterator"
        return Resumable(pipeline, epochs, lambda: batches_of(pipeline, epochs, maker))
    if seed is not None or augmentation is not None or as_dict:
        raise ValueError(
            "seed, augmentation and as_dict are for a MindSpore pipeline; seed an iterable where you make it, and let "
            "it deliver dicts itself"
        )
    if not isinstance(dataset, Iterable) and not hasattr(type(dataset), "__getitem__"):  # Python iterates both
        raise TypeError(f"a {type(dataset).__name__} cannot be iterated")
    position = IterablePosition(dataset)
    return Resumable(position, epochs, lambda: position.batches(epochs))


def batches_of(
    position: DatasetPosition, epochs: int, maker: str = "create_tuple_iterator", **options: Any
) -> Iterator[tuple[int, Any]]:
    """Return an iterator over epoch and batch of all that is left, already positioned, from ``maker`` of the pipeline.

    The ``options`` are arguments for that method.
    """
    epoch, done = position.at(position.delivered)
    if epoch >= epochs:
        position.nothing_left()
        return iter(())
    iterator = getattr(position.dataset, maker)(num_epochs=epochs, **options)
    return _epochs_of(position, iterator, range(epoch, epochs), done)


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
            raise unequal_epochs(position.size, epoch)
        done = 0


def position_of(
    dataset: ds.Dataset | Resumable | None, augmentation: Augmentation, observer: BatchObserver
) -> Position | None:
    """Return what positions the data of a training, which attaches itself to a `Resumable` as its ``observer``."""
    if not isinstance(dataset, Resumable):
        return DatasetPosition(dataset, augmentation=augmentation) if dataset is not None else None
    if augmentation is not None:
        raise ValueError("augmentation: give it to ckptkit.data.resumable, which positions the data here")
    dataset.bind(observer)
    return dataset.position
