"""The recorded disk: it sees what the kernel sees, and its model keeps to the rules."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest
from support.disk import Disk, cuts

from ckptkit.storage.system_calls import SYSTEM
from ckptkit.testing.faults import Fault


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def new_file(path: Path, data: bytes, *, synced: bool) -> None:
    descriptor = SYSTEM.open_new(path)
    SYSTEM.write_all(descriptor, memoryview(data))
    if synced:
        SYSTEM.fsync(descriptor)
    os.close(descriptor)


def test_bytes_need_their_fsync_and_names_theirs(tmp_path):
    for file, above, left in (0, 0, {}), (1, 0, {}), (0, 1, {"a": b""}), (1, 1, {"a": b"1234"}):
        folder = tmp_path / f"{file}{above}"
        folder.mkdir()
        with Disk(folder) as disk:
            new_file(folder / "a", b"1234", synced=bool(file))
            if above:
                SYSTEM.fsync_folder(folder)
        assert disk.after_cut() == left


def test_fsync_covers_nothing_that_comes_later(folder):
    with Disk(folder) as disk:
        SYSTEM.fsync_folder(folder)
        SYSTEM.mkdir(folder / "a")
    assert disk.after_cut() == {}
    assert disk.log.after(next(iter(cuts(disk.log, Random(0), since=2)))) == {}


def test_what_a_failed_fsync_should_cover_is_lost(folder):
    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Disk(folder, [Fault(fail, operations={"fsync"})]) as disk:
        SYSTEM.mkdir(folder / "a")
        with pytest.raises(OSError, match="Input/output"):
            SYSTEM.fsync_folder(folder)
        SYSTEM.mkdir(folder / "b")
        SYSTEM.fsync_folder(folder)
    assert disk.after_cut() == {"b": None}


def test_names_that_went_or_changed_may_be_back(folder):
    (folder / "a").write_bytes(b"old")
    with Disk(folder) as disk:
        new_file(folder / "b", b"new", synced=True)
        SYSTEM.replace(folder / "b", folder / "a")
        SYSTEM.unlink(folder / "a")
    states = [disk.log.after(cut) for cut in cuts(disk.log, Random(0), since=len(disk.log))]
    for state in ({"a": b"old"}, {"a": b"old", "b": b"new"}, {"a": b"new"}, {"b": b"new"}, {}):
        assert state in states, state
    assert disk.after_cut() == {"a": b"old"}


def test_torn_write_may_lose_any_part(folder):
    with Disk(folder) as disk:
        new_file(folder / "a", b"1" * 9, synced=False)
        SYSTEM.fsync_folder(folder)
    left = {disk.log.after(cut)["a"] for cut in cuts(disk.log, Random(0), since=len(disk.log))}
    assert left >= {b"", bytes(9), b"1" * 9}
    assert any(0 < len(one) < 9 for one in left), "its end"
    assert any(one[:1] == one[-1:] == b"1" and 0 in one for one in left), "its middle"
