"""A disk that cannot give a file: passed over where that is proven of this file alone, else an error with a way on."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from datetime import datetime, timezone

import pytest
from support.bad_disk import BadDisk
from support.runs.grown import WatchedRun, grow, run_at
from unit.tools.test_copy import Told

from ckptkit.errors import CorruptCheckpointError, StorageError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Preemption
from ckptkit.storage import LocalStorage
from ckptkit.tools.copy.copy import CopyRequest, copy_run

# Saves at 3 and 6 by attempt 1, at 9 and 14 by attempt 2.
FILES = {
    "weights": "checkpoints/{}/rank-00000/weights-000.safetensors",
    "optimizer": "checkpoints/{}/rank-00000/optimizer-000.safetensors",
    "rank": "checkpoints/{}/rank-00000.json",
    "manifest": "checkpoints/{}/manifest.json",
    "commit": "checkpoints/{}/COMMIT",
}
OF_A_DISK = [errno.EIO, errno.ENODATA, errno.EBADMSG, errno.EUCLEAN]


@pytest.fixture
def names(root):
    return (*grow(root, 3, 6), *grow(root, 9, 14))


def restored(root, **options):
    run = WatchedRun()
    point = CheckpointManager(root, preemption=Preemption(then="off")).restore(run, **options)
    return run, point.checkpoint


def attempts(root):
    return sorted(os.listdir(root / "attempts"))


@pytest.mark.covering(1)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("number", OF_A_DISK)
def test_an_unreadable_file_is_named_and_passed_over(root, names, monkeypatch, caplog, file, number):  # noqa: PLR0917
    newest, previous = names[-1], names[-2]
    key = FILES[file].format(newest)
    disk = BadDisk(key, number=number).install(monkeypatch)
    run, taken = restored(root)
    assert disk.fired >= 2
    assert run.applied == [taken] == [previous]
    assert run.digest() == run_at(9).digest()
    assert "CORRUPT CHECKPOINT" in caplog.text
    assert f"{key} cannot be read ({os.strerror(number)}, twice)" in caplog.text
    document = json.loads((root / "attempts/000003.json").read_bytes())
    assert [passed["checkpoint"] for passed in document["passed_over"]] == [newest]
    assert document["parent"] == previous


def test_unreadable_documents_of_the_run_stop_nobody(root, names, monkeypatch, caplog):
    before = (root / "run.json").read_bytes()
    BadDisk("attempts/000002.json", "run.json").install(monkeypatch)
    assert restored(root)[1] == names[1]
    assert "attempts/000002.json cannot be read" in caplog.text
    assert "run.json cannot be read" in caplog.text
    assert (root / "run.json").read_bytes() == before


@pytest.mark.parametrize("part", ["weights-000", "attempts/"])
def test_unreadable_files_never_give_fresh_start(root, names, monkeypatch, part):
    monkeypatch.setenv("CKPTKIT_DEBUG", "1")  # the message lists all of them
    BadDisk(part).install(monkeypatch)
    with pytest.raises(CorruptCheckpointError) as caught:
        restored(root)
    assert all(name in str(caught.value) for name in names[-3:])
    assert attempts(root) == ["000001.json", "000002.json"]


def test_a_read_that_works_again_passes_nothing_over(root, names, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "ckptkit")
    for number in (*OF_A_DISK, errno.ESTALE):
        with monkeypatch.context() as patch:
            disk = BadDisk(FILES["weights"].format(names[-1]), number=number, times=1).install(patch)
            run, taken = restored(root)
        assert (disk.fired, taken, run.digest()) == (1, names[-1], run_at(14).digest()), number
    assert "passed over" not in caplog.text


@pytest.mark.parametrize("call", ["open", "scandir"])
def test_handle_that_went_stale_is_opened_once_more(root, names, monkeypatch, call):
    """A server of files has replaced what this machine had looked up."""
    real, failed = getattr(os, call), set()

    def stale(path, *args, **options):
        if str(path).startswith(str(root)) and "." not in os.path.basename(path)[:1] and path not in failed:
            failed.add(path)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return real(path, *args, **options)

    storage = LocalStorage(root)
    monkeypatch.setattr(os, call, stale)
    assert storage.list("attempts").files.keys() == {"000001.json", "000002.json"}
    assert storage.read("run.json", 1000).startswith(b"{")
    assert len(failed) == 1


def test_a_disk_that_reads_nothing_proves_nothing(root, names, monkeypatch):
    disk = BadDisk(str(root)).install(monkeypatch)
    with pytest.raises(StorageError, match="could not read"):
        restored(root)
    assert disk.fired > 2
    assert attempts(root) == ["000001.json", "000002.json"]


def test_a_file_proves_nothing_of_itself(root, monkeypatch):
    """A part of it that can be read says no more of the disk than the part that cannot, and an empty file nothing."""
    storage = LocalStorage(root)
    storage.create("a", b"bytes")
    storage.create("empty", b"")
    disk = BadDisk(str(root), times=2).install(monkeypatch)
    with pytest.raises(StorageError, match="could not read"):
        storage.read("a", 9)
    assert disk.fired == 2


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE])
def test_a_failure_without_proof_names_the_way_on(root, names, monkeypatch, number):
    """No conclusion is drawn; the user may draw it, and the named option does as the message says."""
    newest, previous = names[-1], names[-2]
    disk = BadDisk(FILES["weights"].format(newest), number=number).install(monkeypatch)
    way = f'checkpoint="{previous}" continues from the one before {newest}, which stays unchanged.'
    with pytest.raises(StorageError, match=way):
        restored(root)
    assert disk.fired == (2 if number == errno.ESTALE else 1)
    assert attempts(root) == ["000001.json", "000002.json"]
    assert restored(root, checkpoint=previous)[1] == previous
    assert (root / FILES["weights"].format(newest)).exists()


@pytest.mark.parametrize("chosen", [True, False])
def test_a_failure_without_way_around_names_none(root, names, monkeypatch, chosen):
    only, options = (names[-1], {"checkpoint": names[-1]}) if chosen else (names[0], {})
    for name in names[1:] if not chosen else ():
        shutil.rmtree(root / "checkpoints" / name)
    BadDisk(FILES["weights"].format(only), number=errno.EACCES).install(monkeypatch)
    with pytest.raises(StorageError, match="Permission denied") as caught:
        restored(root, **options)
    assert "continues from" not in str(caught.value)


@pytest.mark.parametrize("file", ["weights", "rank", "commit"])
def test_an_unreadable_checkpoint_comes_from_the_mirror(tmp_path, monkeypatch, file):
    here, there = tmp_path / "here", tmp_path / "there"
    run = run_at(6)
    with CheckpointManager(here, mirror=there, preemption=Preemption(then="off")) as manager:
        manager.restore(run)
        name = manager.save(run).result()
        manager.wait()
    disk = BadDisk(f"/here/{FILES[file].format(name)}").install(monkeypatch)
    restarted = WatchedRun()
    with CheckpointManager(here, mirror=there, preemption=Preemption(then="off")) as manager:
        assert manager.restore(restarted).checkpoint == name
    assert disk.fired
    assert restarted.digest() == run.digest()


def test_unreadable_target_is_not_taken_for_corrupt_source(root, names, tmp_path, monkeypatch):
    target = LocalStorage(tmp_path / "copy")
    request = CopyRequest(None, lambda: datetime(2026, 1, 1, tzinfo=timezone.utc), lambda: "0" * 32)
    copy_run(LocalStorage(root), target, request, Told())
    (tmp_path / "copy" / FILES["commit"].format(names[-1])).unlink()
    BadDisk(f"/copy/{FILES['weights'].format(names[-1])}").install(monkeypatch)
    with pytest.raises(StorageError, match="could not compare"):
        copy_run(LocalStorage(root), target, request, Told())
