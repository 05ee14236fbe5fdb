"""Continues an iterable that has a state of its own from the state in a checkpoint.

The iterable is put before the last trained batch and read. If it gives that batch, and stands then as it did at the
save, reading goes on. If the loop has told it something since, the state of the save is loaded.

Guarantees: a state that is behind is refused, any other doubt is logged. A value that `load_state_dict()` does not
restore, such as a time, decides nothing. An iterator that is given up is closed before a state is loaded, so that its
``finally`` changes nothing later. Main thread only.
"""

from __future__ import annotations

import copy
import itertools
import logging
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ckptkit.errors import ResumeError
from ckptkit.mindspore.data.batch_digest import digest_of
from ckptkit.mindspore.data.replay import drawn_at_start
from ckptkit.mindspore.rng import capture_host_rng, host_rng_drawn, restore_host_rng

_log = logging.getLogger("ckptkit")

_MOST_BEHIND = 4  # batches

_END = object()


@dataclass(frozen=True)
class Continuation:
    """Says where an iterable was at a save.

    Attributes:
        iterable: One with ``state_dict()`` and ``load_state_dict()``.
        before: Its state before the last trained batch.
        state: Its state at the save.
        probe: Digest of that batch; None if it is not known.
        batch: Batches of the epoch that were given; 0 at its beginning.
        size: Batches of an epoch, or more where the iterable has grown since; None if that is not known.
        delivered: Batches since epoch 0.
    """

    iterable: Any
    before: Any
    state: Any
    probe: str | None
    batch: int
    size: int | None
    delivered: int

    def iterator(self) -> Iterator[Any] | None:
        """Return an iterator past all trained batches; None at the beginning of an epoch.

        Raises:
            ResumeError: If the state is behind the batches.
        """
        if self.probe is None:
            return self._from_state()
        ends = False
        loaded = self._loaded()
        generators = capture_host_rng()
        iterator, last = self._read_again()
        if host_rng_drawn(generators):
            _log.warning(
                "the %s draws from the global generators of `random` or `numpy.random`, so ckptkit cannot check "
                "that its state_dict() holds its position",
                self._kind,
            )
        elif not self._is_probe(last):
            self._refuse_behind(iterator)
            self._doubt()
        elif self._is_as_saved(loaded):
            return iterator if self.batch else None
        else:
            ends = self.size is None and next(iterator, _END) is _END
        _close(iterator)
        restore_host_rng(generators)
        return self._from_state(ends=ends)

    @property
    def _kind(self) -> str:
        return type(self.iterable).__qualname__

    def _loaded(self) -> Any:
        """Return what the iterable tells right after the state of the save was loaded."""
        self.iterable.load_state_dict(copy.deepcopy(self.state))
        return copy.deepcopy(self.iterable.state_dict())

    def _read_again(self) -> tuple[Iterator[Any], Any]:
        """Return an iterator that began before the last trained batch, and that batch."""
        self.iterable.load_state_dict(copy.deepcopy(self.before))
        iterator = iter(self.iterable)
        last = next(iterator, _END)
        return iterator, _END if self.batch == 0 and next(iterator, _END) is not _END else last

    def _is_probe(self, batch: Any) -> bool:
        return batch is not _END and digest_of(batch) == self.probe

    def _is_as_saved(self, loaded: Any) -> bool:
        """Return whether the iterable has each value of the state that a load restores; ``loaded`` tells which."""
        now = self.iterable.state_dict()
        if digest_of([now]) == digest_of([self.state]):
            return True
        if not all(isinstance(one, Mapping) for one in (now, loaded, self.state)):
            return False
        restored = [name for name in self.state if digest_of([loaded.get(name)]) == digest_of([self.state[name]])]
        return bool(restored) and all(digest_of([now.get(name)]) == digest_of([self.state[name]]) for name in restored)

    def _from_state(self, *, ends: bool = False) -> Iterator[Any] | None:
        """Load the state of the save; return an iterator over what it leaves of the epoch."""
        self.iterable.load_state_dict(copy.deepcopy(self.state))
        if not self.batch:
            return None
        ends = ends or (self.size is not None and self.batch == max(self.size, len(self.iterable)))
        return self._end_of_epoch() if ends else iter(self.iterable)

    def _end_of_epoch(self) -> Iterator[Any]:
        """Do what the iterable does after the last batch; only when it is asked, with the generators of training."""
        generators = capture_host_rng()
        rest = iter(self.iterable)
        if next(rest, _END) is not _END:  # it begins the next epoch at once, which comes later
            _close(rest)
            restore_host_rng(generators)
            self.iterable.load_state_dict(copy.deepcopy(self.state))
        yield from ()

    def _refuse_behind(self, following: Iterator[Any]) -> None:
        """Raise ResumeError if the last trained batch is yet to come; finding it is proof, not finding it is not."""
        if any(map(self._is_probe, itertools.islice(following, _MOST_BEHIND))):
            raise ResumeError(
                f"state_dict() of the {self._kind} was behind: from its state before batch {self.delivered - 1}, "
                "that batch comes later, so batches would be trained twice. It may count a batch only when the next "
                "one is requested: count it before the `yield`, and start under another root"
            )

    def _doubt(self) -> None:
        _log.warning(
            "The resumed run may not be bit-exact: from its state before the last trained batch, the %s gives a "
            "different batch %d than the one that was trained. %s This is correct if its batches depend on what "
            "training has told it since. If state_dict() counts batches that were read ahead, or the data changed, "
            "the resume skips batches",
            *(self._kind, self.delivered - 1, drawn_at_start()),
        )


def _close(iterator: Iterator[Any]) -> None:
    if isinstance(iterator, types.GeneratorType):
        iterator.close()
