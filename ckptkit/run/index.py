"""Finds checkpoints by listing, determines which are committed, and follows the lineage of an attempt.

Only names and create-only markers decide, never a clock or a pointer. A COMMIT that does not parse counts as a corrupt
checkpoint. A `Survey` reads hardly any COMMIT: void markers have one size, real ones are larger, and one alone in its
folder with that size counts as void. Every object shows one moment and becomes stale.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice

from typing_extensions import Self

from ckptkit.checkpoint.commit import list_attempts, list_names, read_commit, read_document
from ckptkit.errors import CorruptCheckpointError, UnusableCheckpointError
from ckptkit.format.documents import AttemptDocument, Commit, Void, encode
from ckptkit.format.layout import CHECKPOINTS, COMMIT, CheckpointName, attempt_key, checkpoints_prefix
from ckptkit.storage import Storage

_FEW_VOIDS = 2
_ITSELF = ""  # the path in a folder of what lies in the folder's place
_SOME = "0" * 32  # all tokens and digests have this length

VOID_BYTES = len(encode(Void(void_by=_SOME)))


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
        self._voids += isinstance(self.commit(name), Void)
        return self.has_commit(name)

    def has_commit(self, name: CheckpointName) -> bool:
        """Return the same as `is_committed`, without a look at other folders."""
        return isinstance(self.commit(name), Commit | CorruptCheckpointError)

    @cached_property
    def _bare_voids(self) -> frozenset[CheckpointName]:
        survey = Survey(self.storage)
        return frozenset(filter(survey.is_bare_void, survey.names))

    def is_foreign(self, name: CheckpointName) -> bool:
        """Whether another process than the owner of its attempt created the COMMIT of ``name``.

        The run was removed or moved while that process trained, and begun anew: its commits are not of this run.
        """
        commit = self.commit(name)
        try:
            return isinstance(commit, Commit) and commit.token != self.document(name.attempt).token
        except UnusableCheckpointError:
            return False  # the owner is unknown


@dataclass(frozen=True)
class Segment:
    """Refers to the commits of one attempt on a lineage, up to ``last`` if a later attempt continued from it."""

    attempt: int
    last: CheckpointName | None

    def __contains__(self, name: CheckpointName) -> bool:
        return name.attempt == self.attempt and (self.last is None or name <= self.last)


class Lineage:
    """Reads a lineage lazily, from the newest attempt back to a fresh start or a document that cannot be read."""

    def __init__(self, documents: Documents, newest: int) -> None:
        self._documents = documents
        self._next: Segment | None = Segment(newest, None)
        self.segments: list[Segment] = []
        self.broken: CorruptCheckpointError | None = None  # once it was read to its end
        self.broken_at: int | None = None

    def __iter__(self) -> Iterator[Segment]:
        at = 0
        while at < len(self.segments) or self._go_back():
            yield self.segments[at]
            at += 1

    def __contains__(self, name: CheckpointName) -> bool:
        return any(name in segment for segment in self.down_to(name.attempt))

    def down_to(self, attempt: int) -> Iterator[Segment]:
        """Yield the segments, newest first, until no further one can be of ``attempt`` or a later attempt."""
        for segment in self:
            yield segment
            if segment.attempt <= attempt:  # a parent is always of a lower attempt
                return

    def whole(self) -> Self:
        while self._go_back():
            pass
        return self

    def _go_back(self) -> bool:
        segment = self._next
        if segment is None:
            return False
        try:
            self._next = segment_before(self._documents.document(segment.attempt))
        except CorruptCheckpointError as error:
            self._next, self.broken, self.broken_at = None, error, segment.attempt
            return False
        self.segments.append(segment)
        return True


def segment_before(document: AttemptDocument) -> Segment | None:
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


class Index(Documents):
    """Lists a run: the folders of its checkpoints and the documents of its attempts."""

    def __init__(self, storage: Storage, ignoring: Collection[int] = ()) -> None:
        super().__init__(storage)
        self._ignoring = ignoring
        self.names = list_names(storage)
        _ = self.documented  # now, and after the folders: a folder is created after its attempt's document

    @cached_property
    def documented(self) -> frozenset[int]:
        return list_attempts(self.storage)

    @cached_property
    def attempts(self) -> frozenset[int]:
        return self.documented.difference(self._ignoring)

    @cached_property
    def orphans(self) -> frozenset[int]:
        return frozenset(self._by_attempt) - self.attempts

    @cached_property
    def highest(self) -> int:
        return max([0, *self.documented, *self._by_attempt])

    @cached_property
    def _by_attempt(self) -> dict[int, list[CheckpointName]]:
        return {number: [*names] for number, names in groupby(self.names, lambda name: name.attempt)}

    def names_of(self, attempt: int) -> Sequence[CheckpointName]:
        return self._by_attempt.get(attempt, ())

    def has_forgotten(self, attempt: int) -> bool:
        """Whether ``attempt`` may have been a start that committed nothing and that a later start removed."""
        return attempt < self.highest and attempt not in self.documented and attempt not in self._by_attempt


def commit_bytes(manifest_bytes: int) -> int:
    """Return the size of a sound COMMIT for a manifest of ``manifest_bytes``."""
    return len(encode(Commit(token=_SOME, manifest_digest=_SOME, manifest_size_bytes=manifest_bytes).sealed()))


class Survey(Index):
    """Lists a run, or one attempt of it, by one walk that shows all sizes; it reads hardly any COMMIT."""

    def __init__(self, storage: Storage, attempt: int | None = None) -> None:
        Documents.__init__(self, storage)
        self._ignoring = ()
        folders: dict[str, dict[str, int]] = {}
        for key, size_bytes in storage.walk(f"{CHECKPOINTS}/{checkpoints_prefix(attempt) if attempt else ''}").items():
            folder, _, file = key.partition("/")[2].partition("/")
            folders.setdefault(folder, {})[file] = size_bytes
        parsed = {CheckpointName.parse(folder): files for folder, files in folders.items()}
        self._files = {name: files for name, files in parsed.items() if name is not None}
        self.names = tuple(sorted(self._files))
        for name in self.names:
            if _ITSELF in self._files[name]:
                storage.list(name.folder)  # a link that leads nowhere raises: the checkpoint behind it may be needed

    def files(self, name: CheckpointName) -> Mapping[str, int]:
        return self._files.get(name, {})

    def has_remains(self, name: CheckpointName) -> bool:
        """Whether the folder holds data, and is no checkpoint."""
        return not self.is_committed(name) and not self.is_bare_void(name)

    def is_bare_void(self, name: CheckpointName) -> bool:
        return self.files(name) == {COMMIT: VOID_BYTES}

    def is_committed(self, name: CheckpointName) -> bool:
        files = self.files(name)
        is_doubtful = files.get(COMMIT) == VOID_BYTES and len(files) > 1
        return self.has_commit(name) if is_doubtful else files.get(COMMIT, VOID_BYTES) != VOID_BYTES

    def shows_end_of(self, attempt: int) -> bool:
        """Whether ``attempt``, without a commit in this walk, certainly has none, rather than unreachable ones.

        Either one of its folders exists, which is then void, or two commits of later attempts, which do not need it.
        Otherwise ``checkpoints/`` may be an empty mount point, and the attempt's files are still needed.
        """
        newest = list(islice(filter(self.is_committed, reversed(self.names)), 2))
        return bool(self.names_of(attempt)) or (len(newest) == 2 and all(name.attempt > attempt for name in newest))
