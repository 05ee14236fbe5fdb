"""Tells how many more bytes fit at a run root in memory (tmpfs or ramfs), before the first of them is written.

The pages belong to the control group of the process that writes them, and a group above its limit gets a process
killed. The tightest limit counts; page cache that the kernel can reclaim is free, swap is not. Other file systems have
no limit here. Any thread.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ckptkit.core.text import size
from ckptkit.errors import StorageError
from ckptkit.storage.local import LocalStorage
from ckptkit.storage.protocol import Storage

RESERVE_BYTES = 64 << 20  # of memory that stays free: training goes on while a save is written
_MAGIC = frozenset({0x01021994, 0x858458F6})  # f_type of tmpfs and ramfs
_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_LIMITS = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}  # by version
_CACHE = ("inactive_file", "active_file", "slab_reclaimable")  # rows of memory.stat that the kernel can reclaim


class Limit(NamedTuple):
    """Holds one limit on what fits: free bytes (negative if too much is used), all bytes, its name, a write's error."""

    free_bytes: int
    total_bytes: int
    name: str
    number: int


class Room:
    """Has room for what fits into ``folder``, which need not exist; for everything, if that is None or on a disk."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def tightest(self) -> Limit | None:
        """Return the limit that decides now; None where the folder is not in memory."""
        if self._folder is None:
            return None
        folder = next(parent for parent in (self._folder, *self._folder.absolute().parents) if parent.exists())
        if not is_in_memory(folder):
            return None
        mounted = os.statvfs(folder)
        free_bytes, total_bytes = mounted.f_bavail * mounted.f_frsize, mounted.f_blocks * mounted.f_frsize
        limit = Limit(free_bytes, total_bytes, f"the size of the file system (`df -h {folder}`)", errno.ENOSPC)
        return min([*_of_memory(), *([limit] if total_bytes else [])], default=None)  # ramfs has no size

    def lacking_bytes(self, needed_bytes: int) -> int:
        """Return how many of ``needed_bytes`` do not fit now."""
        limit = self.tightest()
        return 0 if limit is None else max(0, needed_bytes - limit.free_bytes)

    def expect(self, needed_bytes: int, what: str) -> None:
        """Raise StorageError if ``needed_bytes`` do not fit now; the message calls them ``what``."""
        limit = self.tightest()
        if limit is not None and needed_bytes > limit.free_bytes:
            raise StorageError(
                f"{what} was not begun, because the run root is in memory and has no room for it: it needs "
                f"{size(needed_bytes)}, and {size(max(0, limit.free_bytes))} of {size(limit.total_bytes)} are free by "
                f"{limit.name}.\n  Raise this limit, or keep fewer (keep=ck.KeepLatest(2)), or use mirror=, which lets "
                "older checkpoints go before a save, or give a run root on a disk."
            ) from OSError(limit.number, os.strerror(limit.number))


UNLIMITED = Room()


def room_of(storage: Storage, folder: str) -> Room:
    return Room(Path(storage.url) / folder) if isinstance(storage, LocalStorage) else UNLIMITED


def free_beside(storage: Storage, folder: str) -> int | None:
    """Return how much memory this process may take now; None if the system does not say, or the checkpoint needs it."""
    limit = None if room_of(storage, folder).tightest() is not None else min(_of_memory(), default=None)
    return None if limit is None else max(0, limit.free_bytes)


def is_in_memory(folder: Path) -> bool:
    answer = ctypes.create_string_buffer(256)  # struct statfs, larger than on any platform
    is_known = ctypes.CDLL(None).statfs(os.fsencode(folder), answer) == 0
    return is_known and ctypes.c_ulong.from_buffer(answer).value & 0xFFFFFFFF in _MAGIC


def in_pages(size_bytes: int) -> int:
    """Return what a file of ``size_bytes`` takes in memory."""
    return size_bytes + -size_bytes % 4096


def _of_memory() -> Iterator[Limit]:
    """Yield the limits of the machine, of the control groups of this process and of those above them."""
    machine = _table(_PROC / "meminfo")
    if "MemAvailable:" in machine:
        free_kib, total_kib = machine["MemAvailable:"], machine["MemTotal:"]
        yield _memory(1024 * free_kib, 1024 * total_kib, "the memory of this machine (MemAvailable)")
    for line in _text(_PROC / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, (limit_file, usage_file) = (_GROUPS / "memory", _LIMITS[1]) if controllers else (_GROUPS, _LIMITS[2])
        group = mount / path.lstrip("/")  # in a container, it may be a path of the host: then only the mount exists
        for folder in (group, *group.parents):
            limit, usage = _text(folder / limit_file).strip(), _text(folder / usage_file).strip()
            if limit.isdigit() and usage.isdigit():  # "max" is no limit; that of version 1 is too large to decide
                stat = _table(folder / "memory.stat")  # of version 1, "total_" counts the groups below, too
                cache_bytes = sum(stat.get(f"total_{row}", stat.get(row, 0)) for row in _CACHE)
                name = f"the memory limit of this container ({folder / limit_file})"
                yield _memory(int(limit) - int(usage) + cache_bytes, int(limit), name)


def _memory(free_bytes: int, total_bytes: int, name: str) -> Limit:
    return Limit(free_bytes - min(RESERVE_BYTES, total_bytes // 16), total_bytes, name, errno.ENOMEM)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""  # what cannot be read limits nothing


def _table(file: Path) -> dict[str, int]:
    rows = map(str.split, _text(file).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
