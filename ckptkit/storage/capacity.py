"""Tells how many more bytes fit at a run root in memory (tmpfs or ramfs), before the first of them is written.

The pages belong to the control group of the process that writes them, and a group above its limit gets a process
killed. The tightest limit counts; page cache that the kernel can reclaim is free, swap is not. Any thread.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
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
_CACHE = ("inactive_file", "active_file", "slab_reclaimable")  # rows of memory.stat that the kernel can reclaim


class Limit(NamedTuple):
    free_bytes: int  # negative if too much is used
    total_bytes: int
    name: str
    number: int  # of the error of a write above it

    def expect(self, needed_bytes: int, what: str) -> None:
        """Raise StorageError if ``needed_bytes`` do not fit; the message calls them ``what``."""
        if needed_bytes > self.free_bytes:
            raise StorageError(
                f"{what} was not begun, because the run root is in memory and has no room for it: it needs "
                f"{size(needed_bytes)}, and {size(max(0, self.free_bytes))} of {size(self.total_bytes)} are free by "
                f"{self.name}.\n  Raise this limit, or keep fewer (keep=ck.KeepLatest(2)), or use mirror=, which lets "
                "older checkpoints go before a save, or give a run root on a disk."
            ) from OSError(self.number, os.strerror(self.number))


NO_LIMIT = Limit(sys.maxsize, sys.maxsize, "", 0)


def limit_at(storage: Storage, folder: str) -> Limit:
    """Return the limit that decides now at ``folder``, which need not exist; `NO_LIMIT` where it is not in memory."""
    if not isinstance(storage, LocalStorage):
        return NO_LIMIT
    path = Path(storage.url, folder).absolute()
    place = next(parent for parent in (path, *path.parents) if parent.exists())
    if not is_in_memory(place):
        return NO_LIMIT
    mounted = os.statvfs(place)
    free_bytes, total_bytes = mounted.f_bavail * mounted.f_frsize, mounted.f_blocks * mounted.f_frsize
    limit = Limit(free_bytes, total_bytes, f"the size of the file system (`df -h {place}`)", errno.ENOSPC)
    return min([NO_LIMIT, *_of_memory(), *([limit] if total_bytes else [])])  # ramfs has no size


def free_beside(storage: Storage, folder: str) -> int:
    """Return how much memory copies may take now; 0 if the system does not say, or ``folder`` needs it."""
    limit = min(_of_memory(), default=None)
    return 0 if limit is None or limit_at(storage, folder) != NO_LIMIT else max(0, limit.free_bytes)


def is_in_memory(folder: Path) -> bool:
    answer = ctypes.create_string_buffer(256)  # struct statfs, larger than on any platform
    is_known = ctypes.CDLL(None).statfs(os.fsencode(folder), answer) == 0
    return is_known and ctypes.c_ulong.from_buffer(answer).value & 0xFFFFFFFF in _MAGIC


def in_pages(size_bytes: int) -> int:
    """Return what a file of ``size_bytes`` takes in memory."""
    return size_bytes + -size_bytes % 4096


def _of_memory() -> Iterator[Limit]:
    """Yield the limits of the machine, of the control groups of this process and of those above them."""
    machine = _rows(_PROC / "meminfo")
    if "MemAvailable:" in machine:
        free_bytes, total_bytes = 1024 * machine["MemAvailable:"], 1024 * machine["MemTotal:"]
        yield _memory(free_bytes, total_bytes, "the memory of this machine (MemAvailable)")
    for line in _text(_PROC / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        group, names = _GROUPS / path.lstrip("/"), ("memory.max", "memory.current")
        if controllers:  # version 1
            group, names = _GROUPS / "memory" / path.lstrip("/"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
        # In a container, the path may be one of the host: then only the mount exists.
        for folder in (group, *group.parents) if "memory" in (controllers or "memory").split(",") else ():
            limit, used = (_text(folder / name).strip() for name in names)
            if limit.isdigit() and used.isdigit():  # "max" is no limit; that of version 1 is too large to decide
                rows = _rows(folder / "memory.stat")  # of version 1, "total_" counts the groups below, too
                cache_bytes = sum(rows.get(f"total_{row}", rows.get(row, 0)) for row in _CACHE)
                free_bytes = int(limit) - int(used) + cache_bytes
                yield _memory(free_bytes, int(limit), f"the memory limit of this container ({folder / names[0]})")


def _memory(free_bytes: int, total_bytes: int, name: str) -> Limit:
    return Limit(free_bytes - min(RESERVE_BYTES, total_bytes // 16), total_bytes, name, errno.ENOMEM)


def _rows(file: Path) -> dict[str, int]:
    rows = map(str.split, _text(file).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""  # what cannot be read limits nothing
