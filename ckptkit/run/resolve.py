"""Chooses the checkpoints that a start should try, in order, and opens the one that a user asks for.

It follows the protocol (``docs/format.md``, Starting). No document and no COMMIT is read before it is needed, so a run
with thousands of them starts as fast as a small one. What a running job removes meanwhile is looked up anew.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TypeVar

from ckptkit.checkpoint.open import OpenedCheckpoint, committed, open_checkpoint, read_metrics
from ckptkit.core.text import listed, some
from ckptkit.core.worker import each_of
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, StorageError
from ckptkit.format.documents import PassedOver
from ckptkit.format.events import Began, Saved
from ckptkit.format.layout import CHECKPOINTS, EVENTS, CheckpointName, attempt_key
from ckptkit.run.event_log import read_events
from ckptkit.run.index import Documents, Index, Lineage, Segment, Survey, segment_before
from ckptkit.run.keep_policy import Keepable, KeepBest
from ckptkit.run.ownership import no_checkpoint, read_run, refuse_unfinished
from ckptkit.storage import Storage

LATEST, BEST = "latest", "best"
_STEP = re.compile(r"(?:step-)?([0-9]{1,16})")
_LOOKS = 10  # a running job may remove the checkpoint that was found, but not this many times in a row

_T = TypeVar("_T")


@dataclass(frozen=True)
class Candidates:
    """Iterates over the commits of a lineage, newest first, foreign ones included, so that a start reports them."""

    index: Index
    lineage: Iterable[Segment]

    def __iter__(self) -> Iterator[CheckpointName]:
        for segment in self.lineage:
            for name in reversed(self.index.names_of(segment.attempt)):
                if name in segment and self.index.is_committed(name):
                    yield name


@dataclass(frozen=True)
class Choice:
    first: CheckpointName | None
    candidates: Iterable[CheckpointName] = ()
    branch: str | None = None
    passed_over: tuple[PassedOver, ...] = ()


@dataclass(frozen=True)
class Head:
    lineage: Lineage
    first: CheckpointName


def choose(index: Index, checkpoint: str = LATEST, *, rewind: bool = False) -> Choice:
    head, passed_over = newest_head(index)
    if checkpoint != LATEST and (rewind or head is None or not _went_on(index, head, checkpoint)):
        name = named(index, checkpoint)
        return Choice(name, (name,), branch=str(name), passed_over=() if rewind else passed_over)
    if head is None:
        _refuse_orphans(index, passed_over)
        _refuse_emptied(index)
        return Choice(None, passed_over=passed_over)
    return Choice(head.first, Candidates(index, head.lineage), passed_over=passed_over)


def newest_head(index: Index) -> tuple[Head | None, tuple[PassedOver, ...]]:
    passed_over: dict[str, str] = {}  # reasons
    empty: list[int] = []  # attempts without a commit of their own; foreign commits under their number do not count
    head: Head | None = None
    numbers = sorted(index.attempts | index.orphans, reverse=True)
    for attempt in numbers if any(map(index.names_of, numbers)) else _down_to_readable(index, numbers):
        own = index.names_of(attempt)
        if any(index.is_committed(name) and not index.is_foreign(name) for name in reversed(own)):
            head = _head_at(index, attempt, passed_over)
            if head is not None:
                break
        else:
            _pass_over_foreign(index, filter(index.is_committed, reversed(own)), passed_over)
            if attempt not in index.orphans:
                empty.append(attempt)
    head = _chosen(index, empty, head, passed_over) or head
    return head, tuple(PassedOver(checkpoint=what, reason=reason) for what, reason in passed_over.items())


def _head_at(index: Index, attempt: int, passed_over: dict[str, str]) -> Head | None:
    """Make the head that begins with ``attempt``; return None if no commit on its lineage counts."""
    lineage = Lineage(index, attempt)
    candidates = Candidates(index, lineage)
    first = next((name for name in candidates if not index.is_foreign(name)), None)
    if first is not None:
        return Head(lineage, first)
    if lineage.broken_at is not None:
        passed_over.setdefault(attempt_key(lineage.broken_at), str(lineage.broken))
    _pass_over_foreign(index, candidates, passed_over)
    return None


def _pass_over_foreign(index: Index, committed: Iterable[CheckpointName], passed_over: dict[str, str]) -> None:
    for name in filter(index.is_foreign, committed):
        passed_over.setdefault(str(name), f"its COMMIT has another token than {attempt_key(name.attempt)}")


def _chosen(index: Index, empty: Iterable[int], head: Head | None, passed_over: dict[str, str]) -> Head | None:
    """Return the head of the newest ``empty`` attempt whose parent a user named, which only its document records.

    The other empty attempts do not decide where a start continues: another attempt may have continued from their parent
    on a root that they did not see. But the newest one whose document can be read has looked at all before it. If its
    parent is the first commit of ``head`` and it passed nothing over, no user had chosen otherwise, and no earlier
    document is read, however many there are.
    """
    for attempt in empty:
        key = attempt_key(attempt)
        try:
            document = index.document(attempt)
            before = segment_before(document)
        except CorruptCheckpointError as error:
            if not isinstance(error.__cause__, FileNotFoundError):  # a concurrent start may have removed it since
                passed_over.setdefault(key, str(error))
            continue
        if document.branch is not None and before is not None and before.last is not None:
            chosen = _head_at(index, attempt, passed_over) if index.is_committed(before.last) else None
            if chosen is not None:
                return chosen
            # An unreachable mirror may have it. Later starts must not conclude that this one saw that checkpoint.
            passed_over.setdefault(key, f"it went back to {document.branch}, which is missing")
        elif head and before and before.last and before.last > head.first and not index.is_committed(before.last):
            # Retention removes a parent below two newer commits only. This one lies at a mirror that was not given, or
            # a part of the run was lost or restored from an older backup.
            reason = f"it continued from {document.parent}, which is newer than the checkpoints here and is missing"
            passed_over.setdefault(key, reason)
        if document.parent == (str(head.first) if head is not None else None) and not document.passed_over:
            return None
    return None


def named(index: Index, checkpoint: str) -> CheckpointName:
    """Return the committed checkpoint that a user calls ``checkpoint``.

    It is a name or the beginning of one, ``step-160`` or ``160``, or ``best:METRIC:max`` or ``min``. Of an optimizer
    step, the checkpoint at its end comes before those within the next cycle; of what was saved twice at one point, the
    later. Several that are left are an error that lists them.
    """
    kind, _, by = checkpoint.partition(":")
    exact = CheckpointName.parse(checkpoint)
    if exact is not None and exact in index.names_of(exact.attempt) and index.is_committed(exact):
        return exact
    if kind == BEST:
        return _best(index, by, list(filter(index.is_committed, index.names)))
    points = _points(index, checkpoint, index.names)
    there = [] if points else _newest_committed(index, 5)
    if there:
        raise CheckpointNotFoundError(
            f"there is no committed checkpoint {checkpoint!r}; there are: {', '.join(there)}. Give the name or the "
            f"step of one, or {LATEST}"
        )
    if not points:
        raise no_checkpoint(index.storage)
    if len(points) > 1:
        raise CheckpointNotFoundError(
            f"{checkpoint!r} may be any of {len(points)} checkpoints. Give more of the name of one:"
            f"{listed([*map(str, reversed(points.values()))])}"
        )
    return next(iter(points.values()))


def _points(index: Index, checkpoint: str, names: Iterable[CheckpointName]) -> dict[CheckpointName, CheckpointName]:
    """Return the last try of each point in training that ``checkpoint`` may mean, by its first."""
    names = [name for name in names if _is_called(name, checkpoint) and index.is_committed(name)]
    if _STEP.fullmatch(checkpoint):
        names = [name for name in names if name.micro_step == 0] or names
    return {replace(name, nth_try=1): name for name in names}


def _is_called(name: CheckpointName, checkpoint: str) -> bool:
    step = _STEP.fullmatch(checkpoint)
    return bool(checkpoint) and str(name).startswith(checkpoint) if step is None else name.cycles == int(step[1])


def _best(index: Index, by: str, names: Sequence[CheckpointName]) -> CheckpointName:
    """Return the best of ``names`` by ``METRIC:max`` or ``METRIC:min``, of equals the newer."""

    def read(name: CheckpointName) -> Keepable | None:
        with contextlib.suppress(CheckpointNotFoundError):  # a running job has removed it
            metrics = read_metrics(index.storage, name, committed(index.storage, name))
            return Keepable(str(name), name.cycles, name.micro_step, metrics)
        return None

    metric, _, mode = by.rpartition(":")
    checkpoints = [checkpoint for checkpoint in each_of(names, read) if checkpoint is not None]
    if metric and mode in ("max", "min"):
        for best in KeepBest(1, metric, "max" if mode == "max" else "min").keeps(checkpoints):
            return next(name for name in names if str(name) == best)
    metrics = sorted({metric for checkpoint in checkpoints for metric in checkpoint.metrics})
    raise CheckpointNotFoundError(
        f"{':'.join(filter(None, (BEST, by)))} ranks no checkpoint of {index.storage.url}. Write {BEST}:METRIC:max or "
        f"{BEST}:METRIC:min, with a metric that it has saved: {some(metrics) or 'there is none'}. A script that "
        f"keeps by KeepBest needs {BEST} alone"
    )


def _went_on(index: Index, head: Head, checkpoint: str) -> bool:
    """Whether ``head`` continued from ``checkpoint`` after a user had asked for it.

    What a step or a prefix names may be gone or no longer alone, and later checkpoints may be better than the best was:
    so those on the lineage are asked from which an attempt continued.
    """
    kind, _, by = checkpoint.partition(":")
    exact = CheckpointName.parse(checkpoint)
    if exact is not None:
        return _went_on_from(index, head, exact)
    for newer, older in pairwise(head.lineage):
        parent = older.last
        if parent is None or not (kind == BEST or _is_called(parent, checkpoint)):
            continue
        if _went_on_from(index, head, parent):
            before = [name for name in index.names if name.attempt < newer.attempt]
            if parent not in before or not index.is_committed(parent):
                return True
            if kind == BEST:
                return parent == _best(index, by, list(filter(index.is_committed, before)))
            if replace(parent, nth_try=1) in _points(index, checkpoint, before):
                return True  # else its whole name was given: a step means its end, if that is there
    return head.lineage.broken is not None and _went_on_from(index, head, named(index, checkpoint))


def _went_on_from(index: Index, head: Head, name: CheckpointName) -> bool:
    """Whether ``head`` continued from ``name`` after a user had named it, perhaps for an attempt that died."""
    later = [segment.attempt for segment in head.lineage.down_to(name.attempt) if segment.attempt > name.attempt]
    unreadable = head.lineage.broken if (head.lineage.broken_at or 0) > name.attempt else None
    if unreadable is None:
        if not later or index.document(later[-1]).parent != str(name):
            return False
        for number in sorted(
            (attempt for attempt in index.attempts if name.attempt < attempt <= later[-1]), reverse=True
        ):
            try:
                if index.document(number).branch == str(name):
                    return True
            except CorruptCheckpointError as error:
                unreadable = error
    if unreadable is None or not index.is_committed(name):
        return False
    raise CorruptCheckpointError(
        f"{unreadable}. So it is unknown whether the run already continued from {name}. Leave checkpoint= out to "
        f"continue from {head.first}, or add rewind=True to go back to {name}."
    )


def _refuse_orphans(index: Index, passed_over: tuple[PassedOver, ...]) -> None:
    orphans = _newest_committed(index, 3)
    if orphans:
        why = "; ".join(dict.fromkeys(passed.reason for passed in passed_over)) or "no attempt document leads to them"
        raise CorruptCheckpointError(
            f"the run has committed checkpoints ({', '.join(orphans)}) that cannot be used: {why}. Restore the files "
            "below attempts/ (if the file of a job was replaced, its log has the original), or start again under "
            "another root."
        )


def _refuse_emptied(index: Index) -> None:
    """Raise if documents or events show that there were commits: an empty folder may be a disk that is not mounted."""
    shown: str | None = None
    for number in _down_to_readable(index, sorted(index.documented, reverse=True)):
        with contextlib.suppress(CorruptCheckpointError):  # an unreadable document shows nothing
            parent = index.document(number).parent
            shown = None if parent is None else f"{attempt_key(number)} continues from the checkpoint {parent}"
    if shown is None:
        events = [event for segment in read_events(index.storage, index).segments for event in segment.events]
        known = {event.checkpoint for event in events if isinstance(event, Saved | Began)} - {None}
        if not known or any(map((now := Index(index.storage)).is_committed, now.names)):  # committed since the listing
            return
        shown = (
            f"the files below {EVENTS}/ tell of {len(known)} committed checkpoints, the newest {max(known, key=str)}"
        )
    raise CorruptCheckpointError(
        f"{shown}, but {CHECKPOINTS}/ of {index.storage.url} holds none. If it is on a separate disk, mount it. If "
        "this is a copy of a run that was training, copy it again with `ckptkit copy`. If this is the mirror of a job "
        "whose first upload did not end, start that job where its local root is. Otherwise restore the folder from a "
        "copy, or use another root."
    )


def _down_to_readable(index: Index, newest_first: Iterable[int]) -> Iterator[int]:
    """Yield attempts down to the first whose document can be read: that attempt looked at all before it."""
    for attempt in newest_first:
        yield attempt
        with contextlib.suppress(CorruptCheckpointError):
            index.document(attempt)
            return


def _newest_committed(index: Index, most: int) -> list[str]:
    newest_first = islice(filter(index.is_committed, reversed(index.names)), most)
    return [str(name) for name in newest_first][::-1]


def read_latest(storage: Storage, read: Callable[[Index, CheckpointName], _T]) -> _T | None:
    """Return what ``read`` returns for the checkpoint that a start would try first; None if there is none.

    If a running job removes the checkpoint meanwhile, so that ``read`` raises CheckpointNotFoundError, look again.
    """
    for _ in range(_LOOKS):
        index = Index(storage)
        if not index.attempts:
            refuse_unfinished(storage, index, read_run(storage))
        name = choose(index).first
        if name is None:
            return None
        with contextlib.suppress(CheckpointNotFoundError):
            return read(index, name)
    raise StorageError(f"{_LOOKS} times in a row the newest checkpoint of {storage.url} was removed while it was read")


def open_wanted(storage: Storage, checkpoint: str = LATEST) -> OpenedCheckpoint:
    if checkpoint == LATEST:
        opened = read_latest(storage, lambda index, name: _open(storage, name))
        if opened is None:
            refuse_unfinished(storage, Index(storage), read_run(storage))
            raise no_checkpoint(storage)
        return opened
    name = CheckpointName.parse(checkpoint)
    if name is not None:
        with contextlib.suppress(CheckpointNotFoundError):  # the survey below lists those that exist
            return _open(storage, name)
    return _open(storage, named(Survey(storage), checkpoint))


def _open(storage: Storage, name: CheckpointName) -> OpenedCheckpoint:
    committed(storage, name)  # first: without COMMIT, a missing attempt document is not corruption
    return open_checkpoint(storage, name, Documents(storage).document(name.attempt))
