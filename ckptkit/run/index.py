"""Finds checkpoints by listing, determines which are committed, and follows the lineage of an attempt.

Guarantees: only names and create-only markers decide, never a clock or a pointer. A COMMIT that does not parse counts
as a corrupt checkpoint. `Folders`, and `Survey` with it, read hardly any COMMIT: void markers have one size, real ones
are larger, and one alone in its folder with that size counts as void. Every object is one look and becomes stale.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Protocol

from ckptkit.checkpoint.commit import list_attempts, list_names, read_commit, read_document
from ckptkit.errors import CorruptCheckpointError, UnusableCheckpointError
from ckptkit.format.documents import AttemptDocument, Commit, Void, encode
from ckptkit.format.layout import CHECKPOINTS, COMMIT, CheckpointName, attempt_key, checkpoints_prefix
from ckptkit.storage import Storage


class AttemptLookup(Protocol):
    def document(self, attempt: int) -> AttemptDocument: ...


@dataclass(frozen=True)
class Segment:
    attempt: int
    last: CheckpointName | None

    def __contains__(self, name: CheckpointName) -> bool:
        return name.attempt == self.attempt and (self.last is None or name <= self.last)


@dataclass(frozen=True)
class Lineage:
    segments: tuple[Segment, ...]
    broken: CorruptCheckpointError | None = None
    broken_at: int | None = None

    def __contains__(self, name: CheckpointName) -> bool:
        return any(name in segment for segment in self.segments)


class Ancestry:
    """Reads a lineage lazily, from the newest attempt back. One thread."""

    def __init__(self, attempts: AttemptLookup, newest: int) -> None:
        self._attempts = attempts
        self._next: Segment | None = Segment(newest, None)
        self._segments: list[Segment] = []
        self.broken: CorruptCheckpointError | None = None
        self.broken_at: int | None = None

    def __iter__(self) -> Iterator[Segment]:
        at = 0
        while at < len(self._segments) or self._go_back():
            yield self._segments[at]
            at += 1

    def down_to(self, attempt: int) -> Iterator[Segment]:
        """Yield the segments, newest first, until no further one can be of ``attempt`` or a later attempt."""
        for segment in self:
            yield segment
            if segment.attempt <= attempt:  # a parent is always of a lower attempt
                return

    def whole(self) -> Lineage:
        segments = tuple(self)
        return Lineage(segments, self.broken, self.broken_at)

    def _go_back(self) -> bool:
        step = self._next
        if step is None:
            return False
        try:
            document = self._attempts.document(step.attempt)
            before = segment_before(document)
        except CorruptCheckpointError as error:
            self._next, self.broken, self.broken_at = None, error, step.attempt
            return False
        self._segments.append(step)
        self._next = before
        return True


def trace(attempts: AttemptLookup, newest: int) -> Lineage:
    return Ancestry(attempts, newest).whole()


def segment_before(document: AttemptDocument) -> Segment | None:
    """Return the next older segment after the attempt of ``document``; None if that attempt was a fresh start."""
    if document.parent is None:
        return None
    parent = CheckpointName.parse(document.parent)
    # A parent is always of a lower attempt, so the walk ends.
    if parent is None or parent.attempt >= document.attempt:
        raise CorruptCheckpointError(
            f"{attempt_key(document.attempt)} names the parent {document.parent[:80]!r}, which is not a checkpoint "
            "of an earlier attempt"
        )
    return Segment(parent.attempt, parent)


_FEW_VOIDS = 2
_ITSELF = ""  # the path in a folder of what lies in the folder's place
_SOME = "0" * 32  # all tokens and digests have this length

VOID_BYTES = len(encode(Void(void_by=_SOME)))


def by_attempt(names: Iterable[CheckpointName]) -> Mapping[int, Sequence[CheckpointName]]:
    found: dict[int, list[CheckpointName]] = {}
    for name in names:
        found.setdefault(name.attempt, []).append(name)
    return found


class Documents:
    """Reads attempt documents and COMMITs on demand, and caches them."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._documents: dict[int, AttemptDocument] = {}
        self._commits: dict[CheckpointName, Commit | Void | CorruptCheckpointError | None] = {}
        self._voids = 0  # void markers found so far

    def document(self, attempt: int) -> AttemptDocument:
        if attempt not in self._documents:
            key = attempt_key(attempt)
            try:
                document = read_document(self.storage, key, AttemptDocument)
            except FileNotFoundError as error:
                raise CorruptCheckpointError(f"{key} is missing") from error
            if document.attempt != attempt:
                raise CorruptCheckpointError(f"{key} is the document of attempt {document.attempt}")
            self._documents[attempt] = document
        return self._documents[attempt]

    def commit(self, name: CheckpointName) -> Commit | Void | CorruptCheckpointError | None:
        """Return the COMMIT of ``name``, or the error from reading it; None if there is no COMMIT."""
        if name not in self._commits:
            try:
                self._commits[name] = read_commit(self.storage, name)
            except CorruptCheckpointError as error:
                self._commits[name] = error
        return self._commits[name]

    def is_committed(self, name: CheckpointName) -> bool:
        """Whether the folder has a COMMIT that is not void; a COMMIT that does not parse counts."""
        if name not in self._commits and self._voids >= _FEW_VOIDS and name in self._bare_voids:
            return False
        commit = self.commit(name)
        self._voids += isinstance(commit, Void)
        return isinstance(commit, Commit | CorruptCheckpointError)

    @cached_property
    def _bare_voids(self) -> frozenset[CheckpointName]:
        """Folders that hold only a void marker, by its size, as in `ckptkit.run.index.Folders`."""
        folders = Folders(self.storage)
        return frozenset(filter(folders.is_bare_void, folders.names))

    def is_foreign(self, name: CheckpointName) -> bool:
        """Whether a process other than the owner of its attempt created the COMMIT of ``name``.

        The run was removed or moved while that process trained, and begun anew. What that process committed since does
        not belong to this run, although the name suggests it.
        """
        commit = self.commit(name)
        try:
            return isinstance(commit, Commit) and commit.token != self.document(name.attempt).token
        except UnusableCheckpointError:
            return False  # the owner is unknown


class Index(Documents):
    """Looks at a whole run once: lists all names at once, and reads each COMMIT on demand."""

    def __init__(self, storage: Storage, ignoring: Collection[int] = ()) -> None:
        super().__init__(storage)
        # Folders first: a folder is created after its attempt's document, so every listed folder has one.
        self.names = self._list_names()
        self.documented = list_attempts(storage)
        self.attempts = self.documented - set(ignoring)
        self._by_attempt = by_attempt(self.names)
        self.orphans = frozenset(self._by_attempt) - self.attempts
        self.highest = max([0, *self.documented, *self._by_attempt])

    def names_of(self, attempt: int) -> Sequence[CheckpointName]:
        return self._by_attempt.get(attempt, ())

    def has_forgotten(self, attempt: int) -> bool:
        """Whether ``attempt`` may have been a start that committed nothing and that a later start removed."""
        return attempt < self.highest and attempt not in self.documented and attempt not in self._by_attempt

    def _list_names(self) -> tuple[CheckpointName, ...]:
        return list_names(self.storage)


class Glance(Documents):
    """Looks at a run once, and lists the folders of an attempt only on demand."""

    def __init__(self, storage: Storage, ignoring: Collection[int] = ()) -> None:
        super().__init__(storage)
        self.attempts = list_attempts(storage) - set(ignoring)
        self.orphans: frozenset[int] = frozenset()
        self._asked: dict[int, Sequence[CheckpointName]] = {}
        self._rest: Mapping[int, Sequence[CheckpointName]] | None = None

    def names_of(self, attempt: int) -> Sequence[CheckpointName]:
        """Return what `Index.names_of` does; from the third attempt on, one listing of all folders serves."""
        if attempt not in self._asked and len(self._asked) < 2:
            self._asked[attempt] = list_names(self.storage, checkpoints_prefix(attempt))
        if attempt in self._asked:
            return self._asked[attempt]
        if self._rest is None:
            self._rest = by_attempt(list_names(self.storage))
        return self._rest.get(attempt, ())


def commit_bytes(manifest_bytes: int) -> int:
    """Return the size of a sound COMMIT for a manifest of ``manifest_bytes``."""
    return len(encode(Commit(token=_SOME, manifest_digest=_SOME, manifest_size_bytes=manifest_bytes).sealed()))


class Folders:
    def __init__(self, storage: Storage, attempt: int | None = None) -> None:
        self._storage = storage
        self._files = _grouped(storage.walk(f"{CHECKPOINTS}/{checkpoints_prefix(attempt) if attempt else ''}"))
        self._doubtful: dict[CheckpointName, bool] = {}
        self.names = tuple(sorted(self._files))
        for name in self.names:
            if _ITSELF in self._files[name]:
                storage.list(name.folder)  # a link that leads nowhere raises: the checkpoint behind it may be needed

    def files(self, name: CheckpointName) -> Mapping[str, int]:
        return self._files.get(name, {})

    def is_uncommitted(self, name: CheckpointName) -> bool:
        return COMMIT not in self.files(name)

    def may_be_void_with_data(self, name: CheckpointName) -> bool:
        """Whether the folder holds a COMMIT with the size of a void marker, and other files."""
        files = self.files(name)
        return files.get(COMMIT) == VOID_BYTES and len(files) > 1

    def is_bare_void(self, name: CheckpointName) -> bool:
        """Whether the folder holds only a COMMIT with the size of a void marker."""
        return self.files(name) == {COMMIT: VOID_BYTES}

    def is_committed(self, name: CheckpointName) -> bool:
        """Whether the folder has a COMMIT that is not void; a COMMIT that does not parse counts."""
        if self.may_be_void_with_data(name):
            if name not in self._doubtful:
                self._doubtful[name] = self._is_real(name)
            return self._doubtful[name]
        return self.files(name).get(COMMIT, VOID_BYTES) != VOID_BYTES

    def shows_end_of(self, attempt: int) -> bool:
        """Whether ``attempt``, without a commit in this walk, certainly has none, rather than unreachable ones.

        Either one of its folders exists, which is then void, or two commits of later attempts, which do not need it.
        Otherwise ``checkpoints/`` may be an empty mount point, and the attempt's files are still needed.
        """
        newest = list(islice(filter(self.is_committed, reversed(self.names)), 2))
        return any(name.attempt == attempt for name in self.names) or (
            len(newest) == 2 and all(name.attempt > attempt for name in newest)
        )

    def _is_real(self, name: CheckpointName) -> bool:
        try:
            return isinstance(read_commit(self._storage, name), Commit)
        except CorruptCheckpointError:
            return True


class Survey(Index):
    """Looks at a whole run once and reads hardly any COMMIT; it lists more pages than an `Index`."""

    folders: Folders

    def is_committed(self, name: CheckpointName) -> bool:
        return self.folders.is_committed(name)

    def _list_names(self) -> tuple[CheckpointName, ...]:
        self.folders = Folders(self.storage)
        return self.folders.names


def _grouped(sizes: Mapping[str, int]) -> dict[CheckpointName, dict[str, int]]:
    folders: dict[str, dict[str, int]] = {}
    for key, size_bytes in sizes.items():
        folder, _, file = key.partition("/")[2].partition("/")
        folders.setdefault(folder, {})[file] = size_bytes
    return {name: files for folder, files in folders.items() if (name := CheckpointName.parse(folder)) is not None}
