"""Copies one committed checkpoint from one storage to another: shards, frozen ones, rank files, manifest, then COMMIT.

COMMIT is created only after every file matches the digests of the source and is durable. Correct bytes in a local file
without a COMMIT prove nothing, since a digest reads the page cache; such a file is written anew. Nothing is
overwritten; only remains of an interrupted write are deleted, recognized by their bytes. One process at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import numpy as np
import xxhash

from ckptkit.checkpoint.commit import list_names, make_durable, publish, read_commit
from ckptkit.checkpoint.open import OpenedCheckpoint, manifest_entry, open_manifest, read_rank
from ckptkit.checkpoint.read import check_sizes, sizes_at
from ckptkit.checkpoint.reread import reread_if_corrupt
from ckptkit.checkpoint.shard_bytes import ShardBytes, VerifiedFile
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, ResumeError, StorageError
from ckptkit.format.documents import MAX_SEALED_BYTES, Commit, FileEntry, ShardEntry, encode
from ckptkit.format.layout import FROZEN, CheckpointName, checkpoints_prefix
from ckptkit.storage import Storage

_PADDING_BYTES = 4096  # a killed local write may have padded the last block of its file and not truncated it yet


class Transfer:
    """Copies a checkpoint in two steps, so that several checkpoints are compared before any is written."""

    def __init__(
        self,
        source: Storage,
        target: Storage,
        opened: OpenedCheckpoint,
        proven: set[str] | None = None,
        *,
        rank: int | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._opened = opened
        self._files = files_of(opened, rank)
        self._folder = opened.name.rank_folder(rank) if rank else opened.name.folder
        self._proven = set() if proven is None else proven
        self._left: set[str] = set()
        self.is_committed = False
        self.copied_bytes = 0
        self.found_bytes = 0

    def compare(self, report: Callable[[int], None] | None = None) -> None:
        """Compare all files at the target with the source; change nothing."""
        name, sizes = self._opened.name, sizes_at(self._target, self._opened)
        files = {file.key: file for file in files_of(self._opened)}
        self.is_committed = name.commit_key in sizes
        if self.is_committed and not holds(self._target, name.commit_key, encode(self._opened.commit)):
            raise self._differs(name.commit_key)
        for key in sorted(sizes.keys() - files.keys() - {name.commit_key}):
            is_foreign = key.startswith(f"{self._folder}/") and not key.startswith(f"{name.receipts_folder}/")
            if is_foreign and not is_hidden(key):
                raise ResumeError(f"{key} is at {self._target.url} but not at {self._source.url}. {ADVICE}")
        for file in self._files:
            if file.key in self._proven and sizes.get(file.key) == file.size_bytes:
                continue
            self._proven.discard(file.key)  # it was there, and somebody removed or changed it since
            if file.key not in sizes:
                if self.is_committed:
                    raise ResumeError(
                        f"{file.key} is missing at {self._target.url}, where its checkpoint is committed. {ADVICE}"
                    )
                continue
            # Twice, as `reread_if_corrupt`.
            is_same = sizes[file.key] == file.size_bytes and file.digest in (
                _digest(self._target, file) for _ in range(2)
            )
            if is_same and (self._target.is_remote or self._is_vouched_for(file)):
                self._proven.add(file.key)
                self.found_bytes += file.size_bytes
                if report is not None:
                    report(file.size_bytes)
            elif not self._is_vouched_for(file) and (is_same or self._is_torn(file, sizes[file.key])):
                self._left.add(file.key)
            else:
                raise self._differs(file.key)

    def finish(
        self,
        report: Callable[[int], None] | None = None,
        before_commit: Callable[[], object] | None = None,
        others: Callable[[], object] | None = None,
    ) -> Literal["copied", "present"]:
        """Write the files that the target lacks, and commit; call `compare` first."""
        if self.is_committed:
            make_durable(self._target, self._opened.name.commit_key, encode(self._opened.commit))
            return "present"
        check_sizes(self._source, self._opened)
        self.copy(report)
        if others is not None:
            others()
        # Check again: if another process deletes or writes here, COMMIT must not be created.
        sizes = sizes_at(self._target, self._opened)
        for file in files_of(self._opened):
            if sizes.get(file.key) != file.size_bytes:
                raise StorageError(
                    f"{file.key} at {self._target.url} changed after it was copied: another process writes there. "
                    "Let only one process copy, then run this command again."
                )
        if before_commit is not None:
            before_commit()
        publish(self._target, self._opened.name, self._opened.commit)
        return "copied"

    def copy(self, report: Callable[[int], None] | None = None) -> None:
        """Write the files that the target lacks, and do not commit; as in `finish`."""
        for file in self._files:
            if file.key not in self._proven:
                reread_if_corrupt(partial(self._write, file, report))

    def _write(self, file: FileEntry, report: Callable[[int], None] | None) -> None:
        if file.key in self._left:
            self._target.delete([file.key])
        stream = SourceFile(self._source, self._opened.name, file, report)
        try:
            self._target.write(file.key, stream, file.size_bytes)
        except CorruptCheckpointError:
            # These bytes are unverified, and would block the copy of the repaired file.
            with contextlib.suppress(StorageError):
                self._target.delete([file.key])
            raise
        self._proven.add(file.key)
        self.copied_bytes += file.size_bytes

    def _is_vouched_for(self, file: FileEntry) -> bool:
        """Whether a committed checkpoint at the target has ``file``: this one, or any other if it is a frozen shard."""
        if self.is_committed or not _is_frozen(file):
            return self.is_committed
        names = list_names(self._target, checkpoints_prefix(self._opened.name.attempt))
        return any(self._has(name, file) for name in names[::-1])

    def _has(self, name: CheckpointName, file: FileEntry) -> bool:
        try:
            commit = read_commit(self._target, name)
            if not isinstance(commit, Commit):
                return False
            ranks = enumerate(open_manifest(self._target, name, commit).rank_files)
            documents = (read_rank(self._target, name, rank, entry, commit.token) for rank, entry in ranks)
            return any(shard.key == file.key for document in documents for shard in document.shards)
        except CheckpointNotFoundError:
            return False
        except CorruptCheckpointError:
            return True  # unknown; a file that a checkpoint may need is not deleted

    def _is_torn(self, file: FileEntry, size_bytes: int) -> bool:
        """Whether the file at the target may be the remains of ``file`` after a kill or a power loss."""
        if size_bytes - file.size_bytes >= _PADDING_BYTES:
            return False
        common = min(size_bytes, file.size_bytes)
        stream = SourceFile(self._source, self._opened.name, file)
        for piece in _pieces(self._target, file.key, common):
            expected = memoryview(bytearray(len(piece)))
            stream.readinto(expected)
            actual = np.frombuffer(piece, np.uint8)
            if not ((actual == expected) | (actual == 0)).all():
                return False
        return not any(any(piece) for piece in _pieces(self._target, file.key, size_bytes, common))

    def _differs(self, key: str) -> ResumeError:
        return ResumeError(f"{key} at {self._target.url} differs from the file at {self._source.url}. {ADVICE}")


ADVICE = "Nothing was changed. Copy to a new root, or remove what is at the target if it is not needed."


def holds(storage: Storage, key: str, data: bytes) -> bool:
    for _ in range(2):  # as `reread_if_corrupt`
        with contextlib.suppress(CorruptCheckpointError):
            if storage.read(key, MAX_SEALED_BYTES) == data:
                return True
    return False


def files_of(opened: OpenedCheckpoint, rank: int | None = None) -> list[FileEntry]:
    """Return the files of a checkpoint without COMMIT, in the order in which they must be written."""
    writers: dict[str, int] = {}  # a frozen shard that two ranks share belongs to the lower one
    shards: list[ShardEntry] = []
    for document in opened.ranks:
        for shard in document.shards:
            if writers.setdefault(shard.key, document.rank) == document.rank and rank in (None, document.rank):
                shards.append(shard)
    files = [*sorted(shards, key=_is_frozen), *opened.manifest.rank_files[rank : None if rank is None else rank + 1]]
    return [*files, manifest_entry(opened.name, opened.commit)] if not rank else files


def is_hidden(key: str) -> bool:
    """Whether ``key`` does not belong to a run, such as the temporary file of a killed create."""
    return any(part.startswith(".") for part in key.split("/"))


def _is_frozen(file: FileEntry) -> bool:
    return file.key.startswith(f"{FROZEN}/")


def _digest(storage: Storage, file: FileEntry) -> str:
    hasher = xxhash.xxh3_128()
    for piece in _pieces(storage, file.key, file.size_bytes):
        hasher.update(piece)
    return hasher.hexdigest()


def _pieces(storage: Storage, key: str, size_bytes: int, at: int = 0) -> Iterator[memoryview]:
    """Yield a file from ``at`` to ``size_bytes`` in parts, each valid until the next; stop early if the file ends."""
    window = memoryview(bytearray(min(storage.window_bytes, size_bytes - at)))
    while at < size_bytes:
        piece = window[: size_bytes - at]
        try:
            count = storage.read_into(key, [piece], at)
        except FileNotFoundError as error:
            raise StorageError(f"{key} disappeared from {storage.url} during the comparison") from error
        except CorruptCheckpointError as error:  # raised as it is, it would blame the source
            raise StorageError(f"could not compare the files at {storage.url}: {error}. {ADVICE}") from error
        if not count:
            return
        yield piece[:count]
        at += count


class SourceFile:
    """Streams one file and verifies it; implements `ckptkit.storage.ByteStream`."""

    def __init__(
        self, storage: Storage, name: CheckpointName, file: FileEntry, report: Callable[[int], None] | None = None
    ) -> None:
        files = ShardBytes(storage, name, report)
        # The target's buffers may be smaller than the reads that the source needs for full speed.
        self._file = VerifiedFile(files, file, files.window_bytes)
        self._at = 0

    def readinto(self, buffer: memoryview, /) -> int:
        size_bytes = self._file.file.size_bytes
        part = buffer[: size_bytes - self._at]
        self._file.read(self._at, part)
        self._at += len(part)
        if self._at == size_bytes:
            self._file.finish()
        return len(part)
