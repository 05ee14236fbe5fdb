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
from unit.tools.test_verify import Watch

from ckptkit.errors import CorruptCheckpointError, StorageError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Preemption
from ckptkit.storage import LocalStorage
from ckptkit.tools.copy.copy import CopyRequest, copy_run
from ckptkit.tools.verify import audit

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
    assert [one["checkpoint"] for one in document["passed_over"]] == [newest]
    assert document["parent"] == previous


def test_unreadable_attempt_document_counts_as_corrupt(root, names, monkeypatch, caplog):
    BadDisk("attempts/000002.json").install(monkeypatch)
    _, taken = restored(root)
    assert taken == names[1]
    assert "attempts/000002.json cannot be read" in caplog.text


def test_unreadable_run_document_stops_nobody(root, names, monkeypatch, caplog):
    before = (root / "run.json").read_bytes()
    disk = BadDisk("run.json").install(monkeypatch)
    _, taken = restored(root)
    assert disk.fired
    assert taken == names[-1]
    assert "run.json cannot be read" in caplog.text
    assert (root / "run.json").read_bytes() == before


def test_unreadable_files_never_give_fresh_start(root, names, monkeypatch):
    monkeypatch.setenv("CKPTKIT_DEBUG", "1")  # the message lists all of them
    BadDisk("weights-000").install(monkeypatch)
    with pytest.raises(CorruptCheckpointError) as caught:
        restored(root)
    assert all(name in str(caught.value) for name in names)
    assert attempts(root) == ["000001.json", "000002.json"]


def test_unreadable_only_attempt_never_gives_fresh_start(root, monkeypatch):
    (name,) = grow(root, 3)
    BadDisk("attempts/").install(monkeypatch)
    with pytest.raises(CorruptCheckpointError, match=name):
        restored(root)
    assert attempts(root) == ["000001.json"]


@pytest.mark.parametrize("number", [*OF_A_DISK, errno.ESTALE])
def test_a_read_that_works_again_passes_nothing_over(root, names, monkeypatch, caplog, number):
    caplog.set_level(logging.WARNING, "ckptkit")
    disk = BadDisk(FILES["weights"].format(names[-1]), number=number, times=1).install(monkeypatch)
    run, taken = restored(root)
    assert disk.fired == 1
    assert taken == names[-1]
    assert run.digest() == run_at(14).digest()
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


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.ETIMEDOUT])
def test_a_failure_without_proof_names_the_way_on(root, names, monkeypatch, number):
    """No conclusion is drawn; the user may draw it, and the named option does as the message says."""
    newest, previous = names[-1], names[-2]
    disk = BadDisk(FILES["weights"].format(newest), number=number).install(monkeypatch)
    with pytest.raises(StorageError) as caught:
        restored(root)
    assert f'checkpoint="{previous}" continues from the one before {newest}, which stays unchanged.' in str(
        caught.value
    )
    assert disk.fired == (2 if number == errno.ESTALE else 1)
    assert attempts(root) == ["000001.json", "000002.json"]
    _, taken = restored(root, checkpoint=previous)
    assert taken == previous
    assert (root / FILES["weights"].format(newest)).exists()


@pytest.mark.parametrize("case", ["chosen", "the only one"])
def test_a_failure_without_way_around_names_none(root, names, monkeypatch, case):
    only, options = (names[-1], {"checkpoint": names[-1]}) if case == "chosen" else (names[0], {})
    for name in names if case != "chosen" else ():
        if name != only:
            shutil.rmtree(root / "checkpoints" / name)
    BadDisk(FILES["weights"].format(only), number=errno.EACCES).install(monkeypatch)
    with pytest.raises(StorageError, match="Permission denied") as caught:
        restored(root, **options)
    assert "continues from" not in str(caught.value)


def test_unreadable_checkpoint_is_kept_as_evidence(root, names, monkeypatch):
    disk = BadDisk(FILES["manifest"].format(names[-1])).install(monkeypatch)
    later = grow(root, 20, 24, 28)
    assert disk.fired
    listed = [one.name for one in CheckpointManager(root, preemption=Preemption(then="off")).checkpoints()]
    assert names[-1] in listed
    assert listed[-1] == later[-1]
    assert (root / FILES["weights"].format(names[-1])).exists()


@pytest.mark.parametrize("file", FILES)
def test_an_unreadable_checkpoint_comes_from_the_mirror(tmp_path, monkeypatch, file):
    here, there = tmp_path / "here", tmp_path / "there"
    run = WatchedRun()
    with CheckpointManager(here, mirror=there, preemption=Preemption(then="off")) as manager:
        manager.restore(run)
        for at in (3, 6):
            for _ in run.train_until(at):
                pass
            name = manager.save(run).result()
            manager.wait()
    disk = BadDisk(f"/here/{FILES[file].format(name)}").install(monkeypatch)
    again = WatchedRun()
    with CheckpointManager(here, mirror=there, preemption=Preemption(then="off")) as manager:
        assert manager.restore(again).checkpoint == name
    assert disk.fired
    assert again.digest() == run_at(6).digest()


@pytest.mark.parametrize("file", FILES)
def test_verify_names_an_unreadable_file_and_goes_on(root, names, monkeypatch, file):
    key = FILES[file].format(names[1])
    BadDisk(key).install(monkeypatch)
    found = audit(LocalStorage(root), Watch())
    problems = {proof.name: [one.message for one in proof.problems] for proof in found.checkpoints}
    assert [name for name, told in problems.items() if told] == [names[1]]
    assert any(f"{key} cannot be read" in one for one in problems[names[1]])


def test_unreadable_target_is_not_taken_for_corrupt_source(root, names, tmp_path, monkeypatch):
    target = LocalStorage(tmp_path / "copy")
    request = CopyRequest(None, lambda: datetime(2026, 1, 1, tzinfo=timezone.utc), lambda: "0" * 32)
    copy_run(LocalStorage(root), target, request, Told())
    (tmp_path / "copy" / FILES["commit"].format(names[-1])).unlink()
    BadDisk(f"/copy/{FILES['weights'].format(names[-1])}").install(monkeypatch)
    with pytest.raises(StorageError, match="could not compare"):
        copy_run(LocalStorage(root), target, request, Told())
