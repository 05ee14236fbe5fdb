"""What fits into memory: from trees of control groups as kernels show them, and from this kernel itself."""

import errno
import os
import tempfile
from pathlib import Path

import pytest

from ckptkit.errors import StorageError
from ckptkit.storage import LocalStorage, capacity
from ckptkit.storage.capacity import NO_LIMIT, Limit, free_beside, is_in_memory, limit_at
from ckptkit.testing.faults import FaultyStorage

GIB, MIB = 1 << 30, 1 << 20
RESERVE = capacity.RESERVE_BYTES
SHARED = Path("/dev/shm")  # noqa: S108 - in a private folder of it
MEMINFO = f"MemTotal: {64 << 20} kB\nMemAvailable: {64 << 20} kB\nSwapFree: 9 kB\n"
V1, V2 = "4:memory:/pods/job", "0::/pods/job"


@pytest.fixture
def in_memory():
    with tempfile.TemporaryDirectory(dir=SHARED) as folder:
        yield Path(folder)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Shows a machine of 64 GiB, of which all is free, and control groups: the process's own, and their files."""

    def show(own, groups=(), meminfo=MEMINFO):
        (tmp_path / "self").mkdir(exist_ok=True)
        (tmp_path / "self/cgroup").write_text(own)
        (tmp_path / "meminfo").write_text(meminfo)
        for version, path, total, used, stat in groups:
            folder = tmp_path / ("memory" if version == 1 else ".") / path
            folder.mkdir(parents=True, exist_ok=True)
            names = ("limit_in_bytes", "usage_in_bytes") if version == 1 else ("max", "current")
            for name, text in zip((*names, "stat"), (total, used, stat), strict=True):
                (folder / f"memory.{name}").write_text(f"{text}\n")

    monkeypatch.setattr(capacity, "_PROC", tmp_path)
    monkeypatch.setattr(capacity, "_GROUPS", tmp_path)
    real = os.statvfs(SHARED)
    no_size = os.statvfs_result((*real[:2], 0, 0, 0, *real[5:]))  # as of ramfs, and of a tmpfs of ``size=0``
    monkeypatch.setattr(os, "statvfs", lambda folder: no_size)
    return show


STAT_1 = "inactive_file 1\ntotal_inactive_file 3\ntotal_active_file 5\ntotal_shmem 9\n"
STAT_2 = "file 9\ninactive_file 3\nactive_file 5\nslab_reclaimable 7\nshmem 9\n"
ELSEWHERE = "12:cpu,cpuacct:/elsewhere\n1:name=systemd:/pods/job\n"
OTHER = (2, "elsewhere", GIB, GIB, "")  # of another controller
WIDE = dict.fromkeys((".", "pods", "pods/job"), (8 * GIB, GIB))
NO_LIMITS = [(version, "pods/job", text, GIB, "") for text in ("max", "", "9" * 19, "text") for version in (1, 2)]


@pytest.mark.parametrize(
    ("own", "groups", "free", "total", "name"),
    [
        (
            ELSEWHERE + V1,
            [(1, "pods/job", 4 * GIB, 3 * GIB, STAT_1), OTHER],
            GIB + 8,
            4 * GIB,
            "job/memory.limit_in_bytes",
        ),
        (ELSEWHERE + V2, [(2, "pods/job", 4 * GIB, 3 * GIB, STAT_2)], GIB + 15, 4 * GIB, "job/memory.max"),
        *(  # the process may see the path of the host, of which only the mount exists
            (own, [(version, path, *both, "") for path, both in groups.items()], GIB, 2 * GIB, "container")
            for version, own in ((1, V1), (2, V2))
            for groups in ({".": (2 * GIB, GIB)}, *(WIDE | {path: (2 * GIB, GIB)} for path in WIDE))
        ),
        *((f"{V1}\n{V2}", [group], 64 * GIB, 64 * GIB, "this machine") for group in NO_LIMITS),
        (V2, [(2, "pods/job", GIB, GIB + MIB, "")], -MIB, GIB, "container"),  # more than all is used
        (
            V2,
            [(2, "pods/job", 160 * MIB, 0, "")],
            150 * MIB + RESERVE,
            160 * MIB,
            "container",
        ),  # a sixteenth stays free
    ],
)
def test_tightest_limit_decides(kernel, in_memory, own, groups, free, total, name):  # noqa: PLR0917
    kernel(own, groups)
    limit = limit_at(LocalStorage(in_memory), "checkpoints")
    assert (limit.free_bytes, limit.total_bytes, limit.number) == (free - RESERVE, total, errno.ENOMEM)
    assert name in limit.name
    assert free_beside(FaultyStorage(LocalStorage(in_memory)), "checkpoints") == max(0, free - RESERVE)


def test_what_cannot_be_read_limits_nothing(kernel, in_memory):
    kernel("", meminfo="")
    assert limit_at(LocalStorage(in_memory), "checkpoints") == NO_LIMIT
    assert free_beside(FaultyStorage(LocalStorage(in_memory)), "checkpoints") == 0


def test_refusal_has_the_numbers_and_the_ways_out():
    limit = Limit(GIB, 4 * GIB, "the limit of a test (file)", errno.ENOSPC)
    limit.expect(GIB, "it")
    message = r"^a1 .*needs 2 GiB, and 1 GiB of 4 GiB are free by the limit of a test.*\n  Raise"
    with pytest.raises(StorageError, match=message) as refused:
        limit.expect(2 * GIB, "a1")
    assert refused.value.__cause__.errno == errno.ENOSPC  # `ckptkit run` tells a full disk by it


def test_only_memory_has_a_limit(in_memory):
    """Checkpoints may be linked to a larger disk. Only then is free memory for copies."""
    assert [is_in_memory(Path(place)) for place in (in_memory, "/proc", "/nowhere")] == [True, False, False]
    storage = LocalStorage(in_memory)
    assert limit_at(LocalStorage("/proc/nothing"), "checkpoints") == NO_LIMIT
    assert limit_at(LocalStorage(in_memory / "yet"), "to/be/made") != NO_LIMIT
    assert free_beside(storage, "checkpoints") == 0
    (in_memory / "checkpoints").symlink_to("/proc")
    assert limit_at(storage, "checkpoints") == NO_LIMIT
    assert limit_at(storage, "frozen") != NO_LIMIT
    assert free_beside(storage, "checkpoints") > 0
    assert limit_at(FaultyStorage(storage), "frozen") == NO_LIMIT  # a storage that is not local has room
