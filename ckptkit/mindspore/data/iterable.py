"""Positions a Python iterable inside training, by its own state or by counting.

Guarantees: a batch counts once it was delivered. Its digest is taken right then, before other code can change the batch
in place. The state of an iterable that has one is taken before each batch and at each save, so that it has what the
loop told the iterable; what is told after a save is named. An iterable without a state is iterated again from its
beginning, with the global generators as they were then, and must give the same batches. One with a state is put before
the last trained batch and read: a state that is behind is refused; any other doubt is logged, since a loader may learn
from the loop. One that draws from the global generators cannot be checked so; the log says so. Main thread only.
"""

from __future__ import annotations

import copy
import dis
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import asdict
from typing import Any

from ckptkit.core.text import listed
from ckptkit.errors import ResumeError
from ckptkit.mindspore.data.batch_digest import Probe, digest_of
from ckptkit.mindspore.data.continuation import Continuation
from ckptkit.mindspore.data.global_order import GlobalIndices
from ckptkit.mindspore.data.replay import Replay, drawn_at_start
from ckptkit.mindspore.rng import capture_host_rng, host_rng_drawn, restore_host_rng

_log = logging.getLogger("ckptkit")

_END = object()


class IterablePosition:
    """Positions an iterable; one ``iter()`` of it is one epoch.

    Args:
        iterable: One with ``state_dict()`` and ``load_state_dict()``, or one that can be iterated repeatedly.
        monotonic: Gives seconds, to estimate the cost of a replay.

    Attributes:
        own_draws: Empty: it draws in the training thread, so restoring the generators there is enough.

    Raises:
        ResumeError: If it has no state and can be iterated only once: an iterator whose ``iter()`` only gives itself.
    """

    own_draws: frozenset[str] = frozenset()

    def __init__(self, iterable: Iterable[Any], *, monotonic: Callable[[], float] = time.monotonic) -> None:
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
        self._monotonic = monotonic
        self._digests = Probe()
        self._prepared = False
        self._reads = False  # whether the iterable gave a batch since, so that it knows its state itself
        self._place = (0, 0)
        self._delivered = 0
        self._state: Any = None
        self._before: Any = None
        self._probe: str | None = None
        self._base: Mapping[str, Any] | None = None
        self._told_ahead = self._told_late = self._told_length = False
        self._length: int | None = None  # of the epoch that ended last
        self._saved: Any = None  # the state at a save since the last batch

    @property
    def delivered(self) -> int:
        """Batches delivered since epoch 0.

        Raises:
            ResumeError: If it was not prepared.
        """
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
        """Return the present epoch and batch; only iterating shows how long an epoch is.

        Raises:
            ResumeError: If another number of batches was delivered.
        """
        if delivered != self._delivered:
            raise ResumeError(
                f"{self._delivered} batches were handed out, but training counts {delivered}: call the train cell "
                "once for each batch of `for batch in batches`, and save after that"
            )
        return self._place

    def placed(self, recorded: Mapping[str, Any], delivered: int) -> tuple[int, int]:
        """Return the epoch and batch that a checkpoint recorded.

        Raises:
            ResumeError: If it recorded them after another number of batches.
        """
        if recorded["delivered"] != delivered:
            raise ResumeError(
                f"the checkpoint contradicts itself: {delivered} batches were trained, but its data had handed out "
                f"{recorded['delivered']}. Go back to another checkpoint"
            )
        epoch, batch = recorded["place"]
        return epoch, batch

    def state(self, delivered: int) -> dict[str, Any]:
        """Return place, size, the iterable's own state now and before the last batch, and the last batch's digest."""
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
        """Raise ResumeError, naming what differs, unless the iterable is of the same kind and length."""
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
        """Do as `Position.folded`, for a `GlobalIndices`, whose own state is global.

        Raises:
            ResumeError: If it is anything else, whose order differs between worlds; or the place does not fit this one.
        """
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
        # Drop the digest, since no rank of this world delivers that batch.
        place = (epoch, batch)
        return {**recorded, "size": size, "delivered": delivered, "place": place, "probe": None, "length": None}

    def prepare(self, delivered: int, recorded: Mapping[str, Any] | None) -> None:
        """Let `batches` begin after ``delivered``."""
        self._prepared = True
        self._reads = False
        self._saved = None
        self._delivered = delivered
        epoch, batch = recorded["place"] if recorded is not None else (0, 0)
        self._place = (epoch, batch)
        self._state = recorded["state"] if recorded is not None else None
        self._before = recorded["before"] if recorded is not None else None
        self._probe = recorded["probe"] if recorded is not None else None
        self._base = recorded["generators"] if recorded is not None else None
        self._length = (recorded or {}).get("length")

    def iterator_made(self) -> None:
        """Do nothing: there is nothing to undo."""

    def leave(self) -> None:
        """Do nothing: there is nothing to put back."""

    def batches(self, epochs: int) -> Iterator[tuple[int, Any]]:
        """Return an iterator over epoch and batch of all that is left of ``epochs``, already positioned.

        Raises:
            ResumeError: If it does not repeat the trained batches, or the last of them.
        """
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
                if batch_in_epoch == 1 and self._has_state and generators is not None:
                    self._refuse_same_state(generators)
                yield epoch, batch
                before = self._own_state()
                self._tell_of_late_change(before)
                if epoch + 1 < epochs and isinstance(self._iterable, (list, tuple)):
                    self._refuse_changed(batch)
            if batch_in_epoch == 0:
                raise ResumeError(
                    f"the {self._kind} gave no batch in epoch {epoch}; it must be iterable more than once"
                )
            if generators is not None:
                self._tell_of_same_state(before, generators)
            self._tell_of_length(epoch, batch_in_epoch)
            iterator = None
            epoch, batch_in_epoch = epoch + 1, 0
            self._place = (epoch, 0)

    def _own_state(self) -> Any:
        """Return a copy of the iterable's own state; None if it has none."""
        return copy.deepcopy(self._iterable.state_dict()) if self._has_state else None

    def _refuse_same_state(self, generators: Mapping[str, Any]) -> None:
        """Raise ResumeError if neither the state nor the ``generators`` changed with a batch."""
        if self._is_same_state(self._own_state(), generators):
            raise ResumeError(
                f"state_dict() of the {self._kind} is the same before and after the first batch of epoch "
                f"{self._place[0]}, so a resume would train that batch twice. Count a batch in it before the batch is "
                "given (before the `yield`), not when the next one is asked for"
            )

    def _tell_of_same_state(self, after: Any, generators: Mapping[str, Any]) -> None:
        """Warn once if the last batch of an epoch did not change the state, which then may count batches read ahead."""
        if not self._told_ahead and self._has_state and self._is_same_state(after, generators):
            self._told_ahead = True
            _log.warning(
                "The resumed run may not be bit-exact. state_dict() of the %s was the same before and after the last "
                "batch of epoch %d: if it counts what was read ahead, a resume leaves out batches that were not "
                "trained. Count a batch in it when the batch is given",
                *(self._kind, self._place[0]),
            )

    def _tell_of_late_change(self, now: Any) -> None:
        """Warn once if the loop changed the iterable after a save, and before it asked for the next batch."""
        saved, self._saved = self._saved, None
        if saved is None or self._told_late or digest_of([saved]) == digest_of([now]):
            return
        if digest_of([self._own_state()]) == digest_of([now]):  # otherwise it holds a time, which may differ
            self._told_late = True
            _log.warning(
                "The resumed run may not be bit-exact: state_dict() of the %s changed between the save after batch %d "
                "and the next batch, and the checkpoint has it as before. Let the loop tell its loader what it learned "
                "before it calls manager.step or manager.save",
                *(self._kind, self._delivered - 1),
            )

    def _is_same_state(self, after: Any, generators: Mapping[str, Any]) -> bool:
        """Return whether the last batch left the state, and the ``generators`` since they were taken, unchanged."""
        same = digest_of([self._before])
        return same is not None and same == digest_of([after]) and not host_rng_drawn(generators)

    def _tell_of_length(self, epoch: int, batches: int) -> None:
        """Warn once if an epoch had another length than the last; only a resume shows whether the state has that."""
        if self._has_state and self._length not in (None, batches) and not self._told_length:
            self._told_length = True
            _log.warning(
                "the %s gave %d batches in epoch %d and %d in the epoch before. A resume gives as many only if "
                "state_dict() holds what decides that: `ckptkit doctor` proves it",
                *(self._kind, batches, epoch, self._length),
            )
        self._length = batches

    @property
    def _known_size(self) -> int | None:
        """Batches of the epoch; None if the last one showed that the iterable's length does not tell."""
        known = self._size is not None and self._length in (None, self._size)
        return max(self._size or 0, len(self._iterable)) if known else None

    def ends_epoch(self, delivered: int) -> bool:
        """Return whether an epoch is known to end there; False if the iterable has no length."""
        return self._place[1] == self._known_size

    def _refuse_changed(self, batch: Any) -> None:
        """Raise ResumeError if the loop changed a batch in place that the next epoch gives again."""
        if digest_of(batch) != self._probe:
            raise ResumeError(
                f"batch {self._delivered - 1} was changed in place, and the {self._kind} still holds it: the next "
                "epoch would get the changed batch, but after a resume the original one. Change a copy of it, or "
                "give resumable() a loader that makes new batches in each epoch"
            )

    def _continued(self) -> Iterator[Any] | None:
        """Return an iterator past all trained batches, by the iterable's state; None at the beginning of an epoch."""
        return Continuation(
            *(self._iterable, self._before, self._state, self._probe),
            batch=self._place[1],
            size=self._known_size,
            delivered=self._delivered,
        ).iterator()

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

        last = Replay(self._delivered, monotonic=self._monotonic).run(read)
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


def _begins_anew(iterable: Iterator[Any]) -> bool:
    """Return whether ``iter()`` of an iterator does more than return it, such as begin again."""
    code = getattr(getattr(type(iterable), "__iter__", None), "__code__", None)
    return code is not None and any(one.opname.startswith(("STORE_ATTR", "CALL")) for one in dis.get_instructions(code))
