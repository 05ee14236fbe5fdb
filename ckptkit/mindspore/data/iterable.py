"""Positions a Python iterable inside training, by its own state or by counting.

An iterable without a state is iterated again from its beginning, with the global generators as they were then, and must
give the same batches. One with a state is put before the last trained batch and read.

Guarantees: a batch counts once it was delivered. Its digest is taken right then, before other code can change the batch
in place. A state is taken before each batch and at each save, so that it has what the loop told the iterable; what is
told after a save is named. Main thread only.
"""

from __future__ import annotations

import copy
import dis
import itertools
import logging
import types
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import asdict
from typing import Any

from ckptkit.core.text import listed
from ckptkit.errors import ResumeError
from ckptkit.mindspore.data.batch_digest import Probe, digest_of
from ckptkit.mindspore.data.replay import drawn_at_start, replay
from ckptkit.mindspore.data.sampling import GlobalIndices
from ckptkit.mindspore.rng import capture_host_rng, host_rng_drawn, restore_host_rng

_log = logging.getLogger("ckptkit")

_MOST_BEHIND = 4  # batches
_END = object()


class IterablePosition:
    """Positions an iterable; one ``iter()`` of it is one epoch."""

    own_draws: frozenset[str] = frozenset()  # it draws in the training thread, where restoring the generators is enough

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable: Any = iterable
        self._has_state = hasattr(iterable, "state_dict") and hasattr(iterable, "load_state_dict")
        # Do not call iter(iterable): that may start a loader's workers.
        if not self._has_state and isinstance(iterable, Iterator) and not _begins_anew(iterable):
            raise ResumeError(
                f"a {type(iterable).__name__} can be iterated only once, so a restart could not read its batches "
                "again; pass an object that makes a new iterator for every epoch (a list, an object with __iter__), "
                "or give it state_dict() and load_state_dict()"
            )
        self._kind = type(iterable).__qualname__
        self._size = len(iterable) if isinstance(iterable, Sized) else None
        self._digests = Probe()
        self._warned: set[str] = set()
        self.prepare(0, None)
        self._prepared = False

    @property
    def delivered(self) -> int:
        if not self._prepared:
            raise ResumeError("the data was not prepared: restore the state before the first batch")
        return self._delivered

    @property
    def read_again(self) -> Any:
        """The iterable, if its place is reached by reading it again; None if it is reached by its own state."""
        return None if self._has_state else self._iterable

    @property
    def stateful(self) -> Any:
        """The iterable, if its place is reached by its own state; None if it is reached by reading it again."""
        return self._iterable if self._has_state else None

    def at(self, delivered: int) -> tuple[int, int]:
        """Return the present epoch and batch: only iterating shows how long an epoch is."""
        if delivered != self._delivered:
            raise ResumeError(
                f"{self._delivered} batches were handed out, but training counts {delivered}: call the train cell "
                "once for each batch of `for batch in batches`, and save after that"
            )
        return self._place

    def state(self, delivered: int) -> dict[str, Any]:
        if self._reads:
            self._state = self._saved = self._own_state()
        return {
            "iterable": self._kind,
            "size": self._size,
            "place": self._place,
            "delivered": self.delivered,
            "has_state": self._has_state,
            "state": self._state,
            "before": self._before,
            "probe": self._probe,
            "generators": self._base,
            "length": self._length,
        }

    def check(self, recorded: Mapping[str, Any]) -> None:
        if "iterable" not in recorded:
            raise ResumeError(
                f"the checkpoint was made with a MindSpore pipeline, but this training reads a {self._kind}. Use the "
                "same data as before, or start under another root"
            )
        mine = {"iterable": self._kind, "size": self._size, "has_state": self._has_state}
        differences = [
            f"{name}: the checkpoint has {recorded[name]}, this training has {value}"
            for name, value in mine.items()
            if recorded[name] != value
        ]
        if differences:
            raise ResumeError(
                "the data would not continue where it stopped. Build it as before, or start under another "
                f"root:{listed(differences)}"
            )

    def folded(self, recorded: Mapping[str, Any], ranks: int, onto: int) -> dict[str, Any]:
        """Convert as `Position.folded`, for a `GlobalIndices`, whose own state is global."""
        if not isinstance(self._iterable, GlobalIndices) or recorded.get("iterable") != self._kind:
            raise ResumeError(
                f"nothing guarantees that {onto} ranks continue in the data of "
                f"{recorded.get('iterable', 'a pipeline')} where {ranks} ranks stopped. Iterate over a "
                f"ckptkit.data.GlobalIndices with every number of ranks, or continue with {ranks} ranks"
            )
        epoch, batch = recorded["place"]
        numbers = {"size": recorded["size"], "delivered": recorded["delivered"], "batch": batch}
        if any(ranks * number % onto for number in numbers.values()):
            raise ResumeError(f"{numbers} of {ranks} ranks are not whole numbers for {onto} ranks")
        order = recorded["state"]["order"] if recorded["state"] else asdict(self._iterable.order)
        if order != asdict(self._iterable.order):
            raise ResumeError(f"the order of the samples was {order}, it is {asdict(self._iterable.order)} now")
        size, delivered, batch = (ranks * number // onto for number in numbers.values())
        # Without the digest, since no rank of this world delivers that batch.
        place = {"size": size, "delivered": delivered, "place": (epoch, batch)}
        return {**recorded, **place, "probe": None, "length": None}

    def prepare(self, delivered: int, recorded: Mapping[str, Any] | None) -> None:
        recorded = recorded or {}
        epoch, batch = recorded.get("place", (0, 0))
        self._place: tuple[int, int] = (epoch, batch)
        self._prepared = True
        self._reads = False  # whether the iterable gave a batch since, so that it knows its state itself
        self._delivered = delivered
        self._state = recorded.get("state")
        self._before: Any = recorded.get("before")  # the state before the last batch
        self._saved = None  # the state at a save since the last batch
        self._probe: str | None = recorded.get("probe")
        self._base: Mapping[str, Any] | None = recorded.get("generators")
        self._length: int | None = recorded.get("length")  # of the epoch that ended last

    def iterator_made(self) -> None:
        pass

    def leave(self) -> None:
        pass

    def batches(self, epochs: int) -> Iterator[tuple[int, Any]]:
        if self._place[0] >= epochs:
            return iter(())
        iterator = None
        if self._delivered:
            iterator = self._continued() if self._has_state else self._replayed()
        elif self._has_state:
            self._state = self._own_state()
        return self._left(iterator, epochs)

    def _left(self, iterator: Iterator[Any] | None, epochs: int) -> Iterator[tuple[int, Any]]:
        epoch, batch_in_epoch = self._place
        generators: Mapping[str, Any] | None = None
        while epoch < epochs:
            before = self._own_state()
            if iterator is None:
                # Only now, with the random state of training in place: the iterable may draw here, as in any run.
                generators = capture_host_rng()
                if self._base is None and not self._has_state:
                    self._base = generators
                iterator = iter(self._iterable)
            while (batch := next(iterator, _END)) is not _END:
                batch_in_epoch += 1
                self._delivered += 1
                self._place = (epoch, batch_in_epoch)
                self._before, self._probe = before, self._digests.of(batch)
                self._reads = self._has_state
                may_be_behind = batch_in_epoch == 1 and self._has_state
                if may_be_behind and generators is not None and self._is_same_state(self._own_state(), generators):
                    raise ResumeError(
                        f"state_dict() of the {self._kind} is the same before and after the first batch of epoch "
                        f"{epoch}, so a resume would train that batch twice. Count a batch in it before the batch is "
                        "given (before the `yield`), not when the next one is asked for"
                    )
                yield epoch, batch
                before = self._own_state()
                self._tell_of_late_change(before)
                if epoch + 1 < epochs and isinstance(self._iterable, (list, tuple)):
                    self._refuse_changed(batch)
            if batch_in_epoch == 0:
                words = f"the {self._kind} gave no batch in epoch {epoch}; it must be iterable more than once"
                raise ResumeError(words)
            if generators is not None:
                self._tell_of_same_state(before, generators)
            self._length = batch_in_epoch
            iterator = None
            epoch, batch_in_epoch = epoch + 1, 0
            self._place = (epoch, 0)

    def _own_state(self) -> Any:
        return copy.deepcopy(self._iterable.state_dict()) if self._has_state else None

    def _tell_of_same_state(self, after: Any, generators: Mapping[str, Any]) -> None:
        """Warn if the last batch of an epoch did not change the state, which then may count batches read ahead."""
        if self._has_state and self._is_same_state(after, generators):
            self._warn_once(
                "The resumed run may not be bit-exact. state_dict() of the %s was the same before and after the last "
                "batch of epoch %d: if it counts what was read ahead, a resume leaves out batches that were not "
                "trained. Count a batch in it when the batch is given",
                *(self._kind, self._place[0]),
            )

    def _is_same_state(self, after: Any, generators: Mapping[str, Any]) -> bool:
        """Return whether the last batch left the state, and the ``generators`` since they were taken, unchanged."""
        digest = digest_of([self._before])
        return digest is not None and digest == digest_of([after]) and not host_rng_drawn(generators)

    def _tell_of_late_change(self, now: Any) -> None:
        """Warn if the loop changed the iterable after a save, and before it asked for the next batch."""
        saved, self._saved = self._saved, None
        if saved is None or digest_of([saved]) == digest_of([now]):
            return
        at_once = self._own_state()
        if _steady(saved, now, at_once) != _steady(now, now, at_once):
            self._warn_once(
                "The resumed run may not be bit-exact: state_dict() of the %s changed between the save after batch %d "
                "and the next batch, and the checkpoint has it as before. Let the loop tell its loader what it learned "
                "before it calls manager.step or manager.save",
                *(self._kind, self._delivered - 1),
            )

    def _warn_once(self, words: str, *values: Any) -> None:
        if words not in self._warned:
            self._warned.add(words)
            _log.warning(words, *values)

    @property
    def size(self) -> int | None:
        """Batches of the epoch; None if nothing says it, or the last one showed that the iterable's length does not."""
        known = self._size is not None and self._length in (None, self._size)
        return max(self._size or 0, len(self._iterable)) if known else None

    def ends_epoch(self, delivered: int) -> bool:
        return self._place[1] == self.size

    def _refuse_changed(self, batch: Any) -> None:
        if digest_of(batch) != self._probe:
            raise ResumeError(
                f"batch {self._delivered - 1} was changed in place, and the {self._kind} still holds it: the next "
                "epoch would get the changed batch, but after a resume the original one. Change a copy of it, or "
                "give resumable() a loader that makes new batches in each epoch"
            )

    def _continued(self) -> Iterator[Any] | None:
        """Return an iterator past all trained batches; None at the beginning of an epoch.

        If the iterable gives the last trained batch and stands then as it did at the save, reading goes on. If the loop
        has told it something since, the state of the save is loaded. A state that is behind is refused, any other doubt
        is logged. A value that ``load_state_dict()`` does not restore, such as a time, decides nothing. An iterator
        that is given up is closed before a state is loaded, so that its ``finally`` changes nothing later.
        """
        size = self.size  # or more, where the iterable has grown since
        if self._probe is None:
            return self._from_state(size)
        ends = False
        self._load(self._state)
        loaded = self._own_state()
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
            return iterator if self._place[1] else None
        else:
            ends = size is None and next(iterator, _END) is _END
        _close(iterator)
        restore_host_rng(generators)
        return self._from_state(size, ends=ends)

    def _load(self, state: Any) -> None:
        self._iterable.load_state_dict(copy.deepcopy(state))

    def _read_again(self) -> tuple[Iterator[Any], Any]:
        """Return an iterator that began before the last trained batch, and that batch."""
        self._load(self._before)
        iterator = iter(self._iterable)
        last = next(iterator, _END)
        return iterator, _END if self._place[1] == 0 and next(iterator, _END) is not _END else last

    def _is_probe(self, batch: Any) -> bool:
        return batch is not _END and digest_of(batch) == self._probe

    def _is_as_saved(self, loaded: Any) -> bool:
        """Return whether the iterable has each value of the state that a load restores; ``loaded`` tells which."""
        now, saved = self._iterable.state_dict(), self._state
        if digest_of([now]) == digest_of([saved]):
            return True
        if not all(isinstance(state, Mapping) for state in (now, loaded, saved)):
            return False
        restored = [name for name in saved if digest_of([loaded.get(name)]) == digest_of([saved[name]])]
        return bool(restored) and all(digest_of([now.get(name)]) == digest_of([saved[name]]) for name in restored)

    def _from_state(self, size: int | None, *, ends: bool = False) -> Iterator[Any] | None:
        """Load the state of the save; return an iterator over what it leaves of the epoch."""
        self._load(self._state)
        if not self._place[1]:
            return None
        ends = ends or (size is not None and self._place[1] == max(size, len(self._iterable)))
        return self._end_of_epoch() if ends else iter(self._iterable)

    def _end_of_epoch(self) -> Iterator[Any]:
        """Do what the iterable does after the last batch; only when it is asked, with the generators of training."""
        generators, state = capture_host_rng(), self._state
        rest = iter(self._iterable)
        if next(rest, _END) is not _END:  # it begins the next epoch at once, which comes later
            _close(rest)
            restore_host_rng(generators)
            self._load(state)
        yield from ()

    def _refuse_behind(self, following: Iterator[Any]) -> None:
        """Raise ResumeError if the last trained batch is yet to come; finding it is proof, not finding it is not."""
        if any(map(self._is_probe, itertools.islice(following, _MOST_BEHIND))):
            raise ResumeError(
                f"state_dict() of the {self._kind} was behind: from its state before batch {self._delivered - 1}, "
                "that batch comes later, so batches would be trained twice. It may count a batch only when the next "
                "one is requested: count it before the `yield`, and start under another root"
            )

    def _doubt(self) -> None:
        _log.warning(
            "The resumed run may not be bit-exact: from its state before the last trained batch, the %s gives a "
            "different batch %d than the one that was trained. %s This is correct if its batches depend on what "
            "training has told it since. If state_dict() counts batches that were read ahead, or the data changed, "
            "the resume skips batches",
            *(self._kind, self._delivered - 1, drawn_at_start()),
        )

    def _replayed(self) -> Iterator[Any] | None:
        """Return an iterator past all trained batches, by a replay; None at the beginning of an epoch."""
        before = capture_host_rng()
        if self._base is not None:
            restore_host_rng(self._base)
        epoch = 0
        iterator: Iterator[Any] = iter(self._iterable)

        def read() -> Any:
            nonlocal epoch, iterator
            batch = next(iterator, _END)
            while batch is _END and epoch < self._place[0]:
                epoch, iterator = epoch + 1, iter(self._iterable)
                batch = next(iterator, _END)
            return batch

        last = replay(self._delivered, read)
        if self._place[1] == 0:
            if next(iterator, _END) is not _END:
                last = _END
            epoch += 1
        restore_host_rng(before)
        if epoch != self._place[0] or last is _END or (self._probe is not None and digest_of(last) != self._probe):
            raise ResumeError(
                f"the {self._kind} did not give the same {self._delivered} batches that were trained, so the run "
                f"cannot continue exactly. {drawn_at_start()} It must give the same batches each time it is iterated "
                "from the beginning; its state and its random numbers must come from its own seed "
                "(ckptkit.data.sample_rng) or be in state_dict() and load_state_dict()"
            )
        return iterator if self._place[1] else None


def _close(iterator: Iterator[Any]) -> None:
    if isinstance(iterator, types.GeneratorType):
        iterator.close()


def _begins_anew(iterable: Iterator[Any]) -> bool:
    """Return whether ``iter()`` of an iterator does more than return it, such as begin again."""
    code = getattr(getattr(type(iterable), "__iter__", None), "__code__", None)
    return code is not None and any(
        instruction.opname.startswith(("STORE_ATTR", "CALL")) for instruction in dis.get_instructions(code)
    )


def _steady(state: Any, now: Any, at_once: Any) -> str | None:
    """Return the digest of those parts of ``state`` that two successive calls of ``state_dict()`` give alike."""
    if not all(isinstance(answer, Mapping) for answer in (state, now, at_once)):
        return digest_of([state]) if digest_of([now]) == digest_of([at_once]) else None
    return digest_of(
        [[name, state.get(name)] for name in now if digest_of([now[name]]) == digest_of([at_once.get(name)])]
    )
