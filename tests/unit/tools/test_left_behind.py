"""What a dead training left at its root reaches the mirrors, once and never over something newer."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs.scenario import CYCLE, digest_at, digest_of, folders, name_at, tree

import ckptkit as ck
from ckptkit.errors import StorageError
from ckptkit.storage import LocalStorage, RootLock
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.copy.left_behind import upload_left_behind

ON_REQUEST = ck.SaveEvery(micro_steps=10**9)


def trained(base: Path, *saved_at: int, root="root", mirrors=("near", "far"), away=()) -> None:
    """A training that dies: its uploads to the mirrors ``away`` fail, and nothing is closed."""
    storages = [FaultyStorage(LocalStorage(base / mirror)) for mirror in mirrors]
    manager = ck.CheckpointManager(base / root, mirror=storages, save=ON_REQUEST, keep=ck.KeepLatest(9))
    run = NumpyRun(accumulation_steps=CYCLE)
    manager.restore(run)
    manager.wait()
    for storage, name in zip(storages, mirrors, strict=True):
        if name in away:
            storage.inject(Fault("error", operations={"write"}, times=None))
    for at in saved_at:
        for _ in run.train_until(at):
            pass
        manager.save(run).result()
    manager.wait()
    for uploads in manager._setup.mirrors._uploads:
        uploads._root_lock.release()  # as the kernel does when the process ends


def storages(base: Path, *names: str) -> list[LocalStorage]:
    return [LocalStorage(base / name) for name in names]


def committed(root: Path) -> list[str]:
    return folders(tree(root)).committed


def upload(root: Path, *mirrors: LocalStorage) -> list[str]:
    said: list[str] = []
    opened = {mirror.url: mirror for mirror in mirrors}
    upload_left_behind(str(root), list(opened), lambda url: opened.get(url) or LocalStorage(url), said.append)
    return said


def test_newest_checkpoint_reaches_the_mirrors_that_lack_it(tmp_path):
    trained(tmp_path / "new")
    assert upload(tmp_path / "new/root", *storages(tmp_path / "new", "near")) == [], "there is no checkpoint"
    for at, away in (2, []), (4, []), (5, ["far"]):
        trained(tmp_path, at, away=away)
    near, far = storages(tmp_path, "near", "far")
    half = tmp_path / "far/checkpoints" / name_at(1, 1) / "manifest.json"
    half.parent.mkdir()
    half.touch()
    assert upload(tmp_path / "root", near, far) == [
        f"uploading what {far.url} did not get from the training",
        f"{name_at(3, 5)} is uploaded to {far.url}",
    ]
    assert committed(tmp_path / "far") == [name_at(1, 2), name_at(2, 4), name_at(3, 5)]
    assert digest_of(tmp_path / "far", name_at(3, 5)) == digest_at(5)
    assert half.exists()  # nothing is removed: the next start knows what the mirror is to keep
    before = tree(tmp_path)
    assert upload(tmp_path / "root", near, far) == []
    assert tree(tmp_path) == before


def test_nothing_comes_after_a_later_start(tmp_path):
    """The machine was lost, and another one went on from the mirror; then the first one came back."""
    trained(tmp_path, 2, mirrors=("far",))
    trained(tmp_path, 5, mirrors=("far",), away=["far"])
    trained(tmp_path, 4, root="elsewhere", mirrors=("far",))
    trained(tmp_path / "other", 4, mirrors=("far",))
    before = tree(tmp_path)
    for far, words in ((tmp_path / "far", "took over the run"), (tmp_path / "other/far", "continued separately")):
        said = upload(tmp_path / "root", LocalStorage(far))[-1]
        assert "could not be uploaded" in said
        assert words in said
    assert tree(tmp_path) == before
    (tmp_path / "root/attempts/000001.json").unlink()  # so that the two have no attempt in common
    before = tree(tmp_path)
    assert "hold two different runs" in upload(tmp_path / "root", LocalStorage(tmp_path / "other/far"))[-1]
    assert tree(tmp_path) == before


def test_failing_mirror_holds_back_no_other_and_is_completed(tmp_path):
    trained(tmp_path, 2, 5, away=["near", "far"])
    near = FaultyStorage(LocalStorage(tmp_path / "near"), [Fault("error", operations={"write"}, nth=2)])
    said = upload(tmp_path / "root", near, *storages(tmp_path, "far"))
    assert ["could not be uploaded" in said[1], "is uploaded to" in said[2]] == [True, True]
    assert (committed(tmp_path / "near"), committed(tmp_path / "far")) == ([], [name_at(1, 5)])
    assert "is uploaded to" in upload(tmp_path / "root", *storages(tmp_path, "near"))[-1]
    assert digest_of(tmp_path / "near", name_at(1, 5)) == digest_at(5)


HOLDER = """
import sys
import ckptkit as ck
from ckptkit.testing.state import NumpyRun
manager = ck.CheckpointManager(sys.argv[1], mirror=sys.argv[2], save=ck.SaveEvery(micro_steps=1))
run = NumpyRun(accumulation_steps=3)
manager.restore(run)
for _ in run.train_until(2):
    manager.step(run)
manager.wait()
print("trains", flush=True)
sys.stdin.read()
"""


def test_training_that_lives_uploads_by_itself(tmp_path):
    command = [sys.executable, "-c", HOLDER, tmp_path / "root", tmp_path / "far"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "trains\n"
            said = upload(tmp_path / "root", *storages(tmp_path, "new"))[-1]
            assert "is still running" in said
            assert f"The next start at {tmp_path / 'root'} uploads it" in said
            assert not (tmp_path / "new").exists()
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    assert "is uploaded to" in upload(tmp_path / "root", *storages(tmp_path, "new"))[-1]


def test_lock_of_a_root_is_shared_by_trainings_and_held_alone_by_an_upload(tmp_path):
    sharing, other, alone = (RootLock(LocalStorage(tmp_path)) for _ in range(3))
    sharing.share()
    other.share()
    for lock in (sharing, other):
        assert not alone.take_alone()
        forked = os.dup(lock._descriptor)  # as a process has it that was forked meanwhile
        lock.release()
    assert alone.take_alone()
    os.close(forked)
    alone.release()
    with ck.CheckpointManager(tmp_path / "root", mirror=tmp_path / "far", save=ON_REQUEST) as manager:
        manager.restore(run := NumpyRun(accumulation_steps=CYCLE))
        manager.save(run)
    of_root = RootLock(LocalStorage(tmp_path / "root"))
    assert of_root.take_alone(), "the training has ended, though its process has not"
    of_root.release()
    other.share()

    class Remote(LocalStorage):
        is_remote = True

    RootLock(Remote(tmp_path)).share()
    with pytest.raises(StorageError, match="only a local folder"):
        RootLock(Remote(tmp_path)).take_alone()


def test_start_waits_for_an_upload_that_has_begun(tmp_path):
    """Two that upload the same files at once could each take the other's for remains."""
    trained(tmp_path, 2, 5, mirrors=("far",), away=["far"])
    lock = RootLock(LocalStorage(tmp_path / "root"))
    assert lock.take_alone()
    manager = ck.CheckpointManager(tmp_path / "root", mirror=tmp_path / "far", save=ON_REQUEST)
    manager.restore(NumpyRun(accumulation_steps=CYCLE))
    uploads = manager._setup.mirrors._uploads[0]
    assert not uploads.may_begin
    assert committed(tmp_path / "far") == []
    lock.release()
    manager.wait()
    assert committed(tmp_path / "far") == [name_at(1, 5)]
    manager.close()
