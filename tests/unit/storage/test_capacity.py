"""What fits into memory: from trees of control groups as kernels show them, and from this kernel itself."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptkit.errors import StorageError
from ckptkit.storage import LocalStorage, capacity
from ckptkit.storage.capacity import Limit, Room, free_beside, is_in_memory, room_of
from ckptkit.testing.faults import FaultyStorage

GIB = 1 << 30
MIB = 1 << 20
RESERVE = capacity.RESERVE_BYTES
SHARED = Path("/dev/shm")  # noqa: S108 - in a private folder of it
V1, V2 = "4:memory:/pods/job", "0::/pods/job"


@pytest.fixture
def in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHARED) as folder:
        yield Path(folder)


class FakeKernel:
    """A machine of 64 GiB, of which all is free; groups are added."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.groups = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.machine(64 * GIB, 64 * GIB)

    def machine(self, total: int, free: int) -> None:
        text = f"MemTotal: {total // 1024} kB\nMemAvailable: {free // 1024} kB\nSwapFree: {total} kB\n"
        (self.proc / "meminfo").write_text(text)

    def own(self, *lines: str) -> None:
        (self.proc / "self/cgroup").write_text("".join(f"{line}\n" for line in lines))

    def group(self, version: int, path: str, total: object, used: int, stat: str = "") -> None:
        folder = self.groups / ("memory" if version == 1 else ".") / path
        folder.mkdir(parents=True, exist_ok=True)
        names = ("limit_in_bytes", "usage_in_bytes") if version == 1 else ("max", "current")
        for name, text in zip((*names, "stat"), (total, used, stat), strict=True):
            (folder / f"memory.{name}").write_text(f"{text}\n")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    made = FakeKernel(tmp_path)
    monkeypatch.setattr(capacity, "_PROC", made.proc)
    monkeypatch.setattr(capacity, "_GROUPS", made.groups)
    real = os.statvfs(SHARED)
    no_size = os.statvfs_result((*real[:2], 0, 0, 0, *real[5:]))  # as of ramfs, and of a tmpfs of ``size=0``
    monkeypatch.setattr(os, "statvfs", lambda folder: no_size)
    return made


def tightest(folder: Path) -> Limit:
    limit = Room(folder).tightest()
    assert limit is not None
    return limit


def test_group_limits_without_reclaimable_cache(kernel: FakeKernel, in_memory: Path) -> None:
    for version, own, stat, cache, file in [
        (1, V1, "inactive_file 1\ntotal_inactive_file 3\ntotal_active_file 5\ntotal_shmem 9\n", 8, "limit_in_bytes"),
        (2, V2, "file 9\ninactive_file 3\nactive_file 5\nslab_reclaimable 7\nshmem 9\n", 15, "max"),
    ]:
        kernel.own("12:cpu,cpuacct:/elsewhere", "1:name=systemd:/pods/job", own)
        kernel.group(version, "pods/job", 4 * GIB, 3 * GIB, stat)
        limit = tightest(in_memory)
        assert limit[:2] == (GIB + cache - RESERVE, 4 * GIB)
        assert f"pods/job/memory.{file}" in limit.name
        assert limit.number == errno.ENOMEM


@pytest.mark.parametrize(("version", "own"), [(1, V1), (2, V2)])
def test_any_group_above_may_be_tightest(kernel: FakeKernel, in_memory: Path, version: int, own: str) -> None:
    """The process may see the path of the host, of which only the mount exists."""
    kernel.own(own)
    for tight in (".", "pods", "pods/job"):
        for path in [tight] if tight == "." else (".", "pods", "pods/job"):
            kernel.group(version, path, (2 if path == tight else 8) * GIB, GIB)
        assert tightest(in_memory)[:2] == (GIB - RESERVE, 2 * GIB), tight


def test_what_is_no_limit_limits_nothing(kernel: FakeKernel, in_memory: Path) -> None:
    kernel.own(V1, V2)
    for text in ("max", "", "9223372036854771712", "text"):
        for version in (1, 2):
            kernel.group(version, "pods/job", text, GIB)
        assert "this machine" in tightest(in_memory).name, text


def test_unreadable_files_limit_nothing(kernel: FakeKernel, in_memory: Path) -> None:
    (kernel.proc / "meminfo").unlink()
    assert Room(in_memory).tightest() is None
    assert Room(in_memory).lacking_bytes(1 << 60) == 0
    assert free_beside(FaultyStorage(LocalStorage(in_memory)), "checkpoints") is None


def test_used_up_group_has_less_than_nothing_free(kernel: FakeKernel, in_memory: Path) -> None:
    kernel.own(V2)
    kernel.group(2, "pods/job", GIB, GIB + MIB)
    assert tightest(in_memory).free_bytes == -MIB - RESERVE
    kernel.group(2, "pods/job", 160 * MIB, 0)
    assert tightest(in_memory).free_bytes == 150 * MIB  # of a small one, a sixteenth stays free


class Small(Room):
    def tightest(self) -> Limit:
        return Limit(GIB, 4 * GIB, "the limit of a test (file)", errno.ENOSPC)


def test_refusal_has_the_numbers_and_the_ways_out() -> None:
    room = Small()
    assert room.lacking_bytes(GIB) == 0
    assert room.lacking_bytes(GIB + 5) == 5
    room.expect(GIB, "it")
    with pytest.raises(StorageError) as refused:
        room.expect(2 * GIB, "a000001-c0000000001-m0000")
    text = str(refused.value)
    for part in ("a000001-c0000000001-m0000", "needs 2 GiB", "1 GiB of 4 GiB are free", "the limit of a test", "Raise"):
        assert part in text
    assert len(text.splitlines()) == 2
    assert isinstance(refused.value.__cause__, OSError)
    assert refused.value.__cause__.errno == errno.ENOSPC  # `ckptkit run` tells a full disk by it


def test_only_memory_has_a_limit(in_memory: Path) -> None:
    assert is_in_memory(in_memory)
    for place in ("/proc", "/sys/kernel", "/nowhere"):
        assert not is_in_memory(Path(place))
    assert Room(Path("/proc/nothing")).tightest() is None
    assert Room(in_memory / "yet/to/be/made").tightest() is not None


def test_room_follows_a_link_out_of_memory(in_memory: Path) -> None:
    """Checkpoints may be linked to a larger disk. Only then is free memory for copies."""
    storage = LocalStorage(in_memory)
    assert free_beside(storage, "checkpoints") is None
    (in_memory / "checkpoints").symlink_to("/proc")
    assert room_of(storage, "checkpoints").tightest() is None
    assert room_of(storage, "frozen").tightest() is not None
    assert free_beside(storage, "checkpoints") is not None
    assert room_of(FaultyStorage(storage), "frozen").tightest() is None  # a storage that is not local has room


def test_free_memory_is_the_tightest_limit(kernel: FakeKernel) -> None:
    storage = FaultyStorage(LocalStorage(kernel.proc))
    assert free_beside(storage, "checkpoints") == 64 * GIB - RESERVE
    kernel.own(V2)
    kernel.group(2, "pods/job", 4 * GIB, 3 * GIB)
    assert free_beside(storage, "checkpoints") == GIB - RESERVE
    kernel.group(2, "pods/job", 4 * GIB, 4 * GIB)
    assert free_beside(storage, "checkpoints") == 0
