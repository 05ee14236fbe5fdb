"""Finds checkpoints by listing: what is there, and what is committed.

Guarantees: only names and create-only markers decide, never a clock, a modification time or a pointer file; a
failed listing is an error and never an empty run; a COMMIT that does not parse counts as a (corrupt)
checkpoint, never as an uncommitted folder. It does not open checkpoints: that is `ckptkit.checkpoint.open`; what a
start should try is `ckptkit.run.resolve`'s. An `Index` or a `Glance` is one look and grows stale; any single thread.

Tells what is committed from one walk of ``checkpoints/``: no COMMIT is read to learn that it is one. Guarantees: the
answer is that of reading each COMMIT, but for one thing: a void marker alone in its folder is taken for one by its
size, since nothing is there that could be listed, restored or removed. Sealed documents and void markers are canonical
to the byte, so a void has one size and a COMMIT is always larger. It does not prove a COMMIT sound: that is
`ckptkit.checkpoint.open`. One look at the run, which grows stale; any single thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice

from ckptkit.checkpoint.commit import read_commit
from ckptkit.checkpoint.listing import list_attempts, list_names
from ckptkit.errors import CorruptCheckpointError, FormatVersionError
from ckptkit.format.documents import MAX_SEALED_BYTES, AttemptDocument, Commit, Void, decode, encode
from ckptkit.format.layout import (
    CHECKPOINTS,
    COMMIT,
    CheckpointName,
    attempt_key,
    checkpoints_prefix,
)
from ckptkit.storage import Storage

_FEW_VOIDS = 2
_SOME = "0" * 32  # tokens and digests are of one length

VOID_BYTES = len(encode(Void(void_by=_SOME)))


def by_attempt(names: Iterable[CheckpointName]) -> Mapping[int, Sequence[CheckpointName]]:
    """Names by the attempt that wrote them, in the same order."""
    found: dict[int, list[CheckpointName]] = {}
    for name in names:
        found.setdefault(name.attempt, []).append(name)
    return found


class Documents:
    """Documents of attempts and COMMITs, read when asked for and then kept.

    Args:
        storage: The run root.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._documents: dict[int, AttemptDocument] = {}
        self._commits: dict[CheckpointName, Commit | Void | CorruptCheckpointError | None] = {}
        self._voids = 0  # that were found

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
        """Whether the folder has a COMMIT that is not void; one that does not parse counts.

        Where many jobs died in their saves, void markers that are alone in their folders are not read one by one.
        """
        if name not in self._commits and self._voids >= _FEW_VOIDS and name in self._bare_voids:
            return False
        commit = self.commit(name)
        self._voids += isinstance(commit, Void)
        return isinstance(commit, Commit | CorruptCheckpointError)

    @cached_property
    def _bare_voids(self) -> frozenset[CheckpointName]:
        """By size, as `ckptkit.run.index.Folders` has it."""
        files: dict[str, list[tuple[str, int]]] = {}
        for key, size_bytes in self._storage.walk(f"{CHECKPOINTS}/").items():
            _, folder, file = key.split("/", 2)
            files.setdefault(folder, []).append((file, size_bytes))
        bare = (CheckpointName.parse(folder) for folder, there in files.items() if there == [(COMMIT, VOID_BYTES)])
        return frozenset(name for name in bare if name is not None)

    def is_foreign(self, name: CheckpointName) -> bool:
        """Whether the COMMIT of ``name`` is by another process than the one whose attempt this is.

        Somebody removed or moved the run while that process trained, and began it anew: what it committed since is no
        part of this run, although its name says so.
        """
        commit = self.commit(name)
        try:
            return isinstance(commit, Commit) and commit.token != self.document(name.attempt).token
        except (CorruptCheckpointError, FormatVersionError):
            return False  # whose it is cannot be told


class Index(Documents):
    """One look at a whole run: all names are listed at once, and each COMMIT is read when it is asked for.

    Args:
        storage: The run root.
        ignoring: Attempt numbers to treat as if they had never been.

    Attributes:
        names: Of all folders, in order.
        attempts: Numbers of those with a document.
        documented: The same, with those that are ignored.
        orphans: Numbers of attempts that have folders and no document.
        highest: The highest number of an attempt, also of one whose document is gone.
    """

    def __init__(self, storage: Storage, ignoring: Collection[int] = ()) -> None:
        super().__init__(storage)
        # In this order: a folder is made after its attempt's document, so no listed one lacks it.
        self.names = self._list_names()
        self.documented = list_attempts(storage)
        self.attempts = self.documented - set(ignoring)
        self._by_attempt = by_attempt(self.names)
        self.orphans = frozenset(self._by_attempt) - self.attempts
        self.highest = max([0, *self.documented, *self._by_attempt])

    def names_of(self, attempt: int) -> Sequence[CheckpointName]:
        """Folders of ``attempt``, committed or not, in order."""
        return self._by_attempt.get(attempt, ())

    def has_forgotten(self, attempt: int) -> bool:
        """Whether ``attempt`` may have been a start that came to nothing, which a later one removed."""
        return attempt < self.highest and attempt not in self.documented and attempt not in self._by_attempt

    def _list_names(self) -> tuple[CheckpointName, ...]:
        return list_names(self._storage)


class Glance(Documents):
    """One look at a run that lists the folders of an attempt only when they are asked for.

    It knows of no attempt whose document is gone, so what it does not find, an `Index` may.

    Args:
        storage: The run root.
        ignoring: Attempt numbers to treat as if they had never been.

    Attributes:
        attempts: Numbers of those with a document.
        orphans: None.
    """

    def __init__(self, storage: Storage, ignoring: Collection[int] = ()) -> None:
        super().__init__(storage)
        self.attempts = list_attempts(storage) - set(ignoring)
        self.orphans: frozenset[int] = frozenset()
        self._asked: dict[int, Sequence[CheckpointName]] = {}
        self._rest: Mapping[int, Sequence[CheckpointName]] | None = None

    def names_of(self, attempt: int) -> Sequence[CheckpointName]:
        """As `Index.names_of`; who asks for more than two attempts is given those of one listing of all."""
        if attempt not in self._asked and len(self._asked) < 2:
            self._asked[attempt] = list_names(self._storage, checkpoints_prefix(attempt))
        if attempt in self._asked:
            return self._asked[attempt]
        if self._rest is None:
            self._rest = by_attempt(list_names(self._storage))
        return self._rest.get(attempt, ())


def commit_bytes(manifest_bytes: int) -> int:
    """The size of a sound COMMIT that vouches for a manifest of ``manifest_bytes``."""
    return len(encode(Commit(token=_SOME, manifest_digest=_SOME, manifest_size_bytes=manifest_bytes).sealed()))


class Folders:
    """What lies in the checkpoint folders.

    Args:
        storage: The run root.
        attempt: Whose folders; None for all.

    Attributes:
        names: Of all folders that hold a file, in order.
    """

    def __init__(self, storage: Storage, attempt: int | None = None) -> None:
        self._storage = storage
        self._files = _grouped(storage.walk(f"{CHECKPOINTS}/{checkpoints_prefix(attempt) if attempt else ''}"))
        self._doubtful: dict[CheckpointName, bool] = {}
        self.names = tuple(sorted(self._files))

    def files(self, name: CheckpointName) -> Mapping[str, int]:
        """Sizes of the files of ``name`` by their paths in its folder."""
        return self._files.get(name, {})

    def is_uncommitted(self, name: CheckpointName) -> bool:
        """Whether the folder has no COMMIT, neither a real nor a void one."""
        return COMMIT not in self.files(name)

    def may_be_void_with_data(self, name: CheckpointName) -> bool:
        """Whether a file lies beside a COMMIT of the size of a void marker."""
        files = self.files(name)
        return files.get(COMMIT) == VOID_BYTES and len(files) > 1

    def is_bare_void(self, name: CheckpointName) -> bool:
        """Whether a COMMIT of the size of a void marker is all that the folder holds."""
        return self.files(name) == {COMMIT: VOID_BYTES}

    def is_committed(self, name: CheckpointName) -> bool:
        """Whether the folder has a COMMIT that is not void; one that does not parse counts."""
        if self.may_be_void_with_data(name):
            if name not in self._doubtful:
                self._doubtful[name] = self._is_real(name)
            return self._doubtful[name]
        return self.files(name).get(COMMIT, VOID_BYTES) != VOID_BYTES

    def shows_end_of(self, attempt: int) -> bool:
        """Whether an attempt without a commit can be told from one whose commits are away.

        Either a folder of its own is there, which is void, or two commits of later ones, which do without it. Else
        ``checkpoints/`` may be an empty mount point, and what it needs is needed again.
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
    """One look at a whole run that reads next to no COMMIT; it costs more pages of listing than an `Index`.

    Attributes:
        folders: What the walk found.
    """

    folders: Folders

    def is_committed(self, name: CheckpointName) -> bool:
        """As `Index.is_committed`, from the walk."""
        return self.folders.is_committed(name)

    def _list_names(self) -> tuple[CheckpointName, ...]:
        self.folders = Folders(self._storage)
        return self.folders.names


def _grouped(sizes: Mapping[str, int]) -> dict[CheckpointName, dict[str, int]]:
    folders: dict[str, dict[str, int]] = {}
    for key, size_bytes in sizes.items():
        folder, _, file = key.partition("/")[2].partition("/")
        folders.setdefault(folder, {})[file] = size_bytes
    return {name: files for folder, files in folders.items() if (name := CheckpointName.parse(folder)) is not None}
