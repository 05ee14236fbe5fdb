"""The recorded disk: it sees what the kernel sees, and its model keeps to the rules."""

import errno
import os
from pathlib import Path
from random import Random

import pytest
from support.disk.cuts import cuts
from support.disk.recorder import Disk

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
