"""Reads files of a local disk, and tells a file that is damaged from a disk that fails.

Guarantees: a file counts as corrupt only if the disk cannot read it twice, and can read another file of the same root
(``docs/adr/0004``), or if something else than a file is in its place. Waits for no pipe and follows no link. Any
thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from ckptkit.errors import CorruptCheckpointError
from ckptkit.storage.local_errors import refuse_links, storage_errors

_T = TypeVar("_T")

_MOST_BUFFERS = 1024  # IOV_MAX on Linux: the limit of one system call

# What disks, and file systems with checksums, report for a place that cannot be read.
_UNREADABLE = {errno.EIO, errno.ENODATA, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)}
_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NEIGHBOURS = 3  # from each folder
_SAMPLE_BYTES = 1 << 16


def read_file(root: Path, key: str, read: Callable[[int], _T]) -> _T:
    """Call ``read`` with the open file ``key`` below ``root``, and once more if the disk cannot read it.

    Raises:
        FileNotFoundError: If there is no such file.
        CorruptCheckpointError: If this file cannot be read but another one can, or ``key`` is no regular file.
        StorageError: If ``key`` is a link, or the disk fails otherwise.
    """
    path = f"{root}/{key}"  # a restore calls this for every few MiB, so no Path and no file object
    with storage_errors("read", path):
        try:
            return with_open(path, read)
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise CorruptCheckpointError(
                    f"{key} is a folder, a pipe or a device, but a file was written there"
                ) from error
            if error.errno == errno.ELOOP:
                refuse_links(root, key)
            if error.errno not in _UNREADABLE:
                raise
        try:
            return with_open(path, read)
        except OSError as error:
            if error.errno not in _UNREADABLE or not any(map(_gives_bytes, _neighbours(root, Path(path)))):
                raise
            raise CorruptCheckpointError(
                f"{key} cannot be read ({error.strerror}, twice), but another file can: the disk is damaged there"
            ) from error


def read_all(descriptor: int, buffers: Sequence[memoryview], offset_bytes: int) -> int:
    """Fill ``buffers`` from ``offset_bytes`` on, with as few system calls as possible; return the number of bytes."""
    rest = [one for one in buffers if len(one)]
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
    above = [folder for folder in path.parents if folder == root or root in folder.parents]
    for folder in (*above, *(one for one in _entries(root) if not one.is_symlink())):  # a link may leave this disk
        yield from [one for one in _entries(folder) if one != path and one.is_file()][:_NEIGHBOURS]


def with_open(path: str, read: Callable[[int], _T]) -> _T:
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


def _entries(folder: Path) -> list[Path]:
    """Return the entries of ``folder``; none if it is not a folder or cannot be listed."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _gives_bytes(path: Path) -> bool:
    """Return whether the disk gives the beginning of a file; drops its page cache, which outlives a disk."""

    def sample(descriptor: int) -> bool:
        if hasattr(os, "posix_fadvise"):  # not on macOS
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return bool(read_all(descriptor, [memoryview(bytearray(_SAMPLE_BYTES))], 0))

    try:
        return with_open(str(path), sample)
    except OSError:
        return False
