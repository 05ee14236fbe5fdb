"""A local root with a mirror: what is newest and whole on either goes on, and the mirror is the fence."""

from __future__ import annotations

import logging
import os
import shutil
import textwrap
import threading
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from support.interrupted import InterruptedStart
from support.options import grouped
from support.process import python
from support.runs.scenario import CYCLE, attempts, corrupt, digest_at, digest_of, folders, name_at, tree

from ckptkit.core import worker
from ckptkit.core.save_policy import SaveEvery
from ckptkit.core.worker import Worker
from ckptkit.errors import (
    Preempted,
    ResumeError,
    SaveFailedError,
    StaleAttemptError,
    StorageError,
)
from ckptkit.format.documents import CopiedFrom, RunDocument, encode
from ckptkit.format.layout import CheckpointName
from ckptkit.manager import mirrors
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.mirrors import Uploads
from ckptkit.manager.options import ERROR_BUDGET, Mirror, System
from ckptkit.run.index import Index
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.run.upload import Uploader, UploadPace
from ckptkit.storage import LocalStorage, open_storage
from ckptkit.testing.faults import DIVISIBLE, EVERY, MUTATING, Fault, FaultyStorage, Killed
from ckptkit.testing.state import NumpyRun

LONG = timedelta(seconds=60)
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


class Homed:
    """One process of a job whose run has several homes; to kill it, drop it.

    Args:
        base: The folder of the homes.
        places: The folder of each home by its name, the root first.
        mirrors: Options of each mirror.
        options: Of the manager.
    """

    def __init__(self, base: Path, places: dict[str, str], mirrors, **options) -> None:
        self.inner = [OneAtATime(base / place) for place in places.values()]
        self.homes = {name: FaultyStorage(one) for name, one in zip(places, self.inner, strict=True)}
        root, *others = self.homes.values()
        self.manager = CheckpointManager(
            root,
            **grouped(**{"save": ON_REQUEST, "keep": KeepLatest(2), "host": "here", **options}),
            mirror=[Mirror(one, **given) for one, given in zip(others, mirrors, strict=True)],
        )
        self.run = NumpyRun(accumulation_steps=CYCLE)

    @property
    def uploads(self) -> list[Uploads]:
        return self.manager._setup.mirrors._uploads

    def restore(self, checkpoint="latest", **options):
        return self.manager.restore(self.run, checkpoint=checkpoint, **options)

    def train(self, batches: int) -> None:
        for _ in self.run.train_until(batches):
            pass

    def save_at(self, batches: int):
        """Train up to there, save, and wait for the commit and the uploads, whatever becomes of them."""
        self.train(batches)
        handle = self.manager.save(self.run)
        handle.exception()
        self.settle()
        return handle

    def saved_at(self, batches: int) -> str:
        return self.save_at(batches).result()

    def settle(self) -> None:
        """Wait for uploads, without trying again and without raising."""
        for one in self.uploads:
            one.settle(LONG.total_seconds)

    def away(self, home: str) -> Fault:
        return self.homes[home].inject(Fault("error", times=None))

    def held_at(self, home: str, batches: int, key: str = "*") -> Pause:
        """Save there; the upload waits at its first write."""
        pause = Pause()
        self.homes[home].inject(Fault(pause, operations={"write"}, key=key))
        self.train(batches)
        self.manager.save(self.run).result()
        assert pause.reached.wait(60)
        return pause

    def die(self) -> None:
        for one in self.homes.values():
            one._dead = True
        raise Killed("killed")

    def still(self) -> None:
        """Wait for the calls of a killed process that were under way."""
        for one in self.inner:
            with one.lock:
                pass


class Life(Homed):
    """Of a job with a local root and a mirror."""

    def __init__(self, base: Path, *, local="local", required=True, keep_there=None, **options) -> None:
        places = {"local": local, "mirror": "mirror"}
        super().__init__(base, places, [{"required": required, "keep": keep_there}], **options)
        self.local, self.mirror = self.homes.values()


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


def started(base: Path, *saved_at: int, kind=Life, **options) -> Homed:
    life = kind(base, **options)
    life.restore()
    life.settle()
    for batches in saved_at:
        life.saved_at(batches)
    return life


def resumed(base: Path, *, kind=Life, **options) -> tuple[Homed, str | None]:
    """A new start; what it holds is what an uninterrupted run holds there."""
    life = kind(base, **options)
    point = life.restore()
    life.settle()
    assert life.run.digest() == digest_at(point.batches_delivered)
    return life, point.checkpoint


def committed(base: Path, home: str) -> list[str]:
    return folders(tree(base / home)).committed


def files_in(there: dict[str, bytes], folder: str) -> dict[str, bytes]:
    return {key: data for key, data in there.items() if key.startswith(folder)}


def files_of(root: Path, name: str) -> dict[str, bytes]:
    return files_in(tree(root), f"checkpoints/{name}/")


def run_in(root: Path) -> dict[str, bytes]:
    """All but the events, which are at the local root only."""
    files = tree(root)
    own = {key for key in files if key.startswith("events/")}
    assert own
    return {key: data for key, data in files.items() if key not in own}


def warnings_in(caplog) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


def check_homes(base: Path, root: str = "local", *mirrors: str) -> dict[str, list[str]]:
    """What must be true of all homes after a start that reached them and the first save; what is committed at each."""
    held, at_root = {}, tree(base / root)
    for home in (root, *(mirrors or ["mirror"])):
        there = at_root if home == root else tree(base / home)
        for key in at_root.keys() | there.keys():
            if key.startswith("attempts/") or key == "run.json":
                assert there.get(key) == at_root.get(key), (home, key)
        layout = folders(there)
        held[home] = layout.committed
        for name in held[home]:
            if home == root or name not in held[root]:
                batches = int(name[9:19]) * CYCLE + int(name[21:25])
                assert digest_of(base / home, name) == digest_at(batches), (home, name)
                continue
            assert files_in(there, f"checkpoints/{name}/") == files_in(at_root, f"checkpoints/{name}/"), (home, name)
            assert files_in(there, "frozen/").items() >= files_in(at_root, "frozen/").items(), home
        if home != root:
            own = max(attempts(there))
            assert [name for name in layout.uncommitted if int(name[1:7]) < own] == [], home
            voided = [files_in(there, f"checkpoints/{name}/").keys() for name in layout.void]
            assert voided == [{f"checkpoints/{name}/COMMIT"} for name in layout.void], home
    return held


def moments(calls, actions):
    """Each of ``calls`` with something that can happen at it: of each kind of call, in turn all that can.

    No death right before a call that changes nothing: that is the one after the last call that changed something. Of
    the same call that changes nothing, every second one.
    """
    kinds, turns = {"before": EVERY, "during": DIVISIBLE, "after": MUTATING}, Counter()
    for index, call in enumerate(calls):
        changes, same = call.operation in MUTATING, (call.operation, *call.keys)
        turns[same] += 1
        likely = actions if changes else [action for action in actions if action != "kill" and turns[same] % 2]
        possible = [(when, action) for when, those in kinds.items() for action in likely if call.operation in those]
        if possible:
            when, action = possible[turns[call.operation] % len(possible)]
            turns[call.operation] += 1
            yield f"{action} {when} {index}: {call}", index + 1, when, action


def strike_each_call(base: Path, template: Path, kind, home: str, *saves: int) -> None:
    """Something happens at each call at ``home`` of a start, or else of ``saves``; then all homes go on as one run.

    Errors of a root are the same as without mirrors; of a start, those of the last home do, which is the fence.
    """

    def begin(folder: Path) -> Homed:
        shutil.copytree(template, folder)
        return started(folder, kind=kind) if saves else kind(folder)

    def go(life: Homed, done: list[str]) -> None:
        if not saves:
            life.restore()
            life.settle()
        for batches in saves:
            done.append(life.saved_at(batches))

    counted = begin(base / "counted")
    before = len(counted.homes[home].calls)
    go(counted, [])
    root, *mirrors = counted.homes
    actions = ("kill", "error") if home in (mirrors if saves else mirrors[-1:]) else ("kill",)
    for what, nth, when, action in moments(counted.homes[home].calls[before:], actions):
        folder = base / str(nth)
        struck, done = begin(folder), [name_at(1, 7)]
        fault = struck.homes[home].inject(Fault(struck.die if action == "kill" else "error", nth=nth, when=when))
        with suppress(Killed, StorageError):
            go(struck, done)
        struck.still()
        try:
            assert fault.fired == 1
            assert action == "kill" or not saves or done[1:] == [name_at(2, at) for at in saves]
            newest = max([*done, *committed(folder, root)])  # a save whose reply was lost may be there as well
            life, checkpoint = resumed(folder, kind=kind)
            assert checkpoint == newest
            last = life.saved_at(life.run.batches + 1)
            held = check_homes(folder, root, *mirrors)
            assert {names[-1] for names in held.values()} == {last}
            assert [home for home in mirrors if newest not in held[home]] == []
            life.manager.close()
        except AssertionError as error:
            raise AssertionError(f"with the fault at {what}: {error}") from error
        shutil.rmtree(folder)


@pytest.mark.parametrize("runs", [False, True])
def test_ctrl_c_at_start_of_uploads_ends(tmp_path, monkeypatch, runs):
    """Else nobody would ever say that no upload is under way, and the process would not exit."""
    started(tmp_path, 2).manager.close()
    ctrl_c = InterruptedStart(monkeypatch, "ckptkit-mirror", runs=runs)
    life = Life(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        life.restore()
    assert ctrl_c.fired == 1
    assert life.uploads[0]._idle.wait(10)
    life.manager.close()
    _, checkpoint = resumed(tmp_path)
    assert checkpoint == name_at(1, 2)


def test_final_save_of_an_uploaded_moment_looks_at_the_mirror(tmp_path):
    life = started(tmp_path, 2)
    shutil.rmtree(tmp_path / "mirror")
    assert life.manager.save_final(life.run) == name_at(1, 2)
    assert life.manager.mirror_lag == 0
    other = Life(tmp_path, local="elsewhere", host="there")
    assert other.restore().checkpoint == name_at(1, 2)
    with pytest.raises(StaleAttemptError):
        life.manager.save_final(life.run)


@pytest.mark.parametrize("lost", ["frozen", "."])
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
    check_homes(tmp_path)


def test_documents_are_shared_until_that_works(tmp_path):
    started(tmp_path, 2).manager.close()
    life = Life(tmp_path, local="new")
    away = life.local.inject(Fault("error", operations={"create"}, key="attempts/000001.json", times=3))
    assert life.restore().checkpoint == name_at(1, 2)
    life.settle()
    assert away.fired == 3
    assert attempts(tree(tmp_path / "new")).keys() == {2}
    life.saved_at(5)
    check_homes(tmp_path, "new")


@pytest.mark.parametrize(
    ("root", "file", "how"),
    [
        ("local", "rank-00000/weights-000.safetensors", "flip"),
        ("local", "COMMIT", "missing"),
        ("mirror", "COMMIT", "flip"),
        ("mirror", "manifest.json", "missing"),
    ],
)
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


def test_named_checkpoint_may_exist_only_at_mirror(tmp_path):
    started(tmp_path, 2, 5, 6, 9, keep_there=KeepLatest(9))
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


def test_commit_does_not_wait_for_mirror(tmp_path, caplog):
    """Of the checkpoints that wait for the upload, only the newest is uploaded."""
    caplog.set_level(logging.INFO, "ckptkit")
    life = started(tmp_path, on_save_error="raise")
    pause = life.held_at("mirror", 2)
    for lag, batches in enumerate((4, 5, 6), 2):
        life.train(batches)
        assert life.manager.save(life.run).result() == name_at(1, batches)
        assert life.manager.mirror_lag == lag
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
    life.mirror.inject(Fault("error", operations={"write"}, times=None))
    life.train(8)
    life.manager.save(life.run)
    with pytest.raises(SaveFailedError, match=r"the mirror .* lacks it"):  # and raises what it waited for
        life.manager.wait()


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
    check_homes(tmp_path)


def test_next_upload_removes_failed_one(tmp_path):
    life = started(tmp_path)
    life.mirror.inject(Fault("error", operations={"write"}, key="*/manifest.json"))
    life.saved_at(3)
    assert folders(tree(tmp_path / "mirror")).uncommitted == [name_at(1, 3)]
    life.saved_at(4)
    assert files_of(tmp_path / "mirror", name_at(1, 3)).keys() == {f"checkpoints/{name_at(1, 3)}/COMMIT"}
    assert committed(tmp_path, "mirror") == [name_at(1, 4)]


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


def test_interpreter_exit_waits_for_upload(tmp_path):
    """Also for one that a save begins which it has waited for."""
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

        manager = CheckpointManager(Slow({str(tmp_path / "local")!r}), mirror=Slow({str(tmp_path / "mirror")!r}))
        run = NumpyRun()
        manager.restore(run)
        manager.save(run)
        """
    done = python("-c", textwrap.dedent(code))
    begun, *others = done.stderr.splitlines()
    assert begun == f"[ckptkit] starting afresh at {tmp_path / 'local'}"
    assert [line for line in others if "is uploaded to the mirror" not in line] == []
    assert committed(tmp_path, "mirror") == committed(tmp_path, "local") == [name_at(1, 0)]


def test_a_start_without_its_mirror_is_refused(tmp_path):
    started(tmp_path, 2)
    before = tree(tmp_path)
    life = Life(tmp_path)
    life.away("mirror")
    with pytest.raises(StorageError, match=r"Mirror\(\.\.\., required=False\)") as caught:
        life.restore()
    assert isinstance(caught.value.__cause__, StorageError)
    assert tree(tmp_path) == before
    # The same manager starts once it is back.
    life.mirror.clear()
    assert life.restore().checkpoint == name_at(1, 2)


def test_emptied_local_root_needs_mirror_for_start(tmp_path):
    """With the mirror away it is no new run; once it is back, the same manager knows all that it holds."""
    started(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "local")
    life = Life(tmp_path)
    life.local.inject(Fault("error", operations={"write"}, times=None))
    life.restore()  # has the attempt's document, and not the checkpoint
    life.settle()
    before = tree(tmp_path)
    life = Life(tmp_path, required=False)
    life.away("mirror")
    with pytest.raises(StorageError, match=f"continues from {name_at(1, 2)}.*would lose it"):
        life.restore()
    assert tree(tmp_path) == before
    life.mirror.clear()
    assert life.restore().checkpoint == name_at(1, 2)
    assert [one.name for one in life.manager.checkpoints()] == [name_at(1, 1), name_at(1, 2)]


def test_mirror_that_cannot_be_listed_is_away(tmp_path, caplog):
    """A folder can be probed whatever has become of its disk."""
    life = Life(tmp_path, required=False)
    life.mirror.inject(Fault("error", operations={"list"}, key="attempts", times=None))
    assert life.restore().checkpoint is None
    assert "NO MIRROR" in caplog.text
    life.train(2)
    assert life.manager.save(life.run).result() == name_at(1, 2)


def test_late_mirror_failure_is_error_when_optional(tmp_path):
    """What it holds was looked at, and perhaps the number is taken there: going on alone would separate the two."""
    started(tmp_path, 2)
    life = Life(tmp_path, required=False)
    for operation, nth in (("list", 2), ("read", 1), ("create", 1)):
        fault = life.mirror.inject(Fault("error", operations={operation}, nth=nth, times=None))
        with pytest.raises(StorageError, match="injected"):
            life.restore()
        assert fault.fired, operation
        life.mirror.clear()
    assert life.restore().checkpoint == name_at(1, 2)


@pytest.mark.parametrize("voids", [True, False])
def test_takeover_during_upload_prevents_commit(tmp_path, voids):
    """Also if the new start could not void its folder yet: from then on, what it chose to go on from holds."""
    first = started(tmp_path, 2)
    pause = first.held_at("mirror", 3, f"checkpoints/{name_at(1, 3)}/manifest.json")
    second = Life(tmp_path, local="other")
    half = f"checkpoints/{name_at(1, 3)}/*"
    unswept = second.mirror.inject(Fault("error", operations={"create"}, key="none" if voids else half, times=None))
    assert second.restore().checkpoint == name_at(1, 2)
    second.settle()
    assert (unswept.fired > 0) == (not voids)
    pause.go()
    first.settle()
    with pytest.raises(StaleAttemptError):
        first.manager.step(first.run)
    assert folders(tree(tmp_path / "mirror")).uncommitted == [name_at(1, 3)] * (not voids)
    assert committed(tmp_path, "mirror") == [name_at(1, 2)]
    second.mirror.clear()  # swept after the next upload
    second.saved_at(4)
    assert folders(tree(tmp_path / "mirror")).void == [name_at(1, 3)]


def alone(base: Path, *saved_at: int, **options) -> None:
    """A life that does not see the mirror."""
    life = Life(base, required=False, **{"host": "alone", **options})
    life.away("mirror")
    life.restore()
    for batches in saved_at:
        life.saved_at(batches)


def test_roots_that_went_on_separately_are_an_error(tmp_path):
    started(tmp_path, 2)
    alone(tmp_path, 4)
    started(tmp_path, 3, 6, local="other", host="elsewhere")
    before = tree(tmp_path)
    for required in (True, False):
        with pytest.raises(ResumeError, match=r"continued separately.*attempt 2 .*on alone .*on elsewhere"):
            Life(tmp_path, required=required).restore()
    assert tree(tmp_path) == before
    # Each of the two ways out that the message names.
    assert resumed(tmp_path, local="new")[1] == name_at(2, 6)
    other = CheckpointManager(tmp_path / "local", mirror=tmp_path / "new mirror")
    assert other.restore(NumpyRun(accumulation_steps=CYCLE)).checkpoint == name_at(2, 4)
    other.close()


@pytest.mark.parametrize("failed", [1, 3])
def test_forgotten_starts_hide_no_separation(tmp_path, failed):
    """Starts to which no mirror was given forget their failed ones, so that the two roots may share no number."""
    started(tmp_path, 2)
    started(tmp_path, 3, 6, local="other", host="elsewhere")
    for _ in range(failed):
        CheckpointManager(tmp_path / "local").restore(NumpyRun(accumulation_steps=CYCLE))
    run = NumpyRun(accumulation_steps=CYCLE)
    with CheckpointManager(tmp_path / "local", system=System(host="alone")) as unmirrored:
        unmirrored.restore(run)
        run.train_step()
        unmirrored.save(run)
    before = tree(tmp_path)
    with pytest.raises(ResumeError, match=r"continued separately.*attempt 2 .*on elsewhere"):
        Life(tmp_path).restore()
    assert tree(tmp_path) == before


def test_upload_failing_while_leaving_costs_no_save(tmp_path):
    """It fails right before the last state is captured."""
    life = started(tmp_path, on_save_error="raise")
    pause = life.held_at("mirror", 2)
    life.mirror.inject(Fault("error", operations={"write"}, times=None))
    life.train(4)
    drain = life.manager._run.results.drain

    def fail_first(timeout=None):
        pause.go()
        life.settle()
        drain(timeout)

    life.manager._run.results.drain = fail_first
    life.manager._run.preemption.ask("a signal")
    with pytest.raises(Preempted) as raised:
        life.manager.step(life.run)
    assert [name_at(1, 2), raised.value.checkpoint] == committed(tmp_path, "local")


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
    check_homes(tmp_path)


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
def test_start_elsewhere_without_commit_sets_nothing_aside(tmp_path, restarted):
    """The mirror lags; what was committed here since is taken, also where another attempt of this root made it."""
    life = started(tmp_path, 2, 3)
    if restarted:
        life.manager.close()
        life = started(tmp_path)
    lag = life.mirror.inject(Fault("error", operations=("write",), key="checkpoints/*", times=None))
    newest = [life.saved_at(batches) for batches in (5, 6)]
    assert lag.fired
    assert set(committed(tmp_path, "mirror")).isdisjoint(newest)
    for number in range(2):
        assert resumed(tmp_path, local=f"other{number}")[1] == name_at(1, 3)
    back, checkpoint = resumed(tmp_path)
    assert checkpoint == newest[-1]
    back.saved_at(7)
    check_homes(tmp_path)


def test_start_elsewhere_that_committed_goes_on(tmp_path):
    life = started(tmp_path, 2, 3)
    life.mirror.inject(Fault("error", operations=("write",), key="checkpoints/*", times=None))
    life.saved_at(6)
    started(tmp_path, 4, local="other")
    assert resumed(tmp_path)[1] == name_at(2, 4)
    assert name_at(1, 6) in committed(tmp_path, "local")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Both roots hold 4 and 6 of attempt 1; 7 is at the local root alone, and half of it at the mirror."""
    base = tmp_path_factory.mktemp("template")
    life = started(base, 2, 4, 6)
    life.mirror.inject(Fault("kill", operations={"write"}, key=f"checkpoints/{name_at(1, 7)}/*", nth=2))
    life.saved_at(7)
    assert committed(base, "local") == [name_at(1, 6), name_at(1, 7)]
    assert committed(base, "mirror") == [name_at(1, 4), name_at(1, 6)]
    assert folders(tree(base / "mirror")).uncommitted == [name_at(1, 7)]
    return base


@pytest.mark.parametrize("home", ["local", "mirror"])
def test_fault_at_any_upload_call_loses_nothing(tmp_path, template, home):
    strike_each_call(tmp_path, template, Life, home, 8)


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


def test_uploads_work_without_threads(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    uploading = Uploading()
    one = behind(uploading)
    one.begin(A)
    one.offer(B)
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


def test_each_start_sweeps_its_mirror_once_that_works():
    """A fresh one at once, another one after an upload that ended well."""

    class Dirty(Uploading):
        def sweep(self):
            super().sweep()
            if self.sweeps == 1:
                raise StorageError("away")

    for outcomes, parent, expected in [((), None, [1, 2, 2]), ((StorageError("away"),), A, [0, 1, 2])]:
        one, sweeps = behind(uploading := Dirty(*outcomes)), []
        one.begin(parent)
        for name in (B, C, None):
            one.settle(LONG.total_seconds)
            sweeps.append(uploading.sweeps)
            if name is not None:
                one.offer(name)
        assert sweeps == expected, parent
        one.collect()  # it is no failed upload


def test_each_upload_counts_its_bytes_from_zero(tmp_path):
    """It needs no document of its own attempt, which somebody may have deleted at the local root."""
    started(tmp_path, 2, 4).manager.close()
    local, mirror = LocalStorage(tmp_path / "local"), FaultyStorage(LocalStorage(tmp_path / "new mirror"))
    uploader = Uploader([local, mirror], mirror, Index(local).document(1), "0" * 32, KeepLatest(9))
    for name in map(CheckpointName.parse, committed(tmp_path, "local")):
        before = {**mirror.walk("")}
        assert uploader.upload(name) == "copied"
        new = {key: size for key, size in mirror.walk("").items() if key not in before}
        counted = [size for key, size in new.items() if key.startswith(("checkpoints/", "frozen/"))]
        assert uploader.done_bytes == sum(counted) - new[name.commit_key]
        (tmp_path / "local/attempts/000001.json").unlink(missing_ok=True)
    mirror.calls.clear()
    assert uploader.upload(name) == "present"
    # It is made durable: whoever made its COMMIT may have died before that was.
    assert [[*call.keys] for call in mirror.calls if call.operation == "create"] == [[name.commit_key]]


AWAY = StorageError("away")


@pytest.mark.parametrize(
    ("outcomes", "times", "error", "message"),
    [
        ((AWAY, AWAY), 3, None, ""),
        ((AWAY,) * 9, 3, SaveFailedError, f"{A} is committed at memory://local, but the mirror memory://mirror lacks"),
        (("void",), 1, SaveFailedError, "give a new mirror"),
        ((KeyboardInterrupt("odd"), MemoryError(), SystemExit(3)), 3, SaveFailedError, "lacks it: 3"),
        ((StaleAttemptError("taken"),), 1, StaleAttemptError, "taken"),
    ],
)
def test_checkpoint_of_the_start_is_insisted_on(outcomes, times, error, message):
    """A run that is finished commits nothing more."""
    uploading = Uploading(*outcomes)
    one = behind(uploading)
    one.begin(A)
    one.settle(LONG.total_seconds)
    assert one.lag == 1
    if error is None:
        one.finish(LONG.total_seconds)
        one.collect()
    else:
        with pytest.raises(error, match=message):
            one.finish(LONG.total_seconds)
    assert uploading.asked == [str(A)] * times
    assert one.lag == (error is not None)
    if error is StaleAttemptError:  # always raised, and a save that had not heard of it is not uploaded
        one.offer(B)
        for tolerate in (False, True):
            with pytest.raises(error, match=message):
                one.collect(tolerate=tolerate)
        assert not one.try_again()
        assert one._idle.is_open


def test_offer_during_its_upload_uploads_once():
    class Meanwhile(Uploading):
        def upload(self, name):
            one.offer(name)
            return super().upload(name)

    one = behind(uploading := Meanwhile())
    one.begin(A)
    one.settle(LONG.total_seconds)
    assert (uploading.asked, one.lag) == ([str(A)], 0)


def test_only_urgent_uploads_do_not_give_way_to_training(monkeypatch):
    gave_way = []

    class Noted(Worker):
        def __init__(self, *arguments, gives_way):
            gave_way.append(gives_way)
            super().__init__(*arguments, gives_way=gives_way)

    monkeypatch.setattr(mirrors, "Worker", Noted)
    one = behind(Uploading())
    one.begin(A)
    one.settle(LONG.total_seconds)
    one.urge()  # of a final save: nothing trains any more
    one.offer(B)
    one.settle(LONG.total_seconds)
    assert gave_way == [True, False]


def test_a_bucket_as_mirror(tmp_path, bucket):
    run = NumpyRun(accumulation_steps=CYCLE)
    key = {"key": "testing", "secret": "testing", "endpoint_url": bucket.endpoint}
    options = {"mirror": Mirror(f"s3://{bucket.name}/runs/vit", storage_options=key), "save": ON_REQUEST}
    with CheckpointManager(tmp_path / "local", keep=KeepLatest(2), **options) as manager:
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
    with CheckpointManager(tmp_path / "local", **options) as manager:
        assert manager.restore(resumed).checkpoint == name_at(1, 6)
        assert resumed.digest() == digest_at(6)


def test_separation_during_a_start_is_found(tmp_path):
    """A trained alone; while it starts over both roots, B takes the same number at the mirror and uploads."""
    started(tmp_path, 2)
    alone(tmp_path, 4)
    life = Life(tmp_path)
    race = life.mirror.inject(
        Fault(lambda: started(tmp_path, 3, local="other", host="elsewhere"), operations={"list"}, key="checkpoints")
    )
    for start in (life, Life(tmp_path)):  # it stays told
        with pytest.raises(ResumeError, match=r"continued separately.*attempt 2 .*on alone .*on elsewhere"):
            start.restore()
    assert race.fired == 1


def test_life_alone_stays_ahead_of_what_it_knows(tmp_path):
    """This root's last start went on from what the mirror alone has, and died before it committed."""
    started(tmp_path, 2).manager.close()
    started(tmp_path, 4, local="other").manager.close()
    life = Life(tmp_path)
    life.local.inject(Fault("error", operations={"write"}, times=None))
    assert life.restore().checkpoint == name_at(2, 4)
    life.settle()
    before = tree(tmp_path)
    life = Life(tmp_path, required=False)
    life.away("mirror")
    with pytest.raises(StorageError, match=f"continued from {name_at(2, 4)}.*set it aside"):
        life.restore()
    assert tree(tmp_path) == before
    assert life.restore(name_at(1, 2)).checkpoint == name_at(1, 2)  # which somebody has named
