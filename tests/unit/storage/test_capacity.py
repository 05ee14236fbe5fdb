"""What fits into memory: from trees of control groups as kernels show them, and from this kernel itself."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.room import small_tmpfs

from ckptkit.errors import StorageError
from ckptkit.storage import LocalStorage, capacity
from ckptkit.storage.capacity import (
    Kernel,
    Limit,
    MemoryRoom,
    Room,
    free_beside,
    free_memory_bytes,
    in_pages,
    is_in_memory,
    room_of,
)
from ckptkit.testing.faults import FaultyStorage

GIB = 1 << 30
MIB = 1 << 20
RESERVE = capacity.RESERVE_BYTES
SHARED = Path("/dev/shm")  # noqa: S108 - in a private folder of it
MACHINE = "MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {free} kB\nSwapTotal: 9 kB\nSwapFree: {swap} kB\n"


@pytest.fixture
def in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHARED) as folder:
        yield Path(folder)


class FakeKernel:
    """A machine of 64 GiB, of which all is free; groups are added."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = Kernel(folder / "cgroup", folder / "own", folder / "meminfo")
        self.machine(64 * GIB, 64 * GIB)

    def machine(self, total: int, free: int, swap: int = 0) -> None:
        text = MACHINE.format(total=total // 1024, free=free // 1024, swap=swap // 1024)
        self.files.memory.write_text(text)

    def own(self, *lines: str) -> None:
        self.files.own.write_text("".join(f"{line}\n" for line in lines))

    def group(self, path: str, stat: str = "", **numbers: object) -> None:
        folder = self.files.groups / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.stat").write_text(stat)
        for name, value in numbers.items():
            (folder / ("memory." + name.replace("__", "."))).write_text(f"{value}\n")

    def tightest(self, folder: Path) -> Limit:
        limit = MemoryRoom(folder, self.files).tightest()
        assert limit is not None
        return limit


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    monkeypatch.setattr(capacity, "_of_mount", lambda folder: ())  # this machine's
    return FakeKernel(tmp_path)


def test_version_2_takes_reclaimable_cache_off(kernel: FakeKernel, in_memory: Path) -> None:
    kernel.own("0::/job")
    stat = f"anon 5\nfile 9\ninactive_file {MIB}\nactive_file {2 * MIB}\nslab_reclaimable {4 * MIB}\nshmem {GIB}\n"
    kernel.group("job", stat, max=4 * GIB, current=3 * GIB)
    limit = kernel.tightest(in_memory)
    assert limit.free_bytes == GIB + 7 * MIB - RESERVE
    assert limit.total_bytes == 4 * GIB
    assert str(kernel.files.groups / "job/memory.max") in limit.name
    assert limit.number == errno.ENOMEM


def test_version_1_takes_reclaimable_cache_off(kernel: FakeKernel, in_memory: Path) -> None:
    kernel.own("12:cpu,cpuacct:/elsewhere", "4:memory:/job", "0::/job")
    stat = f"inactive_file 1\ntotal_inactive_file {MIB}\ntotal_active_file {2 * MIB}\ntotal_shmem {GIB}\n"
    kernel.group("memory/job", stat, limit_in_bytes=4 * GIB, usage_in_bytes=3 * GIB)
    limit = kernel.tightest(in_memory)
    assert limit.free_bytes == GIB + 3 * MIB - RESERVE
    assert str(kernel.files.groups / "memory/job/memory.limit_in_bytes") in limit.name


@pytest.mark.parametrize("tight", ["pods", "pods/one", "pods/one/job", "."])
@pytest.mark.parametrize("version", [1, 2])
def test_any_group_above_may_be_tightest(kernel: FakeKernel, in_memory: Path, tight: str, version: int) -> None:
    kernel.own("4:memory:/pods/one/job" if version == 1 else "0::/pods/one/job")
    for path in (".", "pods", "pods/one", "pods/one/job"):
        total = 2 * GIB if path == tight else 8 * GIB
        if version == 1:
            kernel.group(f"memory/{path}", limit_in_bytes=total, usage_in_bytes=GIB)
        else:
            kernel.group(path, max=total, current=GIB)
    limit = kernel.tightest(in_memory)
    assert limit.free_bytes == GIB - RESERVE
    assert limit.total_bytes == 2 * GIB


def test_group_of_host_is_looked_for_at_the_mount(kernel: FakeKernel, in_memory: Path) -> None:
    """A container of version 1 sees the path of the host, and its own group at the mount."""
    kernel.own("4:memory:/docker/0123/inner")
    kernel.group("memory", limit_in_bytes=2 * GIB, usage_in_bytes=GIB)
    assert kernel.tightest(in_memory).free_bytes == GIB - RESERVE


def test_group_outside_of_visible_tree_leaves_the_mount(kernel: FakeKernel, in_memory: Path) -> None:
    kernel.own("0::/../../job")
    kernel.group(".", max=2 * GIB, current=GIB)
    kernel.group("job", max=3, current=2)
    assert kernel.tightest(in_memory).free_bytes == GIB - RESERVE


@pytest.mark.parametrize("text", ["max", "", "9223372036854771712", "text"])
def test_what_is_no_limit_limits_nothing(kernel: FakeKernel, in_memory: Path, text: str) -> None:
    kernel.own("4:memory:/job", "0::/job")
    kernel.group("job", max=text, current=GIB)
    kernel.group("memory/job", limit_in_bytes=text, usage_in_bytes=GIB)
    assert "this machine" in kernel.tightest(in_memory).name


def test_unreadable_files_limit_nothing(tmp_path: Path, in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_of_mount", lambda folder: ())
    missing = Kernel(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert MemoryRoom(in_memory, missing).tightest() is None
    assert MemoryRoom(in_memory, missing).lacking_bytes(1 << 60) == 0


def test_memory_of_machine_limits_too(kernel: FakeKernel, in_memory: Path) -> None:
    kernel.own("0::/job")
    kernel.group("job", max=8 * GIB, current=GIB)
    kernel.machine(16 * GIB, GIB)
    limit = kernel.tightest(in_memory)
    assert "this machine" in limit.name
    assert limit.free_bytes == GIB - RESERVE


@pytest.mark.parametrize(
    ("swap", "counts"),
    [
        ({"swap__max": "max", "swap__current": 0}, 2 * GIB),
        ({"swap__max": GIB, "swap__current": GIB // 2}, GIB // 2),
        ({"swap__max": 0, "swap__current": 0}, 0),
        ({}, 2 * GIB),
    ],
)
def test_swap_counts_as_far_as_a_group_may_use_it(
    kernel: FakeKernel, in_memory: Path, swap: dict[str, object], counts: int
) -> None:
    kernel.own("0::/job")
    kernel.machine(64 * GIB, 60 * GIB, swap=2 * GIB)
    kernel.group("job", max=2 * GIB, current=GIB, **swap)
    assert kernel.tightest(in_memory).free_bytes == GIB + counts - RESERVE


def test_swap_of_version_1_ends_at_limit_of_both(kernel: FakeKernel, in_memory: Path) -> None:
    kernel.own("4:memory:/job")
    kernel.machine(64 * GIB, 60 * GIB, swap=8 * GIB)
    both = {"memsw__limit_in_bytes": 3 * GIB, "memsw__usage_in_bytes": GIB}
    kernel.group("memory/job", limit_in_bytes=2 * GIB, usage_in_bytes=GIB, **both)
    assert kernel.tightest(in_memory).free_bytes == 2 * GIB - RESERVE


def test_used_up_group_has_less_than_nothing_free(kernel: FakeKernel, in_memory: Path) -> None:
    kernel.own("0::/job")
    kernel.group("job", max=GIB, current=GIB + MIB)
    assert kernel.tightest(in_memory).free_bytes == -MIB - RESERVE
    kernel.group("job", max=160 * MIB, current=0)
    assert kernel.tightest(in_memory).free_bytes == 150 * MIB  # of a small one, a sixteenth stays free


class Small(Room):
    def __init__(self, free_bytes: int) -> None:
        self.limit = Limit(free_bytes, 4 * GIB, "the limit of a test (file)", "Raise it.", errno.ENOSPC)

    def tightest(self) -> Limit:
        return self.limit


def test_refusal_has_the_numbers_and_the_ways_out() -> None:
    room = Small(GIB)
    assert room.lacking_bytes(GIB) == 0
    assert room.lacking_bytes(GIB + 5) == 5
    room.expect(GIB, "it")
    with pytest.raises(StorageError) as refused:
        room.expect(2 * GIB, "a000001-c0000000001-m0000")
    text = str(refused.value)
    for part in ("a000001-c0000000001-m0000", "needs 2 GiB", "1 GiB of 4 GiB are free", "the limit of a test", "Raise"):
        assert part in text
    assert len(text.splitlines()) == 3
    assert max(map(len, text.splitlines())) < 200
    assert isinstance(refused.value.__cause__, OSError)
    assert refused.value.__cause__.errno == errno.ENOSPC  # `ckptkit run` tells a full disk by it


def test_only_memory_has_a_limit(in_memory: Path) -> None:
    assert is_in_memory(in_memory)
    for place in ("/proc", "/sys/kernel", "/nowhere"):
        assert not is_in_memory(Path(place))
    assert MemoryRoom(Path("/proc/nothing")).tightest() is None
    assert MemoryRoom(in_memory / "yet/to/be/made").tightest() is not None


def test_room_follows_a_link_out_of_memory(in_memory: Path) -> None:
    """Checkpoints may be linked to a larger disk."""
    (in_memory / "checkpoints").symlink_to("/proc")
    assert room_of(LocalStorage(in_memory), "checkpoints").tightest() is None
    assert room_of(LocalStorage(in_memory), "frozen").tightest() is not None


def test_storages_that_are_not_local_have_room(in_memory: Path) -> None:
    assert room_of(FaultyStorage(LocalStorage(in_memory)), "checkpoints").tightest() is None


def test_this_kernel_sees_bytes_come_and_go(tmp_path: Path, in_memory: Path) -> None:
    """On a file system of its own where this user may mount one; elsewhere others write, too."""
    with small_tmpfs(tmp_path / "small", "8m") as mounted:
        file = (tmp_path / "small" if mounted else in_memory) / "file"
        (before,) = capacity._of_mount(file.parent)
        file.write_bytes(bytes(3 * MIB + 1))
        (during,) = capacity._of_mount(file.parent)
        assert os.stat(file).st_blocks * 512 == in_pages(3 * MIB + 1) == 3 * MIB + capacity.PAGE_BYTES
        file.unlink()
        (after,) = capacity._of_mount(file.parent)
    assert not mounted or before.total_bytes == 8 * MIB
    assert not mounted or before.free_bytes - during.free_bytes == 3 * MIB + capacity.PAGE_BYTES
    assert not mounted or before == after


def test_size_of_mount_is_what_statvfs_says(in_memory: Path) -> None:
    (limit,) = capacity._of_mount(in_memory)
    said = os.statvfs(in_memory)
    assert limit.total_bytes == said.f_blocks * said.f_frsize
    assert limit.number == errno.ENOSPC
    assert re.search(r"df -h /dev/shm/\w+", limit.name)


def test_mount_without_a_size_has_no_limit(monkeypatch: pytest.MonkeyPatch, in_memory: Path) -> None:
    """Ramfs, and a tmpfs of ``size=0``, tell of no blocks."""
    real = os.statvfs(in_memory)
    monkeypatch.setattr(os, "statvfs", lambda folder: os.statvfs_result((*real[:2], 0, 0, 0, *real[5:])))
    assert list(capacity._of_mount(in_memory)) == []


def test_free_memory_is_the_tightest_limit(kernel: FakeKernel) -> None:
    assert free_memory_bytes(kernel.files) == 64 * GIB - RESERVE
    kernel.own("0::/job")
    kernel.group("job", "inactive_file 0\n", max=4 * GIB, current=3 * GIB)
    assert free_memory_bytes(kernel.files) == GIB - RESERVE
    kernel.group("job", "inactive_file 0\n", max=4 * GIB, current=4 * GIB)
    assert free_memory_bytes(kernel.files) == 0


def test_free_memory_is_unknown_where_the_system_does_not_say(tmp_path: Path) -> None:
    assert free_memory_bytes(Kernel(tmp_path / "cgroup", tmp_path / "own", tmp_path / "meminfo")) is None


def test_free_memory_is_not_swap(kernel: FakeKernel) -> None:
    """What is copied early to save milliseconds must not push the training to a disk."""
    kernel.machine(64 * GIB, 8 * GIB, 64 * GIB)
    assert free_memory_bytes(kernel.files) == 8 * GIB - RESERVE
    kernel.own("0::/job")
    kernel.group("job", "inactive_file 0\n", max=4 * GIB, current=3 * GIB)
    assert free_memory_bytes(kernel.files) == GIB - RESERVE


def test_memory_for_a_run_root_in_memory_is_not_free_for_copies(in_memory: Path, tmp_path: Path) -> None:
    assert free_beside(LocalStorage(in_memory), "checkpoints") is None
    (in_memory / "checkpoints").symlink_to("/proc")
    assert free_beside(LocalStorage(in_memory), "checkpoints") is not None
