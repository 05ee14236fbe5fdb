"""What was reported is on the disk when the power goes: also after kills, and after errors that come only once."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from pathlib import Path
from random import Random

import pytest
from support.disk import CALLS, Disk, DiskTree, everything, lay_out, nothing, some

from ckptkit.errors import StorageError
from ckptkit.testing.faults import Fault, Killed

from .scenario import Life, batches_of, committed, digest_at, digest_of


def no_fsync() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def whole_run(left: DiskTree, folder: Path, root: str, batches: int) -> None:
    """What is ``left`` goes on from no earlier than ``batches``, bit for bit, and all that is committed is whole."""
    place = lay_out(left, folder) / root
    for name in committed(place):
        assert digest_of(place, name) == digest_at(batches_of(name))
    life = Life(place)
    life.restore()
    assert life.run.batches >= batches
    assert life.run.digest() == digest_at(life.run.batches)
    life.saved_at(life.run.batches + 1)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "disk").mkdir()
    return Disk(tmp_path / "disk")


def disks(tmp_path: Path):
    """A new disk each time, with the fault that happens at the ``nth`` call that counts, until it no longer does."""
    for nth in itertools.count(1):
        (tmp_path / f"{nth}").mkdir()
        yield nth, Disk(tmp_path / f"{nth}"), tmp_path / f"{nth}"


# Saves


def train(root: Path, batches: int) -> int:
    """Train, saving at every second micro-batch; returns the last one whose save was reported."""
    life, reported = Life(root), 0
    life.restore()
    for at in range(life.run.batches // 2 * 2 + 2, batches + 1, 2):
        if life.save_at(at).exception() is None:
            reported = at
    return reported


def test_reported_save_survives_any_cut(disk, tmp_path):
    root = tmp_path / "disk/new/deep/run"
    reported = {}
    with disk:
        life = Life(root)
        life.restore()
        for batches in (2, 4, 6):
            life.saved_at(batches)
            reported[len(disk.log)] = batches
    states = {}
    for cut in disk.cuts(nothing, everything, *(some(Random(seed)) for seed in range(3))):
        left = disk.after_cut(cut)
        least = max((batches for moment, batches in reported.items() if moment <= cut.moment), default=0)
        states[frozenset(left.items())] = left, least
    assert len(states) > 60
    for number, (left, least) in enumerate(states.values()):
        whole_run(left, tmp_path / f"left-{number}", "new/deep/run", least)


def test_failed_fsync_reports_nothing_that_is_lost(tmp_path):
    """Not even where the second fsync of a folder succeeds and the first one lost the name."""
    for nth, disk, folder in disks(tmp_path):
        fault = disk.inject(Fault(no_fsync, operations={"fsync"}, nth=nth))
        with disk:
            try:
                reported = train(folder / "new/deep/run", 6)
            except StorageError:
                reported = train(folder / "new/deep/run", 6)
        assert reported >= 4  # the fault may have struck the last save
        whole_run(disk.after_cut(), tmp_path / f"left-{nth}", "new/deep/run", reported)
        if not fault.fired:
            break
    assert nth > 40


# The way to the root


def test_start_killed_anywhere_leaves_durable_root(tmp_path):
    for nth, disk, folder in disks(tmp_path):
        fault = disk.inject(Fault("kill", operations=CALLS, nth=nth))
        with disk:
            with contextlib.suppress(Killed):
                Life(folder / "new/deep/run").restore()
            disk.restart()
            assert train(folder / "new/deep/run", 4) == 4
        whole_run(disk.after_cut(), tmp_path / f"left-{nth}", "new/deep/run", 4)
        if not fault.fired:
            break
    assert nth > 10


def test_root_made_by_hand_becomes_durable(disk, tmp_path):
    with disk:
        os.makedirs(tmp_path / "disk/new/deep/run")
        train(tmp_path / "disk/new/deep/run", 4)
    whole_run(disk.after_cut(), tmp_path / "left", "new/deep/run", 4)
