"""Finds checkpoints by listing: what is there, what is committed, and in which order a start should try them.

Guarantees: only names and create-only markers decide, never a clock, a modification time or a pointer file; a
failed listing is an error and never an empty run; a COMMIT that does not parse counts as a (corrupt)
checkpoint, never as an uncommitted folder. It does not open checkpoints: that is `ckptkit.run.read`. An
`Index` is one look at the run and grows stale; any single thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError
from ckptkit.manifest import MAX_SEALED_BYTES, AttemptDocument, Commit, PassedOver, Void, decode, decode_commit
from ckptkit.run.lineage import Lineage, trace
from ckptkit.run.names import ATTEMPTS, CHECKPOINTS, CheckpointName, attempt_key, parse_attempt
from ckptkit.storage import Storage


def read_commit(storage: Storage, name: CheckpointName) -> Commit | Void | None:
    """The COMMIT of a folder; None where there is none.

    Raises:
        CorruptCheckpointError: If there is one that does not parse.
    """
    try:
        data = storage.read(name.commit_key, MAX_SEALED_BYTES)
    except FileNotFoundError:
        return None
    if len(data) > MAX_SEALED_BYTES:
        raise CorruptCheckpointError(f"{name.commit_key} is longer than {MAX_SEALED_BYTES} bytes")
    return decode_commit(data, name.commit_key)


class Index:
    """One look at a run: listed at once, documents read when asked for and then kept.

    Args:
        storage: The run root.
        ignoring: Attempt numbers to treat as if they had never been.
    """

    def __init__(self, storage: Storage, ignoring: Collection[int] = ()) -> None:
        self._storage = storage
        # In this order: a folder is made after its attempt's document, so no listed one lacks it.
        folders = storage.list(CHECKPOINTS).folders
        files = storage.list(ATTEMPTS).files
        numbers = {number for file in files if (number := parse_attempt(file)) is not None}
        self.attempts = tuple(sorted(numbers - set(ignoring)))
        parsed = (CheckpointName.parse(folder) for folder in folders)
        self.names = tuple(sorted(name for name in parsed if name is not None))
        self.highest = max([0, *numbers, *(name.attempt for name in self.names)])
        self._documents: dict[int, AttemptDocument] = {}
        self._commits: dict[CheckpointName, Commit | Void | CorruptCheckpointError | None] = {}

    def document(self, attempt: int) -> AttemptDocument:
        """The document of ``attempt``.

        Raises:
            CorruptCheckpointError: If it is missing or does not parse.
        """
        if attempt not in self._documents:
            key = attempt_key(attempt)
            try:
                data = self._storage.read(key, MAX_SEALED_BYTES)
            except FileNotFoundError as error:
                raise CorruptCheckpointError(f"{key} is missing") from error
            document = decode(data, AttemptDocument, key)
            if document.attempt != attempt:
                raise CorruptCheckpointError(f"{key} is the document of attempt {document.attempt}")
            self._documents[attempt] = document
        return self._documents[attempt]

    def commit(self, name: CheckpointName) -> Commit | Void | CorruptCheckpointError | None:
        """The COMMIT of ``name``, or the error that it gives; None where there is none."""
        if name not in self._commits:
            try:
                self._commits[name] = read_commit(self._storage, name)
            except CorruptCheckpointError as error:
                self._commits[name] = error
        return self._commits[name]

    def is_committed(self, name: CheckpointName) -> bool:
        """Whether the folder has a COMMIT that is not void; one that does not parse counts."""
        return isinstance(self.commit(name), Commit | CorruptCheckpointError)

    def committed_on(self, lineage: Lineage) -> Iterable[CheckpointName]:
        """Committed checkpoints of ``lineage``, newest first, read lazily."""
        for segment in lineage.segments:
            for name in reversed(self.names):
                if name in segment and self.is_committed(name):
                    yield name


@dataclass(frozen=True)
class Choice:
    """What a start should try, in order.

    Attributes:
        candidates: Newest first; empty for a fresh start.
        branch: The checkpoint that the user named, where this start begins a branch at it.
        passed_over: What had to be left aside before any candidate was looked at.
    """

    candidates: tuple[CheckpointName, ...]
    branch: str | None = None
    passed_over: tuple[PassedOver, ...] = ()


def choose(index: Index, checkpoint: str = "latest", *, rewind: bool = False) -> Choice:
    """Which checkpoints a start should try.

    Args:
        index: A fresh look at the run.
        checkpoint: ``"latest"``, or the name of one.
        rewind: With a name: go back to it even if the newest lineage already grew from it.

    Raises:
        CheckpointNotFoundError: If the named checkpoint is not committed.
        CorruptCheckpointError: If there are commits, but no attempt document leads to them.
    """
    lineage, passed_over = newest_lineage(index)
    if checkpoint != "latest":
        grown = lineage is not None and checkpoint in lineage.branches
        if rewind or not grown:
            return Choice((_named(index, checkpoint),), branch=checkpoint)
    if lineage is None:
        _refuse_orphans(index, passed_over)
        return Choice((), passed_over=passed_over)
    return Choice(tuple(index.committed_on(lineage)), passed_over=passed_over)


def newest_lineage(index: Index) -> tuple[Lineage | None, tuple[PassedOver, ...]]:
    """The lineage of the newest attempt that has anything, and what was passed over to find it."""
    passed_over: dict[str, PassedOver] = {}
    known = set(index.attempts)
    committed = {name.attempt for name in index.names if name.attempt not in known and index.is_committed(name)}
    for attempt in sorted(known | committed, reverse=True):
        lineage = trace(index, attempt)
        if _is_given_up(index, lineage):
            continue
        # An attempt that started fresh and never committed holds nothing that could be continued.
        if any(True for _ in index.committed_on(lineage)):
            return lineage, tuple(passed_over.values())
        if lineage.broken_at is not None:
            key = attempt_key(lineage.broken_at)
            passed_over.setdefault(key, PassedOver(checkpoint=key, reason=str(lineage.broken)))
    return None, tuple(passed_over.values())


def _is_given_up(index: Index, lineage: Lineage) -> bool:
    """Whether the newest attempt of ``lineage`` committed nothing and its parent was removed.

    Retention keeps a parent until there are two own commits; so this one died while it was starting, and the
    attempt before it had gone on. What is older than the parent is not what a start should go back to.
    """
    if len(lineage.segments) < 2:
        return False
    own, parent = lineage.segments[:2]
    if any(name in own and index.is_committed(name) for name in index.names):
        return False
    return parent.last is None or not index.is_committed(parent.last)


def _named(index: Index, checkpoint: str) -> CheckpointName:
    name = CheckpointName.parse(checkpoint)
    if name is None or name not in index.names or not index.is_committed(name):
        there = [str(one) for one in index.names if index.is_committed(one)]
        raise CheckpointNotFoundError(
            f"there is no committed checkpoint {checkpoint!r}; there are: {', '.join(there[-10:]) or 'none'}"
        )
    return name


def _refuse_orphans(index: Index, passed_over: tuple[PassedOver, ...]) -> None:
    orphans = [str(name) for name in index.names if index.is_committed(name)]
    if orphans:
        why = "; ".join(one.reason for one in passed_over) or "no attempt document leads to them"
        raise CorruptCheckpointError(
            f"the run has committed checkpoints ({', '.join(orphans[-3:])}) that cannot be used: {why}. "
            "Restore the files below attempts/, or start again under another root."
        )
