"""Reads files of a local disk, and says what its errors mean.

A file counts as corrupt only if the disk cannot read it twice and can read another file of the same root
(``docs/adr/0004``), or if something else than a file is in its place. Any other failure is a `StorageError` that says
what to do. No pipe is waited for, and no link below the root is followed. Any thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from ckptkit.errors import CorruptCheckpointError, StorageError
from ckptkit.storage.system_calls import failed_call

_T = TypeVar("_T")

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL = " See `df -h`; a run that keeps fewer checkpoints needs less."
_HINTS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.ENOTDIR: " A part of that path is a file: give the run root a folder of its own.",
    errno.EACCES: " Let this user read and write there (`ls -ld {folder}` shows who may), or give another run root.",
    errno.EROFS: " It is mounted read-only: give another run root.",
    errno.ENOENT: " That folder cannot be created, or was deleted: check the path (`ls -ld {folder}`).",
}
_ANSWERS = {"read": FileNotFoundError, "create": FileExistsError}  # the absence or presence that a call reports

_MOST_BUFFERS = 1024  # IOV_MAX on Linux: the limit of one system call

# What disks, and file systems with checksums, report for a place that cannot be read.
_UNREADABLE = {errno.EIO, errno.ENODATA, errno.EBADMSG, errno.EUCLEAN}
_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NEIGHBOURS = 3  # from each folder
_SAMPLE_BYTES = 1 << 16


@contextlib.contextmanager
def storage_errors(verb: str, path: Path | str) -> Iterator[None]:
    """Raise StorageError for errors of the file system, but FileNotFoundError to read and FileExistsError to create."""
    try:
        yield
    except StorageError:
        raise
    except (FileNotFoundError, FileExistsError) as error:
        refuse_dangling(Path(path))
        if isinstance(error, _ANSWERS.get(verb, ())):
            raise
        raise _storage_error(verb, path, error) from error
    except OSError as error:
        raise _storage_error(verb, path, error) from error


def has_no_room(error: StorageError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in NO_ROOM


def _storage_error(verb: str, path: Path | str, error: OSError) -> StorageError:
    folder, call = Path(path).parent, failed_call(error)
    hint = _HINTS.get(error.errno or 0, "").format(folder=folder)
    # File systems without hard links have no common error: CIFS gives EIO, others EXDEV, EMLINK, EINVAL or ENOENT.
    if call == "link" and (not hint or (error.errno == errno.ENOENT and folder.is_dir())):
        hint = " ckptkit publishes with hard links, which it refuses; put the run on a file system that has them."
    if call == "fsync" and error.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        hint = " This file system cannot make files durable; put the run on one that can."
    where = f"{call}: " if call else ""
    return StorageError(f"could not {verb} {path}: {where}{error.strerror or error}.{hint}")


def refuse_links(root: Path, key: str) -> None:
    """Raise StorageError if a part of ``key`` is a link: below ``root``, what is behind one is no part of the run."""
    path = str(root)
    for part in filter(None, key.split("/")):
        path = f"{path}/{part}"
        if os.path.islink(path):
            raise StorageError(
                f"{path} is a link to {os.readlink(path)}, and links inside of a run are not followed. Put what it "
                "leads to in its place, or remove it; for a run on another disk, make a link of its whole folder."
            )


def refuse_dangling(path: Path) -> None:
    """Raise StorageError if ``path`` is absent because of a dangling link: the files behind it may still exist."""
    for place in (path, *path.parents):
        if place.is_symlink() and not place.exists():
            raise StorageError(
                f"{place} is a link to {os.readlink(place)}, which does not exist. Mount the disk that it points to; "
                "remove the link only if the data there is not needed."
            )


def read_file(root: Path, key: str, read: Callable[[int], _T]) -> _T:
    """Call ``read`` with the open file ``key`` below ``root``, and once more if the disk cannot read it."""
    refuse_links(root, key.rpartition("/")[0])
    path = f"{root}/{key}"  # a restore calls this for every few MiB, so no Path and no file object
    with storage_errors("read", path):
        try:
            return _with_open(path, read)
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise CorruptCheckpointError(f"{key} is a folder, a pipe or a device, not a file") from error
            if error.errno == errno.ELOOP:
                refuse_links(root, key)
            if error.errno not in _UNREADABLE:
                raise
        try:
            return _with_open(path, read)
        except OSError as error:
            if error.errno not in _UNREADABLE or not any(map(_gives_bytes, _neighbours(root, Path(path)))):
                raise
            raise CorruptCheckpointError(
                f"{key} cannot be read ({error.strerror}, twice), but another file can: the disk is damaged there"
            ) from error


def read_all(descriptor: int, buffers: Sequence[memoryview], offset_bytes: int) -> int:
    """Fill ``buffers`` from ``offset_bytes`` on, with as few system calls as possible; return the number of bytes."""
    rest = [buffer for buffer in buffers if len(buffer)]
    done = 0
    while rest and (count := os.preadv(descriptor, rest[:_MOST_BUFFERS], offset_bytes + done)):
        done += count
        full = 0
        while full < len(rest) and count >= len(rest[full]):
            count -= len(rest[full])
            full += 1
        rest = rest[full:]
        if count:
            rest[0] = rest[0][count:]
    return done


def _neighbours(root: Path, path: Path) -> Iterator[Path]:
    """Yield some other files of this root, the nearest first."""
    folders = [folder for folder in path.parents if folder == root or root in folder.parents]
    folders += [entry for entry in _entries_of(root) if not entry.is_symlink()]  # a link may leave this disk
    for folder in folders:
        yield from [entry for entry in _entries_of(folder) if entry != path and entry.is_file()][:_NEIGHBOURS]


def _with_open(path: str, read: Callable[[int], _T]) -> _T:
    """Call ``read`` with the open file; raises OSError with ENXIO if it is no regular file, with ELOOP if a link."""

    def act() -> _T:
        descriptor = os.open(path, _READING)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), path)
            os.set_blocking(descriptor, True)  # a file that lies on a tape is waited for
            return read(descriptor)
        finally:
            os.close(descriptor)

    return past_stale(act)


def past_stale(act: Callable[[], _T]) -> _T:
    """Call ``act``, and once more if a server of files no longer knew the handle of what ``act`` had opened."""
    try:
        return act()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    return act()


def _entries_of(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _gives_bytes(path: Path) -> bool:
    """Return whether the disk gives the beginning of a file; drops its page cache, which outlives a disk."""

    def sample(descriptor: int) -> bool:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return bool(read_all(descriptor, [memoryview(bytearray(_SAMPLE_BYTES))], 0))

    try:
        return _with_open(str(path), sample)
    except OSError:
        return False
