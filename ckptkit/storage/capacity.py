"""Tells how many more bytes fit at a run root in memory (tmpfs or ramfs), before the first of them is written.

The pages of such a file system belong to the control group of the process that writes them. A group above its limit
gets a process killed, mostly the training itself, so a write that fails halfway is not the worst that can happen.

Guarantees: nothing but reading. The tightest of these limits counts: the size of the file system, the memory limit of
each control group above this process (versions 1 and 2), and the memory of the machine; page cache that the kernel can
reclaim, and free swap, count as free. What cannot be read limits nothing. No other file system has a limit here, since
a disk that compresses may hold more than it says. The numbers are those of a moment: what other processes write
meanwhile is not foreseen. Any thread.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ckptkit.core.text import size
from ckptkit.errors import StorageError
from ckptkit.storage.local import LocalStorage
from ckptkit.storage.protocol import Storage

PAGE_BYTES = 4096
RESERVE_BYTES = 64 << 20  # of memory that stays free: training goes on while a save is written
_MAGIC = frozenset({0x01021994, 0x858458F6})  # f_type of tmpfs and ramfs
_UNLIMITED = 1 << 60  # version 1 says "no limit" with a number above this


@dataclass(frozen=True)
class Kernel:
    """Names the files in which the kernel tells about memory.

    Attributes:
        groups: Where control groups are mounted.
        own: Names the groups of this process.
        memory: Tells of the machine's memory.
    """

    groups: Path = Path("/sys/fs/cgroup")
    own: Path = Path("/proc/self/cgroup")
    memory: Path = Path("/proc/meminfo")


@dataclass(frozen=True)
class Limit:
    """Holds one limit on what fits.

    Attributes:
        free_bytes: So much fits; negative if there is too much already.
        total_bytes: So much fits where nothing is.
        name: What limits, for messages.
        fix: A sentence on how to raise it.
        number: The error of a write that exceeds it.
    """

    free_bytes: int
    total_bytes: int
    name: str
    fix: str
    number: int


class Room:
    """Has room for everything; what a run root without a known limit has."""

    def tightest(self) -> Limit | None:
        """Return the limit that decides now, if there is one."""
        return None

    def lacking_bytes(self, needed_bytes: int) -> int:
        """Return how many of ``needed_bytes`` do not fit now."""
        limit = self.tightest()
        return 0 if limit is None else max(0, needed_bytes - limit.free_bytes)

    def expect(self, needed_bytes: int, what: str) -> None:
        """Refuse to write what does not fit.

        Args:
            needed_bytes: Its size.
            what: Its name, for the message.

        Raises:
            StorageError: If it does not fit now.
        """
        limit = self.tightest()
        if limit is None or needed_bytes <= limit.free_bytes:
            return
        raise StorageError(
            f"{what} was not begun, because the run root is in memory and has no room for it: it needs "
            f"{size(needed_bytes)}, and {size(max(0, limit.free_bytes))} of {size(limit.total_bytes)} are free by "
            f"{limit.name}.\n  {limit.fix}\n  Or keep fewer (keep=ck.KeepLatest(2)), use mirror=, which lets older "
            "checkpoints go before a save, or give a run root on a disk."
        ) from OSError(limit.number, os.strerror(limit.number))


UNLIMITED = Room()


class MemoryRoom(Room):
    """Has the room of a folder in memory; as `Room` while the folder lies elsewhere.

    Args:
        folder: Need not exist.
        kernel: Where to read.
    """

    def __init__(self, folder: Path, kernel: Kernel | None = None) -> None:
        self._folder = folder
        self._kernel = kernel or Kernel()

    def tightest(self) -> Limit | None:
        """Return the limit that decides now; None where the folder is not in memory."""
        folder = self._folder
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not is_in_memory(folder):
            return None
        limits = [*_of_mount(folder), *_of_groups(self._kernel), *_of_machine(self._kernel)]
        return min(limits, key=lambda limit: limit.free_bytes, default=None)


def room_of(storage: Storage, folder: str) -> Room:
    """Return the room for files in ``folder`` of a run root."""
    return MemoryRoom(Path(storage.url) / folder) if isinstance(storage, LocalStorage) else UNLIMITED


def free_memory_bytes(kernel: Kernel | None = None) -> int | None:
    """Return how much memory this process may take now without a page of swap; None where the system does not say."""
    kernel = kernel or Kernel()
    limits = [*_of_groups(kernel, swaps=False), *_of_machine(kernel, swaps=False)]
    return max(0, min(limit.free_bytes for limit in limits)) if limits else None


def free_beside(storage: Storage, folder: str) -> int | None:
    """Return `free_memory_bytes`; None for a run root in memory, since what is free there is for the checkpoint."""
    return None if room_of(storage, folder).tightest() is not None else free_memory_bytes()


def is_in_memory(folder: Path) -> bool:
    """Return whether a folder that exists lies on tmpfs or ramfs."""
    if sys.platform != "linux":
        return False
    answer = ctypes.create_string_buffer(256)  # struct statfs, larger than on any platform
    if ctypes.CDLL(None).statfs(os.fsencode(folder), answer) != 0:
        return False
    return ctypes.c_ulong.from_buffer(answer).value & 0xFFFFFFFF in _MAGIC


def in_pages(size_bytes: int) -> int:
    """Return what a file of ``size_bytes`` takes in memory."""
    return size_bytes + -size_bytes % PAGE_BYTES


def _of_mount(folder: Path) -> Iterator[Limit]:
    try:
        found = os.statvfs(folder)
    except OSError:
        return
    if not found.f_blocks:  # ramfs, and a tmpfs of size=0, have no limit of their own
        return
    yield Limit(
        found.f_bavail * found.f_frsize,
        found.f_blocks * found.f_frsize,
        f"the size of the file system (`df -h {folder}`)",
        "Mount it larger (`mount -o remount,size=...`, `docker run --shm-size=...`, an emptyDir's sizeLimit).",
        errno.ENOSPC,
    )


def _of_machine(kernel: Kernel, *, swaps: bool = True) -> Iterator[Limit]:
    table = _table(kernel.memory)
    free, total = table.get("MemAvailable:"), table.get("MemTotal:")
    if free is not None and total is not None:
        name = f"the memory of this machine (MemAvailable in {kernel.memory})"
        swap = table.get("SwapFree:", 0) if swaps else 0
        yield _of_memory(1024 * (free + swap), 1024 * total, name)


def _of_groups(kernel: Kernel, *, swaps: bool = True) -> Iterator[Limit]:
    swap_bytes = 1024 * _table(kernel.memory).get("SwapFree:", 0) if swaps else 0
    for folder, version in _folders(kernel):
        file = folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")
        total = _number(file)
        if total is None:
            continue
        free = _free_by_2(folder, total, swap_bytes) if version == 2 else _free_by_1(folder, total, swap_bytes)
        if free is not None:
            yield _of_memory(free, total, f"the memory limit of this container ({file})")


def _of_memory(free_bytes: int, total_bytes: int, name: str) -> Limit:
    reserve = min(RESERVE_BYTES, total_bytes // 16)
    fix = "Give the job more memory: beyond that, the kernel's OOM killer would end the training."
    return Limit(free_bytes - reserve, total_bytes, name, fix, errno.ENOMEM)


def _folders(kernel: Kernel) -> Iterator[tuple[Path, int]]:
    """Yield the folders of the groups of this process and of those above them, with the version.

    In a container, the path may be that of the host, which is not there: then only the last folder, the mount, exists.
    """
    try:
        lines = kernel.own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inner = PurePosixPath(path.lstrip("/"))
        mounts: list[Path] = []
        version = 2 if controllers == "" else 1
        if version == 2:
            mounts = [kernel.groups, kernel.groups / "unified"]
        elif "memory" in controllers.split(","):
            mounts = [kernel.groups / "memory"]
        for one in dict.fromkeys((inner, *inner.parents)):
            if ".." not in one.parts:  # a group outside of the part of the tree that is visible here
                yield from ((mount / one, version) for mount in mounts)


def _free_by_2(folder: Path, total: int, swap_bytes: int) -> int | None:
    used = _number(folder / "memory.current")
    if used is None:
        return None
    table = _table(folder / "memory.stat")
    reclaimable = sum(table.get(key, 0) for key in ("inactive_file", "active_file", "slab_reclaimable"))
    swap, swapped = _number(folder / "memory.swap.max"), _number(folder / "memory.swap.current")
    if swap is not None and swapped is not None:
        swap_bytes = min(swap_bytes, max(0, swap - swapped))
    return total - used + reclaimable + swap_bytes


def _free_by_1(folder: Path, total: int, swap_bytes: int) -> int | None:
    used = _number(folder / "memory.usage_in_bytes")
    if used is None:
        return None
    table = _table(folder / "memory.stat")
    reclaimable = sum(table.get(key, 0) for key in ("total_inactive_file", "total_active_file"))
    both, used_of_both = (_number(folder / f"memory.memsw.{key}_in_bytes") for key in ("limit", "usage"))
    free = total - used + swap_bytes
    if both is not None and used_of_both is not None:
        free = min(free, both - used_of_both)
    return free + reclaimable


def _number(file: Path) -> int | None:
    """Read a number; "max" and its equal in version 1 are none."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def _table(file: Path) -> Mapping[str, int]:
    """Read lines of a name and a number."""
    try:
        words = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {one[0]: int(one[1]) for one in words if len(one) > 1 and one[1].isdigit()}
