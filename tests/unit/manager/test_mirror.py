"""A local root with a mirror: what is newest and whole on either goes on, and the mirror is the fence."""

from __future__ import annotations

import logging
import os
import shutil
import textwrap
import threading
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest
from crash.test_away import Quiet
from support.interrupted import InterruptedStart
from support.options import grouped
from support.process import python
from support.runs.scenario import CYCLE, attempts, corrupt, digest_at, digest_of, folders, name_at, tree

from ckptkit.checkpoint.commit import void
from ckptkit.core import worker
from ckptkit.core.progress_bar import countdown
from ckptkit.core.save_policy import SaveEvery
from ckptkit.errors import (
    CorruptCheckpointError,
    Preempted,
    ResumeError,
    SaveFailedError,
    StaleAttemptError,
    StorageError,
)
from ckptkit.format.documents import CopiedFrom, RunDocument, encode
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.mirrors import Uploads
from ckptkit.manager.options import ERROR_BUDGET, Mirror, Preemption, Saving, System
from ckptkit.run.index import Index
from ckptkit.run.keep_policy import KeepBest, KeepEvery, KeepLatest
from ckptkit.run.upload import Uploader, UploadPace
from ckptkit.storage import LocalStorage, RootLock, open_storage
from ckptkit.testing.faults import DIVISIBLE, EVERY, MUTATING, Fault, FaultyStorage, Killed
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.copy.copy import CopyRequest, copy_run
from ckptkit.tools.doctor.lives.probe import variables
from ckptkit.tools.doctor.lives.trace import LifePlan

LONG = timedelta(seconds=60)
_GIVE_WAY = worker._give_way
ON_REQUEST = SaveEvery(micro_steps=10**9)


@pytest.fixture(scope="module", autouse=True)
def _no_waiting():
    """For the disk, as in the crash suites, nor for a processor: all that is waited for here is threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(worker, "_give_way", lambda: None)
        yield


class OneAtATime(LocalStorage):
    """Deletes and writes hold a lock: a killed process is dead when the call has ended that was under way."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.lock = threading.RLock()

    def write(self, *args) -> None:
        with self.lock:
            super().write(*args)

    def delete(self, *args) -> None:
        with self.lock:
            super().delete(*args)


class Life:
    """One process of a job with a local root and a mirror; to kill it, drop it."""

    def __init__(self, base: Path, *, local: str = "local", host: str = "here", **options) -> None:
        self.local = FaultyStorage(LocalStorage(base / local))
        inner = OneAtATime(base / "mirror")
        self.under_way = inner.lock
        self.mirror = FaultyStorage(inner)
        options = {"save": ON_REQUEST, "keep": KeepLatest(2), "host": host, **options}
        self.manager = CheckpointManager(self.local, **grouped(mirror=self.mirror, **options))
        self.run = NumpyRun(accumulation_steps=CYCLE)

    def restore(self, checkpoint="latest", **options):
        return self.manager.restore(self.run, checkpoint=checkpoint, **options)

    def train(self, batches: int) -> None:
        for _ in self.run.train_until(batches):
            pass

    def save_at(self, batches: int):
        """Train up to there, save, and wait for the commit and the upload, whatever becomes of them."""
        self.train(batches)
        handle = self.manager.save(self.run)
        handle.exception()
        self.settle()
        return handle

    def saved_at(self, batches: int) -> str:
        return self.save_at(batches).result()

    def settle(self) -> None:
        """Wait for uploads, without trying again and without raising."""
        self.manager._setup.mirrors._uploads[0].settle(LONG.total_seconds)


class Pause:
    """A fault's action that holds a thread at a call until it may go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._go = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self._go.wait(60)

    def go(self) -> None:
        self._go.set()


def brings_nothing_home(life: Life) -> None:
    """As if it died before what the mirror alone has was copied back to the root."""
    life.local.inject(Fault("error", operations={"write"}, times=None))


def started(base: Path, *saved_at: int, **options) -> Life:
    life = Life(base, **options)
    life.restore()
    for batches in saved_at:
        life.saved_at(batches)
    life.settle()
    return life


def committed(base: Path, root: str) -> list[str]:
    return folders(tree(base / root)).committed


def warnings_in(caplog) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


def resumed(base: Path, **options) -> tuple[Life, str | None]:
    """A new start; what it holds is what an uninterrupted run holds there."""
    life = Life(base, **options)
    point = life.restore()
    life.settle()
    assert life.run.digest() == digest_at(point.batches_delivered)
    return life, point.checkpoint


def check_both(base: Path, local: str = "local") -> None:
    """What must be true of two roots after a start that reached both, whatever happened before."""
    here, there = tree(base / local), tree(base / "mirror")
    assert {key: here[key] for key in here if key.startswith("attempts/")} == {
        key: there[key] for key in there if key.startswith("attempts/")
    }
    assert here["run.json"] == there["run.json"]
    for root in (local, "mirror"):
        for name in committed(base, root):
            batches = int(name[9:19]) * CYCLE + int(name[21:25])
            assert digest_of(base / root, name) == digest_at(batches), (root, name)
    for name in set(committed(base, local)) & set(committed(base, "mirror")):
        assert files_of(base / local, name) == files_of(base / "mirror", name)
    own = max(attempts(there))
    dead = [name for name in folders(there).uncommitted if int(name[1:7]) < own]
    assert dead == []
    voided = [key for name in folders(there).void for key in files_of(base / "mirror", name)]
    assert all(key.endswith("/COMMIT") for key in voided)


def run_in(root: Path) -> dict[str, bytes]:
    """All but the events, which are at the local root only."""
    files = tree(root)
    own = {key for key in files if key.startswith("events/")}
    assert own
    return {key: data for key, data in files.items() if key not in own}


def files_of(root: Path, name: str) -> dict[str, bytes]:
    return {key: data for key, data in tree(root).items() if key.startswith(f"checkpoints/{name}/")}


# What lies where


def test_both_roots_hold_the_same_run(tmp_path):
    life = started(tmp_path, 2, 5)
    life.manager.close()
    assert run_in(tmp_path / "local") == tree(tmp_path / "mirror")
    assert committed(tmp_path, "mirror") == [name_at(1, 2), name_at(1, 5)]
    assert life.manager.mirror_lag == 0


@pytest.mark.parametrize("runs", [False, True])
def test_ctrl_c_at_start_of_uploads_ends(tmp_path, monkeypatch, runs):
    """Else nobody would ever say that no upload is under way, and the process would not exit."""
    started(tmp_path, 2).manager.close()
    ctrl_c = InterruptedStart(monkeypatch, "ckptkit-mirror", runs=runs)
    life = Life(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        life.restore()
    assert ctrl_c.fired == 1
    assert life.manager._setup.mirrors._uploads[0]._idle.wait(10)
    life.manager.close()
    _, checkpoint = resumed(tmp_path)
    assert checkpoint == name_at(1, 2)


def test_local_lost_goes_on_from_the_mirror(tmp_path):
    started(tmp_path, 2, 5)
    shutil.rmtree(tmp_path / "local")
    life, checkpoint = resumed(tmp_path)
    assert checkpoint == name_at(1, 5)
    check_both(tmp_path)
    assert committed(tmp_path, "local") == [name_at(1, 5)]  # where the next start reads it
    assert life.saved_at(6) == name_at(2, 6)
    assert committed(tmp_path, "local") == [name_at(1, 5), name_at(2, 6)]
    again, checkpoint = resumed(tmp_path)
    assert checkpoint == name_at(2, 6)
    again.train(13)
    assert again.run.digest() == digest_at(13)


@pytest.mark.parametrize("lost", ["checkpoints", "."])
def test_final_save_of_an_uploaded_moment_looks_at_the_mirror(tmp_path, lost):
    life = started(tmp_path, 2)
    shutil.rmtree(tmp_path / "mirror" / lost)
    assert life.manager.save_final(life.run) == name_at(1, 2)
    assert life.manager.mirror_lag == 0
    life.manager.close()
    shutil.rmtree(tmp_path / "local")
    _, checkpoint = resumed(tmp_path)
    assert checkpoint == name_at(1, 2)


def test_final_save_of_an_uploaded_moment_notices_who_took_the_mirror(tmp_path):
    life = started(tmp_path, 2)
    other = Life(tmp_path, local="elsewhere", host="there")
    other.restore()
    with pytest.raises(StaleAttemptError):
        life.manager.save_final(life.run)


@pytest.mark.parametrize("lost", ["frozen", "checkpoints", "."])
def test_mirror_that_lost_files_receives_later_checkpoints(tmp_path, lost):
    """While the job trains; what it shares with the lost ones is uploaded again, and so are the documents."""
    started(tmp_path, 2).manager.close()
    life = started(tmp_path, 4, 5)
    shutil.rmtree(tmp_path / "mirror" / lost)
    life.saved_at(6)
    life.saved_at(7)
    assert life.manager.mirror_lag == 0
    life.manager.close()
    documents = {key: data for key, data in run_in(tmp_path / "local").items() if not key.startswith("checkpoints/")}
    assert tree(tmp_path / "mirror").items() >= documents.items()
    shutil.rmtree(tmp_path / "local")
    assert resumed(tmp_path)[1] == name_at(2, 7)
    check_both(tmp_path)


@pytest.mark.parametrize("saved", [(), (6,), (6, 7), (6, 7, 9)])
def test_each_root_alone_finds_newest_after_fresh_machine(tmp_path, saved):
    started(tmp_path, 2, 5)
    shutil.rmtree(tmp_path / "local")
    started(tmp_path, *saved).manager.close()
    for root in ("local", "mirror"):
        run = NumpyRun(accumulation_steps=CYCLE)
        shutil.copytree(tmp_path / root, tmp_path / "alone" / root)
        if root == "local" and not saved:
            continue  # nothing lies there
        point = CheckpointManager(tmp_path / "alone" / root).restore(run)
        assert point.checkpoint == (name_at(2, saved[-1]) if saved else name_at(1, 5))
        assert run.digest() == digest_at(saved[-1] if saved else 5)
    assert resumed(tmp_path)[1] == (name_at(2, saved[-1]) if saved else name_at(1, 5))


@pytest.mark.parametrize("saved", [(), (6,)])
def test_parent_missing_at_mirror_hides_no_checkpoint(tmp_path, saved):
    """The machine is lost that had more; what the mirror holds is older, and whole."""
    life = started(tmp_path, 2)
    life.mirror.inject(Fault("error", operations={"write"}, times=None))
    life.saved_at(5)
    second = Life(tmp_path)
    second.mirror.inject(Fault("error", operations={"write"}, times=None))
    assert second.restore().checkpoint == name_at(1, 5)
    for batches in saved:
        second.saved_at(batches)
    second.settle()
    assert committed(tmp_path, "mirror") == [name_at(1, 2)]
    assert resumed(tmp_path, local="new")[1] == name_at(1, 2)


def test_empty_mirror_is_filled_from_newest(tmp_path):
    run = NumpyRun(accumulation_steps=CYCLE)
    for last in (3, 6):
        with CheckpointManager(
            tmp_path / "local", save=SaveEvery(micro_steps=3), saving=Saving(when_busy="wait")
        ) as manager:
            manager.restore(run)
            for _ in run.train_until(last):
                manager.step(run)
    life, checkpoint = resumed(tmp_path)
    assert checkpoint == name_at(2, 6)
    assert committed(tmp_path, "mirror") == [name_at(2, 6)]
    check_both(tmp_path)
    life.saved_at(7)
    assert committed(tmp_path, "mirror") == [name_at(2, 6), name_at(3, 7)]


def test_documents_are_shared_until_that_works(tmp_path):
    started(tmp_path, 2).manager.close()
    life = Life(tmp_path, local="new")
    away = life.local.inject(Fault("error", operations={"create"}, key="attempts/000001.json", times=3))
    assert life.restore().checkpoint == name_at(1, 2)
    life.settle()
    assert away.fired == 3
    assert attempts(tree(tmp_path / "new")).keys() == {2}
    life.saved_at(5)
    check_both(tmp_path, "new")


DAMAGES = [
    ("rank-00000/weights-000.safetensors", "flip"),
    ("rank-00000/optimizer-000.safetensors", "cut"),
    ("rank-00000.json", "missing"),
    ("manifest.json", "flip"),
    ("COMMIT", "flip"),
    ("COMMIT", "missing"),
]


@pytest.mark.parametrize(("file", "how"), DAMAGES)
@pytest.mark.parametrize("root", ["local", "mirror"])
def test_whole_copy_precedes_older_checkpoint(tmp_path, root, file, how, caplog):
    started(tmp_path, 2, 5)
    corrupt(tmp_path / root, name_at(1, 5), file, how)
    life, checkpoint = resumed(tmp_path)
    assert checkpoint == name_at(1, 5)
    document = attempts(tree(tmp_path / "mirror"))[2]
    assert (document["parent"], document["passed_over"]) == (name_at(1, 5), [])
    told = root == "local" and (file, how) != ("COMMIT", "missing")
    assert (f"{name_at(1, 5)} is corrupt at {tmp_path / 'local'}" in caplog.text) == told
    life.saved_at(6)
    life.saved_at(7)
    assert resumed(tmp_path)[1] == name_at(2, 7)


def test_start_has_both_copies_of_its_parent_survive(tmp_path):
    """To ask for its void has a COMMIT survive a power loss, before the document that names it does."""
    started(tmp_path, 2).manager.close()
    life = Life(tmp_path)
    life.restore()
    for storage in (life.local, life.mirror):
        created = [call.keys[0] for call in storage.calls if call.operation == "create"]
        assert created[:2] == [f"checkpoints/{name_at(1, 2)}/COMMIT", "attempts/000002.json"]


def test_both_copies_corrupt_falls_back_naming_both(tmp_path, caplog):
    started(tmp_path, 2, 5)
    for root in ("local", "mirror"):
        corrupt(tmp_path / root, name_at(1, 5))
    _, checkpoint = resumed(tmp_path)
    assert checkpoint == name_at(1, 2)
    (passed_over,) = attempts(tree(tmp_path / "local"))[2]["passed_over"]
    assert passed_over["checkpoint"] == name_at(1, 5)
    for root in ("local", "mirror"):
        assert f"at {tmp_path / root}: checkpoints/{name_at(1, 5)}" in passed_over["reason"]
        assert f"at {tmp_path / root}: checkpoints/{name_at(1, 5)}" in caplog.text


def test_all_copies_corrupt_prevents_fresh_start(tmp_path):
    started(tmp_path, 2)
    for root in ("local", "mirror"):
        corrupt(tmp_path / root, name_at(1, 2))
    with pytest.raises(CorruptCheckpointError, match="no checkpoint of the run"):
        Life(tmp_path).restore()
    assert len(attempts(tree(tmp_path / "mirror"))) == 1


@pytest.mark.parametrize("root", ["local", "mirror"])
def test_other_root_replaces_damaged_attempt_document(tmp_path, root):
    started(tmp_path, 2, 5)
    document = tmp_path / root / "attempts" / "000001.json"
    document.write_bytes(document.read_bytes().replace(b'"host"', b'"hOst"'))
    assert resumed(tmp_path)[1] == name_at(1, 5)


def test_named_checkpoint_may_exist_only_at_mirror(tmp_path):
    started(tmp_path, 2, 5, 6, 9, mirror_keep=KeepLatest(9))
    assert committed(tmp_path, "local") == [name_at(1, 6), name_at(1, 9)]
    life = Life(tmp_path)
    assert [one.name for one in life.manager.checkpoints()] == [name_at(1, at) for at in (2, 5, 6, 9)]
    assert life.manager.latest().name == name_at(1, 9)
    assert life.restore(name_at(1, 2)).checkpoint == name_at(1, 2)
    assert life.run.digest() == digest_at(2)
    life.saved_at(3)
    # The same call goes on from there, and does not go back again.
    life = Life(tmp_path)
    assert life.restore(name_at(1, 2)).checkpoint == name_at(2, 3)


@pytest.mark.parametrize("restarts", [1, 2])
def test_branch_outlives_start_that_could_not_see_it(tmp_path, caplog, restarts):
    """A person went back to what only the mirror has, and the mirror was away for some starts."""
    started(tmp_path, 2, 5, 6, 9, mirror_keep=KeepLatest(9))
    went_back = Life(tmp_path)
    brings_nothing_home(went_back)
    went_back.restore(name_at(1, 2))
    went_back.settle()
    for _ in range(restarts):
        away = Life(tmp_path, mirror_required=False)
        away.mirror.inject(Fault("error", times=None))
        assert away.restore().checkpoint == name_at(1, 9)
    assert f"went back to {name_at(1, 2)}" in warnings_in(caplog)
    assert resumed(tmp_path)[1] == name_at(1, 2)


@pytest.mark.parametrize("root", ["local", "mirror"])
def test_void_on_one_root_keeps_other_copy(tmp_path, root):
    """As after a retention that was killed between COMMIT and data, and the sweep after it."""
    started(tmp_path, 2, 5)
    shutil.rmtree(tmp_path / root / "checkpoints" / name_at(1, 5))
    void(LocalStorage(tmp_path / root), CheckpointName.parse(name_at(1, 5)), "0" * 32)
    life, checkpoint = resumed(tmp_path)
    assert checkpoint == name_at(1, 5)
    assert [one.name for one in life.manager.checkpoints()] == [name_at(1, 2), name_at(1, 5)]
    life.saved_at(6)
    assert resumed(tmp_path)[1] == name_at(2, 6)


def test_unfinished_copy_as_mirror_is_refused(tmp_path):
    started(tmp_path / "made", 2)
    shutil.copytree(tmp_path / "made" / "local", tmp_path / "local")
    origin = CopiedFrom(url="elsewhere", run_id=None, checkpoint=None, last_attempt=1)
    run = RunDocument(run_id="0" * 32, created_at="", copied_from=origin).sealed()
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "run.json").write_bytes(encode(run))
    before = tree(tmp_path)
    with pytest.raises(ResumeError, match="has not ended"):
        Life(tmp_path).restore()
    assert tree(tmp_path) == before


def test_mirror_of_copy_with_damaged_document_is_no_copy(tmp_path):
    """The damaged one ends the copy; nothing brings it to the mirror, and the mirror needs none of it."""
    started(tmp_path / "made", 2, 4)
    source, target = LocalStorage(tmp_path / "made" / "local"), LocalStorage(tmp_path / "local")
    copy_run(source, target, CopyRequest(name_at(1, 4), lambda: datetime.now(timezone.utc), lambda: "1" * 32), Quiet())
    (tmp_path / "local/attempts/000002.json").write_bytes(b"{}")
    life = Life(tmp_path)
    life.restore()
    assert life.saved_at(5) == name_at(3, 5)
    life = Life(tmp_path)
    assert life.restore().checkpoint == name_at(3, 5)
    assert life.saved_at(6) == name_at(4, 6)
    assert committed(tmp_path, "mirror")[-2:] == [name_at(3, 5), name_at(4, 6)]
    shutil.rmtree(tmp_path / "local")
    life = Life(tmp_path)
    assert life.restore().checkpoint == name_at(4, 6)
    assert life.run.digest() == digest_at(6)


def test_each_root_has_own_retention(tmp_path):
    started(tmp_path, 2, 4, 5, 8, 9, mirror_keep=KeepEvery(optimizer_steps=1) | KeepLatest(3))
    assert committed(tmp_path, "local") == [name_at(1, 8), name_at(1, 9)]
    assert committed(tmp_path, "mirror") == [name_at(1, at) for at in (4, 5, 8, 9)]
    check_both(tmp_path)


def test_best_checkpoint_is_kept_on_both_roots(tmp_path):
    life = Life(tmp_path, keep=KeepBest(1, "accuracy", "max") | KeepLatest(1))
    life.restore()
    for batches, accuracy in ((2, 0.5), (4, 0.9), (5, 0.7), (8, 0.6), (9, 0.8)):
        life.train(batches)
        life.manager.save(life.run, {"accuracy": accuracy}).result()
        life.settle()
    for root in ("local", "mirror"):
        assert committed(tmp_path, root) == [name_at(1, at) for at in (4, 8, 9)]


# Uploads behind training


def test_commit_does_not_wait_for_mirror(tmp_path, caplog):
    """Of the checkpoints that wait for the upload, only the newest is uploaded."""
    caplog.set_level(logging.INFO, "ckptkit")
    life = started(tmp_path)
    pause = Pause()
    life.mirror.inject(Fault(pause, operations={"write"}, key=f"checkpoints/{name_at(1, 2)}/*"))
    lags = []
    for batches in (2, 4, 5, 6):
        life.train(batches)
        assert life.manager.save(life.run).result() == name_at(1, batches)
        assert pause.reached.wait(60)
        lags.append(life.manager.mirror_lag)
    assert lags == [1, 2, 3, 4]
    # What is being uploaded is spared by the local root's retention.
    assert committed(tmp_path, "local") == [name_at(1, 2), name_at(1, 5), name_at(1, 6)]
    assert committed(tmp_path, "mirror") == []
    with pytest.raises(TimeoutError, match="it continues"):
        life.manager.wait(timedelta(milliseconds=10))
    pause.go()
    life.manager.wait()
    assert committed(tmp_path, "mirror") == [name_at(1, 2), name_at(1, 6)]
    assert life.manager.mirror_lag == 0
    assert f"{name_at(1, 6)} is uploaded to the mirror {tmp_path / 'mirror'}, 2 older ones were not" in caplog.text
    life.saved_at(7)
    assert committed(tmp_path, "local") == [name_at(1, 6), name_at(1, 7)]


def test_waiting_for_both_roots_has_one_timeout(tmp_path, monkeypatch):
    """What the save took of it is not there for the upload."""
    life = started(tmp_path)
    pause = Pause()
    life.mirror.inject(Fault(pause, operations={"write"}))
    looks = []

    def monotonic():
        looks.append("at the clock")
        if len(looks) > 4:  # it waits beyond the timeout
            pause.go()
        return 0.0 if len(looks) == 1 else 60.0

    life.train(2)
    life.manager.save(life.run).result()
    assert pause.reached.wait(60)
    monkeypatch.setattr("ckptkit.core.progress_bar.time", SimpleNamespace(monotonic=monotonic))
    with pytest.raises(TimeoutError, match="it continues"):
        life.manager.wait(timedelta(seconds=60))
    pause.go()
    life.manager.wait()


def test_wait_raises_the_failure_it_awaited(tmp_path, monkeypatch):
    """Of an upload that still goes on when it begins to wait."""
    life = started(tmp_path, on_save_error="raise")
    pause = Pause()

    def fail():
        pause()
        raise StorageError("away")

    def monotonic():
        if life.manager.mirror_lag and looks:
            pause.go()
        looks.append("at the clock")
        return 0.0

    looks = []
    life.mirror.inject(Fault(fail, operations={"write"}, times=None))
    life.train(2)
    life.manager.save(life.run).result()
    assert pause.reached.wait(60)
    monkeypatch.setattr("ckptkit.core.progress_bar.time", SimpleNamespace(monotonic=monotonic))
    with pytest.raises(SaveFailedError, match=r"the mirror .* lacks it: away"):
        life.manager.wait(timedelta(seconds=60))
    life.mirror.clear()
    life.manager.close()
    assert committed(tmp_path, "mirror") == [name_at(1, 2)]


def test_local_copy_lost_during_upload_is_skipped(tmp_path, caplog):
    """The skipped checkpoint is named, and the next one is uploaded."""
    life = started(tmp_path)
    gone = Fault(
        lambda: shutil.rmtree(tmp_path / "local" / "checkpoints"),
        operations={"write"},
        key=f"checkpoints/{name_at(1, 2)}/rank-00000.json",
    )
    life.mirror.inject(gone)
    life.save_at(2)
    assert gone.fired == 1
    assert committed(tmp_path, "mirror") == []
    assert f"the upload of {name_at(1, 2)}" in warnings_in(caplog)
    life.saved_at(3)
    assert committed(tmp_path, "mirror") == [name_at(1, 3)]
    assert files_of(tmp_path / "mirror", name_at(1, 2)).keys() == {f"checkpoints/{name_at(1, 2)}/COMMIT"}


def test_training_continues_during_mirror_outage(tmp_path, caplog):
    """Afterwards the newest checkpoint is uploaded."""
    life = started(tmp_path, 2)
    away = life.mirror.inject(Fault("error", times=None))
    for failures, batches in enumerate((3, 4, 5, 6, 7), start=1):
        life.saved_at(batches)
        assert life.manager.step(life.run) is None
        assert f"({failures} in a row)" in warnings_in(caplog)
    assert away.fired >= 5 > ERROR_BUDGET
    assert life.manager.mirror_lag == 5
    life.manager.wait()  # tries once more, and says no more than a warning
    assert "(6 in a row)" in warnings_in(caplog)
    life.mirror.clear()
    life.saved_at(8)
    assert life.manager.mirror_lag == 0
    assert committed(tmp_path, "mirror") == [name_at(1, 2), name_at(1, 8)]
    life.manager.close()
    check_both(tmp_path)


def test_a_failed_upload_is_tried_again_by_wait(tmp_path):
    life = started(tmp_path)
    life.mirror.inject(Fault("error", operations={"write"}))
    life.saved_at(3)
    assert committed(tmp_path, "mirror") == []
    life.manager.wait()
    assert committed(tmp_path, "mirror") == [name_at(1, 3)]
    assert life.manager.mirror_lag == 0


def test_next_upload_removes_failed_one(tmp_path):
    life = started(tmp_path)
    life.mirror.inject(Fault("error", operations={"write"}, key="*/manifest.json"))
    life.saved_at(3)
    assert folders(tree(tmp_path / "mirror")).uncommitted == [name_at(1, 3)]
    life.saved_at(4)
    assert files_of(tmp_path / "mirror", name_at(1, 3)).keys() == {f"checkpoints/{name_at(1, 3)}/COMMIT"}
    assert committed(tmp_path, "mirror") == [name_at(1, 4)]


def test_upload_that_wrote_nothing_leaves_no_void(tmp_path):
    life = started(tmp_path, 2)
    life.mirror.inject(Fault("error", operations={"walk"}, key=f"checkpoints/{name_at(1, 3)}/"))
    life.saved_at(3)
    life.saved_at(4)
    assert committed(tmp_path, "mirror") == [name_at(1, 2), name_at(1, 4)]
    assert files_of(tmp_path / "mirror", name_at(1, 3)) == {}


def test_overtaken_job_voids_no_failed_upload(tmp_path):
    """It may be what the later attempt began with; that one takes over once the job has looked for what else may go."""
    life = started(tmp_path)
    life.mirror.inject(Fault("error", operations={"write"}, key="*/manifest.json"))
    life.saved_at(3)
    before = files_of(tmp_path / "mirror", name_at(1, 3))
    taken = tmp_path / "mirror/attempts/000002.json"
    takeover = Fault(lambda: taken.write_bytes(b"{}"), operations={"list"}, key="checkpoints")
    commit = f"checkpoints/{name_at(1, 4)}/COMMIT"
    life.mirror.inject(
        Fault(lambda: life.mirror.inject(takeover), operations={"create"}, key=commit, when="after"),
    )
    life.saved_at(4)
    assert takeover.fired == 1
    assert files_of(tmp_path / "mirror", name_at(1, 3)) == before != {}
    with pytest.raises(StaleAttemptError):
        life.manager.step(life.run)


def test_failed_upload_with_unreadable_commit_stays(tmp_path, caplog):
    """It may be a checkpoint of whoever put it there."""
    life = started(tmp_path)
    life.mirror.inject(Fault("error", operations={"write"}, key="*/manifest.json"))
    life.saved_at(3)
    key = f"checkpoints/{name_at(1, 3)}/COMMIT"
    life.mirror.inject(Fault(lambda: (tmp_path / "mirror" / key).write_bytes(b"{"), operations={"create"}, key=key))
    before = files_of(tmp_path / "mirror", name_at(1, 3))
    life.saved_at(4)
    assert files_of(tmp_path / "mirror", name_at(1, 3)) == {**before, key: b"{"}
    assert f"the folder stays unchanged, at {tmp_path / 'mirror'}" in warnings_in(caplog)
    assert "could not be removed" not in warnings_in(caplog)


def test_on_save_error_raise_holds_for_uploads_too(tmp_path):
    life = started(tmp_path, on_save_error="raise")
    life.mirror.inject(Fault("error", times=None))
    life.saved_at(2)
    with pytest.raises(SaveFailedError, match=f"{name_at(1, 2)} is committed at .*local, but the mirror .* lacks it"):
        life.manager.step(life.run)


@pytest.mark.parametrize("failures", range(ERROR_BUDGET))
@pytest.mark.parametrize("on_save_error", ["warn", "raise"])
def test_the_end_of_training_insists_on_the_mirror(tmp_path, failures, on_save_error):
    life = started(tmp_path, on_save_error=on_save_error)
    life.train(5)
    life.mirror.inject(Fault("error", operations={"write"}, times=failures) if failures else Fault("error", nth=10**6))
    assert life.manager.save_final(life.run) == name_at(1, 5)
    assert committed(tmp_path, "mirror") == [name_at(1, 5)]
    life.manager.close()


def test_close_without_mirror_names_committed_root(tmp_path):
    life = started(tmp_path, 2)
    away = life.mirror.inject(Fault("error", operations={"list"}, times=None))
    life.train(5)
    for end in (lambda: life.manager.save_final(life.run), life.manager.close):
        with pytest.raises(SaveFailedError) as caught:
            end()
        assert f"{name_at(1, 5)} is committed at {tmp_path / 'local'}, but the mirror" in str(caught.value)
        assert isinstance(caught.value.__cause__, StorageError)
    # A storage may take minutes for each: close tries what was given up just once more.
    assert away.fired == ERROR_BUDGET + 1
    # The same job again uploads it, though nothing is left to train.
    life, checkpoint = resumed(tmp_path)
    assert checkpoint == name_at(1, 5)
    life.manager.close()
    assert committed(tmp_path, "mirror") == [name_at(1, 2), name_at(1, 5)]


def test_repeated_save_is_not_uploaded_again(tmp_path):
    life = started(tmp_path, 3)
    before = len(life.mirror.calls)
    assert life.saved_at(3) == name_at(1, 3)
    assert life.manager.save_final(life.run) == name_at(1, 3)
    life.manager.close()
    looked = [one.operation for one in life.mirror.calls[before:]]
    assert {*looked} <= {"list", "read", "create"}, "the COMMIT is made durable"
    assert len(looked) <= 10, "five small requests for each of both"


@pytest.mark.parametrize("started_at_exit", [False, True])
def test_interpreter_exit_waits_for_upload(tmp_path, started_at_exit):
    code = f"""
        import sys, threading
        from ckptkit.manager.manager import CheckpointManager
        from ckptkit.storage import LocalStorage
        from ckptkit.testing.state import NumpyRun

        class Slow(LocalStorage):
            "Its writes wait for the end of the main thread."
            def write(self, *args):
                threading.main_thread().join()
                super().write(*args)

        local, mirror = ({"Slow, LocalStorage" if started_at_exit else "LocalStorage, Slow"})
        manager = CheckpointManager(local({str(tmp_path / "local")!r}), mirror=mirror({str(tmp_path / "mirror")!r}))
        run = NumpyRun()
        manager.restore(run)
        handle = manager.save(run)
        if not {started_at_exit}:
            handle.result()
        """
    done = python("-c", textwrap.dedent(code))
    begun, *others = done.stderr.splitlines()
    assert begun == f"[ckptkit] starting afresh at {tmp_path / 'local'}"
    assert [line for line in others if "is uploaded to the mirror" not in line] == []
    assert committed(tmp_path, "mirror") == committed(tmp_path, "local") == [name_at(1, 0)]


def test_a_dropped_manager_leaves_no_thread(tmp_path):
    before = set(threading.enumerate())
    life = started(tmp_path, 2)
    for thread in set(threading.enumerate()) - before:
        if thread.name == "ckptkit-signals":  # of the process, which its first manager starts
            continue
        thread.join(LONG.total_seconds())
        assert not thread.is_alive()
    life.manager.close()


# The mirror away at the start


def away(life: Life) -> Fault:
    return life.mirror.inject(Fault("error", times=None))


def test_a_start_without_its_mirror_is_refused(tmp_path):
    started(tmp_path, 2)
    before = tree(tmp_path)
    life = Life(tmp_path)
    away(life)
    with pytest.raises(StorageError, match=r"Mirror\(\.\.\., required=False\)") as caught:
        life.restore()
    assert isinstance(caught.value.__cause__, StorageError)
    assert tree(tmp_path) == before
    # The same manager starts once it is back.
    life.mirror.clear()
    assert life.restore().checkpoint == name_at(1, 2)


def test_next_start_uploads_after_mirrorless_start(tmp_path, caplog):
    started(tmp_path, 2)
    life = Life(tmp_path, mirror_required=False)
    away(life)
    assert life.restore().checkpoint == name_at(1, 2)
    assert "NO MIRROR" in warnings_in(caplog)
    life.train(5)
    assert life.manager.save_final(life.run) == name_at(2, 5)
    life.manager.save_final(life.run)  # is there
    assert life.manager.mirror_lag == 2  # nobody uploads, and whether the mirror has the first one is not known
    assert [one.name for one in life.manager.checkpoints()] == [name_at(1, 2), name_at(2, 5)]
    life.manager.close()
    assert committed(tmp_path, "mirror") == [name_at(1, 2)]
    life, checkpoint = resumed(tmp_path)
    assert checkpoint == name_at(2, 5)
    assert committed(tmp_path, "mirror") == [name_at(1, 2), name_at(2, 5)]
    check_both(tmp_path)
    life.saved_at(7)
    assert committed(tmp_path, "mirror") == [name_at(2, 5), name_at(3, 7)]


def test_emptied_local_root_needs_mirror_for_start(tmp_path):
    """With the mirror away it is no new run; once it is back, the same manager knows all that it holds."""
    started(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "local")
    life = Life(tmp_path)
    brings_nothing_home(life)
    life.restore()  # has the attempt's document, and not the checkpoint
    life.settle()
    before = tree(tmp_path)
    life = Life(tmp_path, mirror_required=False)
    away(life)
    with pytest.raises(StorageError, match=f"continues from {name_at(1, 2)}.*would lose it"):
        life.restore()
    assert tree(tmp_path) == before
    life.mirror.clear()
    assert life.restore().checkpoint == name_at(1, 2)
    assert [one.name for one in life.manager.checkpoints()] == [name_at(1, 1), name_at(1, 2)]


def test_mirror_that_cannot_be_listed_is_away(tmp_path, caplog):
    """A folder can be probed whatever has become of its disk."""
    life = Life(tmp_path, mirror_required=False)
    life.mirror.inject(Fault("error", operations={"list"}, key="attempts", times=None))
    assert life.restore().checkpoint is None
    assert "NO MIRROR" in caplog.text
    life.train(2)
    assert life.manager.save(life.run).result() == name_at(1, 2)


def test_a_new_run_may_begin_without_its_mirror(tmp_path):
    life = Life(tmp_path, mirror_required=False)
    away(life)
    assert life.restore().checkpoint is None
    life.manager.save(life.run).result()
    assert resumed(tmp_path)[1] == name_at(1, 0)
    assert committed(tmp_path, "mirror") == [name_at(1, 0)]
    check_both(tmp_path)


@pytest.mark.parametrize(("operation", "nth"), [("list", 2), ("read", 1), ("create", 1)])
def test_late_mirror_failure_is_error_when_optional(tmp_path, operation, nth):
    """What it holds was looked at, and perhaps the number is taken there: going on alone would separate the two."""
    started(tmp_path, 2)
    life = Life(tmp_path, mirror_required=False)
    fault = life.mirror.inject(Fault("error", operations={operation}, nth=nth, times=None))
    with pytest.raises(StorageError, match="injected"):
        life.restore()
    assert fault.fired
    life.mirror.clear()
    assert life.restore().checkpoint == name_at(1, 2)


# Two jobs


def test_shared_mirror_fences_two_local_roots(tmp_path):
    first = started(tmp_path, 2, 4)
    second = started(tmp_path, local="other", host="there")
    assert second.run.digest() == digest_at(4)
    first.train(5)
    first.manager.save(first.run).result()  # at its own local root nobody is in its way
    first.settle()
    for _ in range(2):
        with pytest.raises(StaleAttemptError, match=r"attempt 2 on there took over the run .*mirror"):
            first.manager.step(first.run)
    with pytest.raises(StaleAttemptError):
        first.manager.close()
    assert second.saved_at(6) == name_at(2, 6)
    assert second.saved_at(7) == name_at(2, 7)
    second.manager.close()
    assert committed(tmp_path, "mirror") == [name_at(2, 6), name_at(2, 7)]
    # What the first one trained in vain is off the lineage, and the second one's is found.
    assert resumed(tmp_path)[1] == name_at(2, 7)
    check_both(tmp_path)


def test_takeover_during_upload_prevents_commit(tmp_path):
    first = started(tmp_path, 2)
    pause = Pause()
    first.mirror.inject(Fault(pause, operations={"write"}, key=f"checkpoints/{name_at(1, 3)}/manifest.json"))
    first.train(3)
    first.manager.save(first.run).result()
    assert pause.reached.wait(60)
    second = started(tmp_path, local="other")
    pause.go()
    first.settle()
    with pytest.raises(StaleAttemptError):
        first.manager.step(first.run)
    assert second.run.digest() == digest_at(2)
    assert committed(tmp_path, "mirror") == [name_at(1, 2)]


def test_roots_that_went_on_separately_are_an_error(tmp_path):
    started(tmp_path, 2)
    alone = Life(tmp_path, mirror_required=False, host="alone")
    away(alone)
    alone.restore()
    alone.train(4)
    alone.manager.save(alone.run).result()
    started(tmp_path, 3, 6, local="other", host="elsewhere")
    before = tree(tmp_path)
    for required in (True, False):
        with pytest.raises(ResumeError, match=r"continued separately.*attempt 2 .*on alone .*on elsewhere"):
            Life(tmp_path, mirror_required=required).restore()
    assert tree(tmp_path) == before
    # Each of the two ways out that the message names.
    assert resumed(tmp_path, local="new")[1] == name_at(2, 6)
    other = CheckpointManager(tmp_path / "local", mirror=tmp_path / "new mirror")
    run = NumpyRun(accumulation_steps=CYCLE)
    assert other.restore(run).checkpoint == name_at(2, 4)
    other.close()


@pytest.mark.parametrize("failed", [1, 2, 3, 5])
def test_forgotten_starts_hide_no_separation(tmp_path, failed):
    """Starts to which no mirror was given forget their failed ones, so that the two roots may share no number."""
    started(tmp_path, 2)
    started(tmp_path, 3, 6, local="other", host="elsewhere")
    for _ in range(failed):
        CheckpointManager(tmp_path / "local").restore(NumpyRun(accumulation_steps=CYCLE))
    alone = CheckpointManager(tmp_path / "local", system=System(host="alone"))
    run = NumpyRun(accumulation_steps=CYCLE)
    alone.restore(run)
    for _ in run.train_until(4):
        pass
    alone.save(run).result()
    alone.close()
    before = tree(tmp_path)
    with pytest.raises(ResumeError, match=r"continued separately.*attempt 2 .*on elsewhere"):
        Life(tmp_path).restore()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("damaged", ["local", "mirror"])
@pytest.mark.parametrize("how", ["cut", "another's"])
def test_damaged_document_hides_no_separation(tmp_path, damaged, how):
    started(tmp_path, 2)
    for batches in (4, 5):
        alone = Life(tmp_path, mirror_required=False, host="alone")
        away(alone)
        alone.restore()
        alone.train(batches)
        alone.manager.save(alone.run).result()
    for batches in (3, 6):
        started(tmp_path, batches, local="other", host="elsewhere")
    attempt = tmp_path / damaged / "attempts"
    (attempt / "000003.json").write_bytes(b"{" if how == "cut" else (attempt / "000002.json").read_bytes())
    with pytest.raises(ResumeError, match=r"continued separately.*attempt 2 .*on alone .*on elsewhere"):
        Life(tmp_path).restore()


def test_takeover_after_the_upload_stops_training(tmp_path):
    """It is found when older checkpoints are to be removed."""
    first = started(tmp_path, 2)
    takeover = Fault(
        lambda: started(tmp_path, local="other"),
        operations={"create"},
        key=f"checkpoints/{name_at(1, 3)}/COMMIT",
        when="after",
    )
    first.mirror.inject(takeover)
    first.saved_at(3)
    assert takeover.fired == 1
    with pytest.raises(StaleAttemptError):
        first.manager.step(first.run)


def test_preemption_saves_though_the_mirror_failed(tmp_path):
    life = started(tmp_path, on_save_error="raise")
    life.mirror.inject(Fault("error", times=None))
    life.saved_at(2)
    life.train(4)
    life.manager._run.preemption.ask("a signal")
    with pytest.raises(Preempted) as raised:
        life.manager.step(life.run)
    assert raised.value.checkpoint == name_at(1, 4)
    assert committed(tmp_path, "local") == [name_at(1, 2), name_at(1, 4)]


def test_upload_failing_while_leaving_costs_no_save(tmp_path):
    """It fails right before the last state is captured."""
    life = started(tmp_path, on_save_error="raise")
    pause = Pause()
    life.mirror.inject(Fault(pause, operations={"write"}))
    life.mirror.inject(Fault("error", operations={"write"}, nth=2, times=None))
    life.train(2)
    life.manager.save(life.run).result()
    assert pause.reached.wait(60)
    life.train(4)
    saver = life.manager._run.saver
    committed_at = saver.committed_at

    def fail_first(progress, metrics):
        pause.go()
        life.settle()
        return committed_at(progress, metrics)

    saver.committed_at = fail_first
    life.manager._run.preemption.ask("a signal")
    with pytest.raises(Preempted) as raised:
        life.manager.step(life.run)
    assert raised.value.checkpoint == name_at(1, 4)
    assert committed(tmp_path, "local") == [name_at(1, 2), name_at(1, 4)]


def test_roots_need_not_be_valid_unicode(tmp_path, monkeypatch):
    """The newest checkpoint is corrupt at both, which the next start's document says with their names."""
    monkeypatch.setattr(logging.getLogger("ckptkit"), "disabled", True)  # xdist sends captured logs as UTF-8
    base = tmp_path / os.fsdecode(b"caf\xe9")
    started(base, 2, 4)
    for root in ("local", "mirror"):
        corrupt(base / root, name_at(1, 4))
    _, checkpoint = resumed(base)
    assert checkpoint == name_at(1, 2)


def test_upload_counts_after_a_fence_check(tmp_path):
    """A start elsewhere that took over before COMMIT does not know of it; so the check after it must not be skipped."""
    life = started(tmp_path, 2)
    failing = Fault("error", operations={"list"}, key="attempts")
    commit = {"operations": {"create"}, "key": f"checkpoints/{name_at(1, 4)}/COMMIT", "when": "after"}
    life.mirror.inject(Fault(lambda: life.mirror.inject(failing), **commit))
    life.save_at(4)
    assert failing.fired == 1
    assert committed(tmp_path, "mirror") == [name_at(1, 2), name_at(1, 4)]
    assert life.manager.mirror_lag == 1
    life.manager.close()
    assert life.manager.mirror_lag == 0


def test_takeover_at_the_mirror_outranks_preemption(tmp_path):
    """It is found by the upload of the last save."""
    life = started(tmp_path, 2)
    takeover = Fault(lambda: started(tmp_path, local="other"), operations={"write"})
    life.mirror.inject(takeover)
    life.train(4)
    life.manager._run.preemption.ask("a signal")
    with pytest.raises(StaleAttemptError), life.manager:
        life.manager.step(life.run)
    assert takeover.fired == 1
    assert committed(tmp_path, "mirror") == [name_at(1, 2)]


def test_takeover_without_void_prevents_commit(tmp_path):
    """Also if the new start could not void its folder yet: from then on, what it chose to go on from holds."""
    first = started(tmp_path, 2)
    pause = Pause()
    first.mirror.inject(Fault(pause, operations={"write"}, key=f"checkpoints/{name_at(1, 3)}/manifest.json"))
    first.train(3)
    first.manager.save(first.run).result()
    assert pause.reached.wait(60)
    second = Life(tmp_path, local="other")
    unswept = second.mirror.inject(
        Fault("error", operations={"create"}, key=f"checkpoints/{name_at(1, 3)}/*", times=None)
    )
    assert second.restore().checkpoint == name_at(1, 2)
    second.settle()
    assert unswept.fired
    pause.go()
    first.settle()
    with pytest.raises(StaleAttemptError):
        first.manager.step(first.run)
    assert folders(tree(tmp_path / "mirror")).uncommitted == [name_at(1, 3)]
    # Swept after the next upload.
    second.mirror.clear()
    second.saved_at(4)
    assert folders(tree(tmp_path / "mirror")).void == [name_at(1, 3)]


def test_mirror_begun_by_another_meanwhile_is_refused(tmp_path):
    for root in ("local", "elsewhere"):
        with CheckpointManager(tmp_path / root, preemption=Preemption(then="off")) as manager:
            run = NumpyRun(accumulation_steps=CYCLE)
            manager.restore(run)
            manager.save(run).result()
    life = Life(tmp_path)

    def begin():
        (tmp_path / "mirror/attempts").mkdir(parents=True)
        shutil.copy(tmp_path / "elsewhere/attempts/000001.json", tmp_path / "mirror/attempts")

    begun = life.mirror.inject(Fault(begin, operations={"create"}, key="attempts/000001.json"))
    with pytest.raises(ResumeError, match="continued separately"):
        life.restore()
    assert begun.fired == 1
    assert committed(tmp_path, "mirror") == []


@pytest.mark.parametrize("dies", [False, True])
def test_a_later_separation_is_found_too(tmp_path, dies):
    """Attempt 2 was opened without the mirror here and there; a start over one pair makes it known to the other."""
    started(tmp_path, 2)
    shutil.copytree(tmp_path / "local", tmp_path / "other")
    for local in ("local", "other"):
        life = Life(tmp_path, local=local, mirror_required=False, host=f"on-{local}")
        away(life)
        life.restore()
        life.train(4)
        life.manager.save(life.run).result()
    if dies:  # as soon as it has the number
        life = Life(tmp_path)
        killed = life.mirror.inject(Fault("kill", operations={"create"}, key="attempts/000003.json", when="after"))
        with pytest.raises(Killed):
            life.restore()
        assert killed.fired == 1
    else:
        started(tmp_path, 6)
    with pytest.raises(ResumeError, match=r"attempt 2 .*on-other.*on-local"):
        Life(tmp_path, local="other").restore()


def test_the_roots_of_two_runs_are_no_pair(tmp_path):
    with CheckpointManager(tmp_path / "local") as manager:
        manager.restore(NumpyRun())
    run = NumpyRun()
    for _ in range(2):
        with CheckpointManager(tmp_path / "mirror") as manager:
            manager.restore(run)
    os.unlink(tmp_path / "mirror" / "attempts" / "000001.json")
    before = tree(tmp_path)
    with pytest.raises(ResumeError, match="two different runs"):
        Life(tmp_path).restore()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("empty", ["local", "mirror"])
def test_root_without_any_start_is_no_other_run(tmp_path, empty):
    """A start there died once it had made the first file."""
    started(tmp_path, 2).manager.close()
    shutil.rmtree(tmp_path / empty)
    (tmp_path / empty).mkdir()
    run = RunDocument(run_id="f" * 32, created_at="").sealed()
    (tmp_path / empty / "run.json").write_bytes(encode(run))
    assert resumed(tmp_path)[1] == name_at(1, 2)


def test_start_takes_next_number_after_mirror_conflict(tmp_path):
    started(tmp_path, 2)
    life = Life(tmp_path)
    life.mirror.inject(
        Fault(lambda: started(tmp_path, 4, local="other"), operations={"create"}, key="attempts/000002.json")
    )
    assert life.restore().checkpoint == name_at(2, 4)
    life.settle()
    assert life.run.digest() == digest_at(4)
    assert sorted(attempts(tree(tmp_path / "mirror"))) == [1, 2, 3]
    check_both(tmp_path)


def test_concurrent_retention_at_mirror_is_no_damage(tmp_path):
    first = started(tmp_path, 2, 4)
    life = Life(tmp_path, local="other")
    moved_on = Fault(
        lambda: [first.saved_at(batches) for batches in (5, 6, 7)],
        operations={"read"},
        key=f"checkpoints/{name_at(1, 4)}/manifest.json",
    )
    life.mirror.inject(moved_on)
    assert life.restore().checkpoint == name_at(1, 7)
    assert moved_on.fired == 1
    assert life.run.digest() == digest_at(7)


def test_mirror_commit_before_takeover_is_kept(tmp_path):
    first = started(tmp_path, 2)
    life = Life(tmp_path, local="other")
    life.mirror.inject(Fault(lambda: first.saved_at(3), operations={"create"}, key="attempts/000002.json"))
    assert life.restore().checkpoint == name_at(1, 3)
    life.settle()
    assert life.run.digest() == digest_at(3)
    check_both(tmp_path, "other")


def test_void_at_mirror_keeps_local_checkpoint(tmp_path, caplog):
    """A start elsewhere gave it up at the mirror, and committed nothing; here it is the newest."""
    life = started(tmp_path, 2)
    life.mirror.inject(Fault("kill", operations={"write"}, key=f"checkpoints/{name_at(1, 5)}/*", nth=2))
    life.saved_at(5)
    started(tmp_path, local="other")
    assert folders(tree(tmp_path / "mirror")).void == [name_at(1, 5)]
    assert resumed(tmp_path)[1] == name_at(1, 5)
    life = Life(tmp_path)
    assert life.restore(name_at(1, 5)).checkpoint == name_at(1, 5)
    assert life.run.digest() == digest_at(5)
    life.settle()
    assert f"{name_at(1, 5)} can no longer be stored at the mirror" in warnings_in(caplog)
    assert life.manager.mirror_lag == 1
    with pytest.raises(
        SaveFailedError, match=f"{name_at(1, 5)} is committed .* lacks it: .* which uploads its next checkpoint"
    ):
        life.manager.close()
    life = Life(tmp_path)
    life.restore(name_at(1, 5))
    life.saved_at(6)
    life.settle()
    assert life.manager.mirror_lag == 0
    life.manager.close()
    assert resumed(tmp_path)[1] == name_at(5, 6)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("accidents", [1, 2])
def test_start_elsewhere_without_commit_sets_nothing_aside(tmp_path, accidents, restarted):
    """The mirror lags; what was committed here since is taken, also where another attempt of this root made it."""
    life = started(tmp_path, 2, 3)
    if restarted:
        life.manager.close()
        life = started(tmp_path)
    lag = life.mirror.inject(Fault("error", operations=("write",), key="checkpoints/*", times=None))
    newest = [life.saved_at(batches) for batches in (5, 6)]
    assert lag.fired
    assert set(committed(tmp_path, "mirror")).isdisjoint(newest)
    for number in range(accidents):
        assert resumed(tmp_path, local=f"other{number}")[1] == name_at(1, 3)
    back, checkpoint = resumed(tmp_path)
    assert checkpoint == newest[-1]
    back.saved_at(7)
    check_both(tmp_path)


def test_start_elsewhere_that_committed_goes_on(tmp_path):
    life = started(tmp_path, 2, 3)
    life.mirror.inject(Fault("error", operations=("write",), key="checkpoints/*", times=None))
    life.saved_at(6)
    started(tmp_path, 4, local="other")
    assert resumed(tmp_path)[1] == name_at(2, 4)
    assert name_at(1, 6) in committed(tmp_path, "local")


# A death or an error at every call

WHEN = ("before", "during", "after")
# Errors of a local root are the same as without a mirror, which the crash suites hold.
MOMENTS = [("local", when, "kill") for when in WHEN] + [
    ("mirror", w, action) for action in ("kill", "error") for w in WHEN
]
at_every_moment = pytest.mark.parametrize(("root", "when", "action"), MOMENTS, ids=[" ".join(one) for one in MOMENTS])


def each(calls, when):
    """At which of ``calls`` something can happen then: what it is, and which call to strike."""
    possible = {"before": EVERY, "during": DIVISIBLE, "after": MUTATING}[when]
    counted = [(index, call) for index, call in enumerate(calls) if call.operation in possible]
    return [(f"{when} {index}: {call}", index + 1) for index, call in counted]


def strike(life: Life, root: str, action: str, nth: int, when: str) -> Fault:
    """An error of one root, or the death of the process, which neither root hears of again."""

    def die() -> None:
        life.local._dead = life.mirror._dead = True
        raise Killed(f"killed at call {nth} of {root}")

    return getattr(life, root).inject(Fault(die if action == "kill" else "error", nth=nth, when=when))


def history(base: Path) -> None:
    """Both roots hold 4 and 6 of attempt 1; 7 is at the local root alone, and half of it at the mirror."""
    life = started(base, 2, 4, 6)
    life.mirror.inject(Fault("kill", operations={"write"}, key=f"checkpoints/{name_at(1, 7)}/*", nth=2))
    life.saved_at(7)
    assert committed(base, "local") == [name_at(1, 6), name_at(1, 7)]
    assert committed(base, "mirror") == [name_at(1, 4), name_at(1, 6)]
    assert folders(tree(base / "mirror")).uncommitted == [name_at(1, 7)]


SAVES = (8, 10)


def opening(life: Life) -> None:
    life.restore()
    life.settle()


def saving(life: Life) -> None:
    for batches in SAVES:
        life.saved_at(batches)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    base = tmp_path_factory.mktemp("template")
    history(base)
    return base


def go_on(base: Path, newest: str) -> None:
    """A new start takes the newest checkpoint, and both roots are one run again after it."""
    ever = set(committed(base, "local")) | set(committed(base, "mirror"))
    assert newest in ever
    life, checkpoint = resumed(base)
    assert checkpoint == newest
    assert newest in committed(base, "mirror")
    check_both(base)
    at = life.run.batches
    life.saved_at(at + 1)
    for root in ("local", "mirror"):
        own = max(attempts(tree(base / root)))
        assert committed(base, root)[-2:] == [newest, name_at(own, at + 1)]
    life.manager.close()


@pytest.mark.covering(1)
@at_every_moment
def test_fault_at_any_start_call_is_recovered(tmp_path, template, root, when, action):
    shutil.copytree(template, tmp_path / "counted")
    life = Life(tmp_path / "counted")
    opening(life)
    for what, nth in each(getattr(life, root).calls, when):
        base = tmp_path / str(nth)
        shutil.copytree(template, base)
        struck = Life(base)
        fault = strike(struck, root, action, nth, when)
        with suppress(Killed, StorageError):
            opening(struck)
        with struck.under_way:
            assert fault.fired == 1, what
        try:
            go_on(base, name_at(1, 7))
        except AssertionError as error:
            raise AssertionError(f"with the fault at {what}: {error}") from error
        shutil.rmtree(base)


@pytest.mark.covering(1)
@at_every_moment
def test_fault_at_any_upload_call_loses_nothing(tmp_path, template, root, when, action):
    """The same holds for any call of the saves."""
    shutil.copytree(template, tmp_path / "counted")
    life = Life(tmp_path / "counted")
    opening(life)
    before = len(getattr(life, root).calls)
    saving(life)
    for what, nth in each(getattr(life, root).calls[before:], when):
        base = tmp_path / str(nth)
        shutil.copytree(template, base)
        struck = Life(base)
        opening(struck)
        fault = strike(struck, root, action, nth, when)
        done = [name_at(1, 7)]
        with suppress(Killed, StorageError):
            for batches in SAVES:
                done.append(struck.saved_at(batches))
        with struck.under_way:
            assert fault.fired == 1, what
        # A save whose reply was lost may be there as well.
        newest = max([*done, *committed(base, "local")])
        if action == "error":
            assert done[1:] == [name_at(2, at) for at in SAVES]
        try:
            assert newest in (done[-1], name_at(2, SAVES[min(len(done) - 1, len(SAVES) - 1)]))
            go_on(base, newest)
        except AssertionError as error:
            raise AssertionError(f"with the fault at {what}: {error}") from error
        shutil.rmtree(base)


# Options


def test_doctor_does_not_open_mirror(tmp_path, monkeypatch):
    plan = LifePlan(root=str(tmp_path / "scratch"), trace=str(tmp_path / "trace"), stop=3)
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    for name, value in variables(tmp_path / "plan.json").items():
        monkeypatch.setenv(name, value)
    life = Life(tmp_path)
    with pytest.raises(ResumeError, match="has no observer"):
        life.restore()
    assert life.mirror.calls == life.local.calls == []


def test_the_options_are_checked(tmp_path):
    with pytest.raises(ValueError, match="keep must be a policy"):
        CheckpointManager(tmp_path / "local", mirror=Mirror(tmp_path / "mirror", keep=3))
    with pytest.raises(ValueError, match="mirror is the run root itself"):
        CheckpointManager(tmp_path / "local", mirror=tmp_path / "local")
    (tmp_path / "link").symlink_to(tmp_path / "local")
    for root, mirror in [("local", "link"), ("link", "local"), ("local/../link", "local")]:
        with pytest.raises(ValueError, match="mirror is the run root itself"):
            CheckpointManager(tmp_path / root, mirror=tmp_path / mirror)
    with pytest.raises(StorageError, match="takes no storage_options"):
        CheckpointManager(tmp_path / "local", mirror=Mirror(tmp_path / "mirror", storage_options={"key": "x"}))


def test_a_manager_without_a_mirror_is_not_behind(tmp_path):
    manager = CheckpointManager(tmp_path)
    assert manager.mirror_lag == 0


# The thread


class Uploading:
    """Does what a test says instead of an upload."""

    size_bytes = done_bytes = 0

    def __init__(self, *outcomes) -> None:
        self.outcomes = list(outcomes)
        self.pace = UploadPace(None)
        self.asked: list[str] = []
        self.sweeps = 0

    def hurry(self):
        pass

    def upload(self, name):
        self.asked.append(str(name))
        outcome = self.outcomes.pop(0) if self.outcomes else "copied"
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def sweep(self) -> None:
        self.sweeps += 1


def behind(uploading, *, tolerant=True):
    return Uploads(Mirror("memory://mirror"), open_storage("memory://local"), uploading, tolerant=tolerant)


A, B, C = (CheckpointName.parse(name_at(1, at)) for at in (1, 2, 3))


@pytest.mark.parametrize("threads", [True, False])
def test_uploads_work_without_threads(threads, monkeypatch):
    if not threads:

        def refuse(self):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
    uploading = Uploading()
    one = behind(uploading)
    one.begin(A)
    one.settle(LONG.total_seconds)
    one.offer(B)
    one.settle(LONG.total_seconds)
    assert (uploading.asked, uploading.sweeps, one.lag) == ([str(A), str(B)], 1, 0)


def test_upload_that_never_ends_is_told(caplog):
    """The mirror hangs: nothing fails, and nothing is uploaded."""
    begun, go_on = threading.Event(), threading.Event()

    class Hanging(Uploading):
        def upload(self, name):
            begun.set()
            go_on.wait(LONG.total_seconds())
            return super().upload(name)

    one = behind(Hanging())
    one.begin(None)
    names = [CheckpointName.parse(name_at(1, at)) for at in range(1, 121)]
    one.offer(names[0])
    assert begun.wait(LONG.total_seconds())
    for name in names[1:]:
        one.offer(name)
    assert [lag for lag in range(1, 121) if f"is {lag} commits behind" in caplog.text] == [10, 100]
    assert caplog.text.count(f"the upload of {names[0]} has not ended") == 2
    go_on.set()
    one.settle(LONG.total_seconds)
    assert one.lag == 0


def test_fresh_start_sweeps_mirror_at_once():
    """After a first upload that failed, the sweep waits for the next one."""
    uploading = Uploading(StorageError("away"))
    one = behind(uploading)
    one.begin(None)
    one.settle(LONG.total_seconds)
    assert uploading.sweeps == 1
    uploading = Uploading(StorageError("away"))
    one = behind(uploading)
    one.begin(A)
    one.settle(LONG.total_seconds)
    assert uploading.sweeps == 0
    one.offer(B)
    one.settle(LONG.total_seconds)
    assert uploading.sweeps == 1


def test_failed_sweep_is_repeated_until_one_works():
    class Dirty(Uploading):
        def sweep(self):
            super().sweep()
            if self.sweeps == 1:
                raise StorageError("away")

    one = behind(uploading := Dirty())
    sweeps = []
    for name in (A, B, C):
        one.offer(name)
        one.settle(LONG.total_seconds)
        sweeps.append(uploading.sweeps)
    assert sweeps == [1, 2, 2]
    one.collect()  # it is no failed upload


def test_takeover_seen_by_the_sweep_stops_training():
    class Overtaken(Uploading):
        def sweep(self):
            raise StaleAttemptError("taken over")

    one = behind(uploading := Overtaken())
    one.begin(A)
    one.settle(LONG.total_seconds)
    one.offer(B)
    one.settle(LONG.total_seconds)
    for _ in range(2):
        with pytest.raises(StaleAttemptError, match="taken over"):
            one.collect(tolerate=True)
    assert uploading.asked == [str(A)]


def test_failure_with_no_commit_to_upload_is_not_raised(monkeypatch, caplog):
    """Neither is one that an upload has made good since: `collect` may look at any moment of the thread."""

    def refuse(self):
        raise StorageError("no locks here")

    monkeypatch.setattr(RootLock, "share", refuse)
    one = behind(Uploading(), tolerant=False)
    one.begin(None)
    one.settle(LONG.total_seconds)
    one.collect()
    one.finish(LONG.total_seconds)
    assert "no locks here" in caplog.text


def test_each_upload_counts_its_bytes_from_zero(tmp_path):
    started(tmp_path, 2, 4).manager.close()
    local, mirror = LocalStorage(tmp_path / "local"), LocalStorage(tmp_path / "new mirror")
    uploader = Uploader([local, mirror], mirror, Index(local).document(1), "0" * 32, KeepLatest(9))
    for name in committed(tmp_path, "local"):
        before = {**mirror.walk("")}
        assert uploader.upload(CheckpointName.parse(name)) == "copied"
        new = {key: size for key, size in mirror.walk("").items() if key not in before}
        counted = [size for key, size in new.items() if key.startswith(("checkpoints/", "frozen/"))]
        assert uploader.done_bytes == sum(counted) - new[f"checkpoints/{name}/COMMIT"]


def test_upload_needs_no_document_of_its_own_attempt(tmp_path):
    """Somebody may have deleted it at the local root, where the next save puts it back."""
    started(tmp_path, 2, 4).manager.close()
    local, mirror = LocalStorage(tmp_path / "local"), LocalStorage(tmp_path / "new mirror")
    uploader = Uploader([local, mirror], mirror, Index(local).document(1), "0" * 32, KeepLatest(9))
    for name in committed(tmp_path, "local"):
        assert uploader.upload(CheckpointName.parse(name)) == "copied"
        (tmp_path / "local/attempts/000001.json").unlink(missing_ok=True)
    assert committed(tmp_path, "new mirror") == committed(tmp_path, "local")


def test_upload_that_is_there_is_made_durable(tmp_path):
    """Whoever made its COMMIT may have died before that was."""
    started(tmp_path, 2).manager.close()
    local, mirror = LocalStorage(tmp_path / "local"), FaultyStorage(LocalStorage(tmp_path / "mirror"))
    uploader = Uploader([local, mirror], mirror, Index(local).document(1), "0" * 32, KeepLatest(9))
    name = CheckpointName(1, 0, 2)
    assert uploader.upload(name) == "present"
    assert [name.commit_key] in [[*call.keys] for call in mirror.calls if call.operation == "create"]


def test_what_the_mirror_can_never_have_is_asked_once():
    one = behind(uploading := Uploading("void"))
    one.offer(A)
    one.settle(LONG.total_seconds)
    assert not one.try_again()
    for _ in range(2):
        with pytest.raises(SaveFailedError, match="give a new mirror"):
            one.finish(LONG.total_seconds)
    assert (uploading.asked, one.lag) == ([str(A)], 1)


def test_recovered_upload_failure_is_not_raised():
    uploading = Uploading(StorageError("away"))
    one = behind(uploading, tolerant=False)
    one.begin(A)
    one.settle(LONG.total_seconds)
    one.offer(B)
    one.settle(LONG.total_seconds)
    one.collect()
    one.finish(LONG.total_seconds)


@pytest.mark.parametrize("failures", range(ERROR_BUDGET + 1))
def test_checkpoint_of_the_start_is_insisted_on(failures):
    """A run that is finished commits nothing more."""
    uploading = Uploading(*[StorageError("away")] * failures)
    one = behind(uploading, tolerant=False)
    one.begin(A)
    one.settle(LONG.total_seconds)
    assert one.lag == (failures > 0)
    if failures == ERROR_BUDGET:
        with pytest.raises(
            SaveFailedError, match=f"{A} is committed at memory://local, but the mirror memory://mirror lacks it"
        ):
            one.finish(LONG.total_seconds)
    else:
        one.finish(LONG.total_seconds)
    assert uploading.asked == [str(A)] * max(1, min(failures + 1, ERROR_BUDGET))
    assert one.lag == (failures == ERROR_BUDGET)


def test_close_tries_again_what_final_save_could_not(tmp_path):
    """Unless the training was preempted, there is time for it."""
    life = started(tmp_path, 2)
    life.train(5)
    away = life.mirror.inject(Fault("error", operations={"write"}, times=ERROR_BUDGET))
    with pytest.raises(SaveFailedError, match="lacks it"):
        life.manager.save_final(life.run)
    assert (away.fired, life.manager.mirror_lag) == (ERROR_BUDGET, 1)
    life.manager.close()
    assert committed(tmp_path, "mirror") == [name_at(1, 2), name_at(1, 5)]


def test_an_outage_has_its_traceback_at_debug(caplog):
    caplog.set_level(logging.DEBUG, "ckptkit")
    one = behind(Uploading(StorageError("away"), OSError("odd")))
    for name, shown in ((A, logging.DEBUG), (B, logging.WARNING)):
        caplog.clear()
        one.offer(name)
        one.settle(LONG.total_seconds)
        assert f"the upload of {name}" in warnings_in(caplog)
        assert [record.levelno for record in caplog.records if record.exc_info] == [shown]


def test_failed_uploads_are_counted_since_the_last_success(caplog):
    one = behind(Uploading(StorageError("away"), StorageError("away"), "copied", StorageError("away")))
    for name in (A, B, A, B):
        one.offer(name)
        one.settle(LONG.total_seconds)
    said = [line.partition(" in a row")[0][-2:] for line in warnings_in(caplog).splitlines()]
    assert said == ["(1", "(2", "(1"]


def test_takeover_ends_uploads_and_always_raises():
    uploading = Uploading(StaleAttemptError("taken"))
    one = behind(uploading)
    one.begin(A)
    one.settle(LONG.total_seconds)
    for call in (one.collect, lambda: one.finish(LONG.total_seconds), lambda: one.collect(tolerate=True)):
        with pytest.raises(StaleAttemptError, match="taken"):
            call()
    assert not one.try_again()
    one.offer(B)  # by a save that had not heard of it
    one.settle(LONG.total_seconds)
    assert uploading.asked == [str(A)]


def test_offer_during_its_upload_uploads_once():
    class Meanwhile(Uploading):
        def upload(self, name):
            one.offer(name)
            return super().upload(name)

    one = behind(uploading := Meanwhile())
    one.begin(A)
    one.settle(LONG.total_seconds)
    assert (uploading.asked, one.lag) == ([str(A)], 0)


def test_uploads_have_lowest_priority_unless_they_are_awaited(monkeypatch):
    """The training thread begins them, and its own stays; on busy cores, a mirror would get nothing at the end."""
    monkeypatch.setattr(worker, "_give_way", _GIVE_WAY)
    begun, awaited = threading.Event(), threading.Event()

    class Watched(Uploading):
        def upload(self, name):
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            begun.set()
            assert awaited.wait(LONG.total_seconds())
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().upload(name)

    seen: list[int] = []
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    one = behind(Watched())
    one.begin(A)
    assert begun.wait(LONG.total_seconds())

    def left():
        awaited.set()
        return LONG.total_seconds()

    one.settle(left)
    one.urge()  # of a final save: nothing trains any more
    one.offer(B)
    one.settle(left)
    low = worker._lowest()
    assert seen == [low, before if low == 19 else low, before, before]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_whatever_an_upload_raises_is_no_hang():
    one = behind(Uploading(KeyboardInterrupt("odd"), MemoryError(), SystemExit(3)))
    one.begin(A)
    with pytest.raises(SaveFailedError):
        one.finish(LONG.total_seconds)


class UnspeakableError(StorageError):
    """The first to ask for its message is refused."""

    asked = 0

    def __str__(self) -> str:
        self.asked += 1
        if self.asked == 1:
            raise ZeroDivisionError("no message")
        return "at the second time"


def test_dead_upload_thread_leaves_no_waiter():
    error = UnspeakableError()
    one = behind(Uploading(error), tolerant=False)
    one.begin(A)
    one.settle(countdown(timedelta(seconds=10)))
    with pytest.raises(SaveFailedError, match="no message"):
        one.collect()
    assert error.asked == 1
    one.offer(B)
    one.finish(LONG.total_seconds)
    assert one.lag == 0


# Real servers


def in_bucket(bucket, endpoint, **options) -> dict:
    options = {"key": "testing", "secret": "testing", "endpoint_url": endpoint, **options}
    return {"mirror": f"s3://{bucket.name}/runs/vit", "mirror_options": options}


def test_a_bucket_as_mirror(tmp_path, bucket):
    run = NumpyRun(accumulation_steps=CYCLE)
    options = in_bucket(bucket, bucket.endpoint)
    with CheckpointManager(tmp_path / "local", keep=KeepLatest(2), save=ON_REQUEST, **grouped(**options)) as manager:
        manager.restore(run)
        for batches in (2, 5, 6):
            for _ in run.train_until(batches):
                pass
            manager.save(run)
            manager.wait()
    prefix = "runs/vit/"
    there = {key[len(prefix) :]: bucket.get(key) for key in bucket.keys()}  # noqa: SIM118 - no dictionary
    del there["probe"]
    assert there == run_in(tmp_path / "local")
    shutil.rmtree(tmp_path / "local")
    resumed = NumpyRun(accumulation_steps=CYCLE)
    with CheckpointManager(tmp_path / "local", save=ON_REQUEST, **grouped(**options)) as manager:
        assert manager.restore(resumed).checkpoint == name_at(1, 6)
        assert resumed.digest() == digest_at(6)


def test_a_server_that_goes_away_and_comes_back(tmp_path, bucket, proxy):
    run = NumpyRun(accumulation_steps=CYCLE)
    patience = {"retry_for": timedelta(milliseconds=300)}
    manager = CheckpointManager(tmp_path, save=ON_REQUEST, **grouped(**in_bucket(bucket, proxy.endpoint, **patience)))
    manager.restore(run)
    manager.wait()
    proxy.down()
    for batches in (2, 5):
        for _ in run.train_until(batches):
            pass
        manager.save(run).result()
        manager.wait()
        assert manager.step(run) is None
    assert manager.mirror_lag == 2
    proxy.up()
    manager.close()
    assert [key for key in bucket.keys() if key.endswith("COMMIT")] == [  # noqa: SIM118 - no dictionary
        f"runs/vit/checkpoints/{name_at(1, 5)}/COMMIT"
    ]


def test_separation_during_a_start_is_found(tmp_path):
    """A trained alone; while it starts over both roots, B takes the same number at the mirror and uploads."""
    started(tmp_path, 2)
    alone = Life(tmp_path, mirror_required=False, host="alone")
    away(alone)
    alone.restore()
    alone.train(4)
    alone.manager.save(alone.run).result()
    life = Life(tmp_path)
    race = life.mirror.inject(
        Fault(lambda: started(tmp_path, 3, local="other", host="elsewhere"), operations={"list"}, key="checkpoints")
    )
    with pytest.raises(ResumeError, match=r"continued separately.*attempt 2 .*on alone .*on elsewhere"):
        life.restore()
    assert race.fired == 1
    # It stays told.
    with pytest.raises(ResumeError, match="continued separately"):
        Life(tmp_path).restore()


@pytest.mark.parametrize("goes_back", [False, True], ids=["waits for the mirror", "takes the one that is named"])
def test_life_alone_stays_ahead_of_what_it_knows(tmp_path, goes_back):
    """This root's last start went on from what the mirror alone has, and died before it committed."""
    started(tmp_path, 2).manager.close()
    started(tmp_path, 4, local="other").manager.close()
    life = Life(tmp_path)
    brings_nothing_home(life)
    assert life.restore().checkpoint == name_at(2, 4)
    life.settle()
    before = tree(tmp_path)
    life = Life(tmp_path, mirror_required=False)
    away(life)
    with pytest.raises(StorageError, match=f"continued from {name_at(2, 4)}.*set it aside"):
        life.restore()
    assert tree(tmp_path) == before
    if goes_back:
        assert life.restore(name_at(1, 2)).checkpoint == name_at(1, 2)
    else:
        assert resumed(tmp_path)[1] == name_at(2, 4)
