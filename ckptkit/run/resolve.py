"""Chooses by names and markers: in which order a start should try the checkpoints of a run.

Guarantees: the answer is that of the protocol (``docs/format.md``, Starting), from as few requests as it takes: no
document and no COMMIT is read before it is needed, so that a run of thousands of either starts as soon as a small one.
What follows the first candidate is found when it is asked for. Any single thread.

Opens the checkpoint that a person means: the latest, or one by name. Guarantees: reads documents and never writes;
"latest" is what a start would try first, and where a running job removes it meanwhile, the next one. Any single thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from ckptkit.checkpoint.open import OpenedCheckpoint, open_checkpoint
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, StorageError
from ckptkit.format.documents import Commit, PassedOver, Void
from ckptkit.format.layout import CHECKPOINTS, CheckpointName, attempt_key
from ckptkit.run.index import Documents, Glance, Index, Survey
from ckptkit.run.lineage import Ancestry, AttemptLookup, Segment, segment_before
from ckptkit.run.origin import read_run, refuse_unfinished
from ckptkit.storage import Storage

LATEST = "latest"
_LOOKS = 10  # a running job may remove what was found; so often in a row it does not


class Look(AttemptLookup, Protocol):
    """One look at a run, such as `ckptkit.run.index.Index`."""

    attempts: frozenset[int]
    orphans: frozenset[int]

    def names_of(self, attempt: int) -> Sequence[CheckpointName]:
        """Folders of ``attempt``, committed or not, in order."""
        ...

    def commit(self, name: CheckpointName) -> Commit | Void | CorruptCheckpointError | None:
        """The COMMIT of ``name``, or the error that it gives; None where there is none."""
        ...

    def is_committed(self, name: CheckpointName) -> bool:
        """Whether the folder has a COMMIT that is not void; one that does not parse counts."""
        ...

    def is_foreign(self, name: CheckpointName) -> bool:
        """Whether the COMMIT of ``name`` is by another process than the one whose attempt this is."""
        ...


@dataclass(frozen=True)
class Candidates:
    """Committed checkpoints of a lineage, newest first; each iteration finds them anew, in the same look.

    Those of another process are among them, so that a start passes them over as loudly as corrupt ones.
    """

    look: Look
    lineage: Iterable[Segment]

    def __iter__(self) -> Iterator[CheckpointName]:
        for segment in self.lineage:
            for name in reversed(self.look.names_of(segment.attempt)):
                if name in segment and self.look.is_committed(name):
                    yield name


@dataclass(frozen=True)
class Choice:
    """What a start should try, in order.

    Attributes:
        first: The newest that counts; None for a fresh start.
        candidates: Newest first, ``first`` included; empty for a fresh start.
        branch: The checkpoint that the user named, where this start begins a branch at it.
        passed_over: What had to be left aside before any candidate was looked at.
    """

    first: CheckpointName | None
    candidates: Iterable[CheckpointName] = ()
    branch: str | None = None
    passed_over: tuple[PassedOver, ...] = ()


@dataclass(frozen=True)
class Head:
    """The attempt that a start goes on from: the newest that committed anything, or that a person branched off.

    Attributes:
        lineage: Its own.
        first: The newest commit on it that is by the process whose attempt it is.
    """

    lineage: Ancestry
    first: CheckpointName


def choose(index: Index, checkpoint: str = "latest", *, rewind: bool = False) -> Choice:
    """Which checkpoints a start should try.

    Args:
        index: A fresh look at the run.
        checkpoint: ``"latest"``, or the name of one.
        rewind: With a name: go back to it even if the newest lineage already grew from it.

    Raises:
        CheckpointNotFoundError: If the named checkpoint is not committed.
        CorruptCheckpointError: If there are commits, but no attempt document leads to them; or documents that name
            commits, but none is there; or a document without which it cannot be told whether the lineage already grew
            from the named one.
    """
    head, passed_over = newest_head(index)
    if checkpoint != "latest" and (rewind or head is None or not _went_on(index, head, checkpoint)):
        name = _named(index, checkpoint)
        return Choice(name, (name,), branch=checkpoint, passed_over=() if rewind else passed_over)
    if head is None:
        _refuse_orphans(index, passed_over)
        _refuse_emptied(index)
        return Choice(None, passed_over=passed_over)
    return Choice(head.first, Candidates(index, head.lineage), passed_over=passed_over)


def first_choice(
    storage: Storage, ignoring: Collection[int] = (), glance: Glance | None = None
) -> tuple[Look, CheckpointName | None]:
    """What `choose` gives first for ``"latest"``, and the look that tells; lists the newest attempt's folders only.

    Where that attempt has nothing, it asks more; raises as `choose` does. A ``glance`` that was made just before saves
    making one.
    """
    glance = glance or Glance(storage, ignoring)
    head, _ = newest_head(glance)
    if head is not None:
        return glance, head.first
    index = Index(storage, ignoring)
    return index, choose(index).first


def newest_head(look: Look) -> tuple[Head | None, tuple[PassedOver, ...]]:
    """The head of the run, and what was passed over to find it."""
    passed_over: dict[str, PassedOver] = {}
    empty: list[int] = []  # attempts that committed nothing; what another process did under their number does not count
    head: Head | None = None
    numbers = sorted(look.attempts | look.orphans, reverse=True)
    for attempt in numbers if any(map(look.names_of, numbers)) else _down_to_readable(look, numbers):
        own = look.names_of(attempt)
        if any(look.is_committed(name) and not look.is_foreign(name) for name in reversed(own)):
            head = _head_at(look, attempt, passed_over)
            if head is not None:
                break
        else:
            _pass_over_foreign(look, filter(look.is_committed, reversed(own)), passed_over)
            if attempt not in look.orphans:
                empty.append(attempt)
    return _chosen(look, empty, head, passed_over) or head, tuple(passed_over.values())


def _head_at(look: Look, attempt: int, passed_over: dict[str, PassedOver]) -> Head | None:
    """What a start goes on from if ``attempt`` is the one; None if nothing on its lineage counts."""
    lineage = Ancestry(look, attempt)
    candidates = Candidates(look, lineage)
    first = next((name for name in candidates if not look.is_foreign(name)), None)
    if first is not None:
        return Head(lineage, first)
    if lineage.broken_at is not None:
        key = attempt_key(lineage.broken_at)
        passed_over.setdefault(key, PassedOver(checkpoint=key, reason=str(lineage.broken)))
    _pass_over_foreign(look, candidates, passed_over)
    return None


def _pass_over_foreign(look: Look, committed: Iterable[CheckpointName], passed_over: dict[str, PassedOver]) -> None:
    for name in filter(look.is_foreign, committed):
        reason = f"its COMMIT has another token than {attempt_key(name.attempt)}"
        passed_over.setdefault(str(name), PassedOver(checkpoint=str(name), reason=reason))


def _chosen(look: Look, empty: Iterable[int], head: Head | None, passed_over: dict[str, PassedOver]) -> Head | None:
    """The head of the newest of the ``empty`` attempts whose parent a person chose, which nothing else remembers.

    Any other of them has no say in where a start goes on: others may have gone on from its parent, before it or after,
    on a root that it did not see, or while it was starting, so that retention removed its parent. But the newest one
    whose document can be read has looked at those before it: if it went on from where ``head`` is, and passed nothing
    over, nobody had chosen otherwise, and none of their documents is read, however many there are.
    """
    for attempt in empty:
        try:
            document = look.document(attempt)
            before = segment_before(document)
        except CorruptCheckpointError as error:
            if not isinstance(error.__cause__, FileNotFoundError):  # else forgotten since, by a start beside this one
                key = attempt_key(attempt)
                passed_over.setdefault(key, PassedOver(checkpoint=key, reason=str(error)))
            continue
        if document.branch is not None and before is not None and before.last is not None:
            chosen = _head_at(look, attempt, passed_over) if look.is_committed(before.last) else None
            if chosen is not None:
                return chosen
            # Perhaps a mirror that is away has it: who starts then, says so, and is not taken for who saw it.
            reason = f"it went back to {document.branch}, which is not there to go on from"
            passed_over.setdefault(attempt_key(attempt), PassedOver(checkpoint=attempt_key(attempt), reason=reason))
        if document.parent == (str(head.first) if head is not None else None) and not document.passed_over:
            return None
    return None


def _named(index: Index, checkpoint: str) -> CheckpointName:
    name = CheckpointName.parse(checkpoint)
    if name is None or name not in index.names_of(name.attempt) or not index.is_committed(name):
        there = ", ".join(_newest_committed(index, 10))
        raise CheckpointNotFoundError(
            f"there is no committed checkpoint {checkpoint!r}; there are: {there or 'none'}. Name one of these, or "
            "leave checkpoint= out to use the newest"
        )
    return name


def _went_on(index: Index, head: Head, checkpoint: str) -> bool:
    """Whether ``head`` went on from ``checkpoint`` after somebody had named it.

    The attempt that it was named for may be on no lineage: it died before it committed, or what it did is corrupt.
    """
    name = CheckpointName.parse(checkpoint)
    if name is None:
        return False
    later = [segment.attempt for segment in head.lineage.down_to(name.attempt) if segment.attempt > name.attempt]
    unreadable = head.lineage.broken if (head.lineage.broken_at or 0) > name.attempt else None
    if unreadable is None:
        if not later or index.document(later[-1]).parent != checkpoint:
            return False
        for number in sorted((one for one in index.attempts if name.attempt < one <= later[-1]), reverse=True):
            try:
                if index.document(number).branch == checkpoint:
                    return True
            except CorruptCheckpointError as error:
                unreadable = error
    if unreadable is None or not index.is_committed(name):
        return False
    raise CorruptCheckpointError(
        f"{unreadable}. So nothing tells whether the run went on from {name} already. Leave checkpoint= out to go on "
        f"from {head.first}, or add rewind=True to go back to {name}."
    )


def _refuse_orphans(index: Index, passed_over: tuple[PassedOver, ...]) -> None:
    orphans = _newest_committed(index, 3)
    if orphans:
        why = "; ".join(dict.fromkeys(one.reason for one in passed_over)) or "no attempt document leads to them"
        raise CorruptCheckpointError(
            f"the run has committed checkpoints ({', '.join(orphans)}) that cannot be used: {why}. "
            "Restore the files below attempts/ (a job whose own one was replaced has logged it), or start again under "
            "another root."
        )


def _refuse_emptied(index: Index) -> None:
    """Raise where documents show that there were commits: an empty folder may be a disk that is not mounted."""
    for number in _down_to_readable(index, sorted(index.documented, reverse=True)):
        try:
            parent = index.document(number).parent
        except CorruptCheckpointError:
            continue  # it shows nothing
        if parent is not None:
            raise CorruptCheckpointError(
                f"{attempt_key(number)} goes on from the checkpoint {parent}, but {CHECKPOINTS}/ holds none at all. If "
                "it is on a disk of its own, mount that; else bring it back from a copy. To give the run up, use "
                "another root."
            )


def _down_to_readable(look: Look, newest_first: Iterable[int]) -> Iterator[int]:
    """Attempts down to the first whose document can be read: whoever made that one looked at all before it."""
    for attempt in newest_first:
        yield attempt
        with contextlib.suppress(CorruptCheckpointError):
            look.document(attempt)
            return


def _newest_committed(index: Index, most: int) -> list[str]:
    """Names of the last few commits, on whatever lineage, oldest first."""
    newest_first = islice(filter(index.is_committed, reversed(index.names)), most)
    return [str(name) for name in newest_first][::-1]


def open_wanted(storage: Storage, checkpoint: str = LATEST) -> OpenedCheckpoint:
    """Read and check the documents of ``checkpoint``.

    Raises:
        CheckpointNotFoundError: If there is no such checkpoint, or none at all; names those that there are.
        CorruptCheckpointError: If a document is missing or altered; names it.
        FormatVersionError: If it was written by a newer format.
        ResumeError: If the run is a copy of which no attempt has arrived yet.
        StorageError: If the storage failed.
    """
    if checkpoint != LATEST:
        return _open_named(storage, checkpoint)
    for _ in range(_LOOKS):
        name = _open_latest(storage)
        try:
            return _open(storage, name)
        except CheckpointNotFoundError:
            continue
    raise StorageError(f"{_LOOKS} times in a row the newest checkpoint of {storage.url} was removed while it was read")


def _open_latest(storage: Storage) -> CheckpointName:
    _, name = first_choice(storage)
    if name is None:
        refuse_unfinished(storage, Index(storage), read_run(storage))
        raise CheckpointNotFoundError(
            f"there is no committed checkpoint at {storage.url}; `ckptkit ls` shows what is at another root"
        )
    return name


def _open_named(storage: Storage, checkpoint: str) -> OpenedCheckpoint:
    name = CheckpointName.parse(checkpoint)
    if name is not None:
        try:
            return _open(storage, name)
        except CheckpointNotFoundError:
            pass  # the next look says which ones there are
    found = choose(Survey(storage), checkpoint, rewind=True).first
    assert found is not None  # noqa: S101 - a named one is there, or was refused
    return _open(storage, found)


def _open(storage: Storage, name: CheckpointName) -> OpenedCheckpoint:
    # In this order: without COMMIT there is nothing to be read, and an attempt that never was is no corrupt one.
    documents = Documents(storage)
    if not documents.is_committed(name):
        raise CheckpointNotFoundError(f"the checkpoint {name} is not committed (any more)")
    return open_checkpoint(storage, name, documents.document(name.attempt))
