"""What was reported is on the disk when the power goes: also after kills, and after errors that come only once."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from datetime import datetime, timezone
from pathlib import Path
from random import Random

import pytest
from support.disk import CALLS, Disk, DiskTree, everything, lay_out, nothing, some, zeros

from ckptkit.errors import CkptKitError, ResumeError, StorageError
from ckptkit.interchange.new_file import NewFile
from ckptkit.manager import CheckpointManager
from ckptkit.run.cargo import Copied
from ckptkit.run.copy import CopyRequest, copy_run
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, Killed

from .scenario import Life, batches_of, committed, digest_at, digest_of, history, new_run, tree


def no_fsync() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


class Unwatched:
    def plan(self, checkpoints: int, size_bytes: int) -> None: ...

    def advance(self, size_bytes: int) -> None: ...

    def end(self, name: str, outcome: str) -> None: ...


def copy(source: Path, target: Path) -> Copied:
    tokens = (f"{number:032x}" for number in itertools.count(1))
    request = CopyRequest(None, lambda: datetime(2026, 1, 2, tzinfo=timezone.utc), lambda: next(tokens))
    return copy_run(LocalStorage(source), LocalStorage(target), request, Unwatched())


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


@pytest.fixture
def source(tmp_path: Path) -> Path:
    history(tmp_path / "source")
    return tmp_path / "source"


def disks(tmp_path: Path):
    """A new disk each time, with the fault that happens at the ``nth`` call that counts, until it no longer does."""
    for nth in itertools.count(1):
        (tmp_path / f"{nth}").mkdir()
        yield nth, Disk(tmp_path / f"{nth}"), tmp_path / f"{nth}"


# Copies


def test_copy_after_failed_fsync_trusts_nothing_found(source, tmp_path):
    for nth, disk, folder in disks(tmp_path):
        fault = disk.inject(Fault(no_fsync, operations={"fsync"}, nth=nth))
        with disk:
            with contextlib.suppress(StorageError):
                copy(source, folder / "run")
            copy(source, folder / "run")
        whole_run(disk.after_cut(), tmp_path / f"left-{nth}", "run", 6)
        if not fault.fired:
            break
    assert nth > 40


def test_copy_killed_anywhere_is_completed_durably(source, tmp_path):
    for nth, disk, folder in disks(tmp_path):
        fault = disk.inject(Fault("kill", operations=CALLS, nth=nth))
        with disk:
            try:
                copy(source, folder / "run")
            except Killed:
                disk.restart()
                copy(source, folder / "run")
        whole_run(disk.after_cut(), tmp_path / f"left-{nth}", "run", 6)
        if not fault.fired:
            break
    assert nth > 80


def test_copy_torn_by_power_cut_is_resumed(disk, source, tmp_path):
    """By the same command; and no start takes the part for a run."""
    with disk:
        copy(source, tmp_path / "disk/run")
    expected = tree(tmp_path / "disk/run")
    torn = 0
    for number, cut in enumerate(disk.cuts(nothing, everything, zeros)):
        root = lay_out(disk.after_cut(cut), tmp_path / f"left-{number}") / "run"
        left = tree(root)
        if "run.json" in left and "attempts/000001.json" not in left:
            with pytest.raises(ResumeError, match="has not ended"):
                Life(root).restore()
        torn += any(b"\0" * 8 in data for key, data in left.items() if key.endswith(".json"))
        copy(source, root)
        assert tree(root) == expected, cut
    assert torn


def test_second_copy_changes_nothing_and_makes_documents_durable(disk, source, tmp_path):
    """Nothing that the first copy did is taken for durable, and nothing is written again."""
    root = tmp_path / "disk/run"
    with disk:
        copy(source, root)
        made = len(disk.calls)
        copy(source, root)
    again = disk.calls[made:]
    assert {call.operation for call in again} == {"fsync"}
    synced = {tmp_path / "disk" / key for call in again for key in call.keys}
    created = [root / "run.json", *root.rglob("attempts/*"), *root.rglob("events/*"), *root.rglob("COMMIT")]
    assert len(created) > 4
    assert {path.parent for path in created} <= synced


# Mirrors


def mirrored(folder: Path) -> CheckpointManager:
    return CheckpointManager(folder / "local", mirror=folder / "mirror", when_busy="wait", on_preempt="off")


def train_mirrored(folder: Path, batches: int) -> CheckpointManager:
    run = new_run()
    manager = mirrored(folder)
    manager.restore(run)
    for at in run.train_until(batches):
        if at % 2 == 0:
            manager.save(run).result()
            manager.wait()
    manager.close()
    return manager


def mirror_alone(left: DiskTree) -> DiskTree:
    return {key: data for key, data in left.items() if key.split("/")[0] == "mirror"}


def test_mirror_without_lag_survives_failed_fsyncs(tmp_path):
    for nth, disk, folder in disks(tmp_path):
        fault = disk.inject(Fault(no_fsync, operations={"fsync"}, key="mirror*", nth=nth))
        with disk:
            try:
                manager = train_mirrored(folder, 4)
            except StorageError:
                disk.restart()
                manager = train_mirrored(folder, 4)
        assert manager.mirror_lag == 0
        whole_run(mirror_alone(disk.after_cut()), tmp_path / f"left-{nth}", "mirror", 4)
        if not fault.fired:
            break
    assert nth > 30


def test_upload_killed_anywhere_is_completed_durably(tmp_path):
    """By the next start, before it has anything of its own to upload."""
    for nth, disk, folder in disks(tmp_path):
        fault = disk.inject(Fault("kill", operations=CALLS, key="mirror*", nth=nth))
        with disk:
            with contextlib.suppress(Killed, CkptKitError):
                train_mirrored(folder, 4)
            disk.restart()
            run, manager = new_run(), mirrored(folder)
            manager.restore(run)
            manager.wait()
            lag, left = manager.mirror_lag, disk.after_cut()
            manager.close()
        assert lag == 0
        whole_run(mirror_alone(left), tmp_path / f"left-{nth}", "mirror", run.batches)
        if not fault.fired:
            break
    assert nth > 80


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


# Weights in a file


@pytest.mark.parametrize("overwrite", [True, False])
def test_new_file_never_denies_what_it_left(disk, tmp_path, overwrite):
    path = tmp_path / "disk/weights.safetensors"
    if overwrite:
        path.write_bytes(b"old")
    failing = disk.inject(Fault(no_fsync, operations={"fsync"}, key=""))
    with disk:
        with pytest.raises(StorageError, match="a power loss may undo"):
            write(path, overwrite)
        assert failing.fired == 1
        assert path.read_bytes() == b"new"
        assert list(path.parent.iterdir()) == [path]
        write(path, True)
    assert disk.after_cut() == {"weights.safetensors": b"new"}


def write(path: Path, overwrite: bool) -> None:
    with NewFile(path, 3, overwrite=overwrite) as new:
        new.put(memoryview(b"new"), 0)
        new.publish()
