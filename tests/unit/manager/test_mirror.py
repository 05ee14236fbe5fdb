"""A local root with a mirror: what is newest and whole on either goes on, and the mirror is the fence."""

import errno
import functools
import logging
import os
import shutil
import textwrap
import threading
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.interrupted import InterruptedStart
from support.live import Stall
from support.options import grouped
from support.process import python
from support.runs.scenario import CYCLE, attempts, corrupt, digest_at, digest_of, folders, name_at, tree

from ckptkit.core import worker
from ckptkit.core.save_policy import SaveEvery
from ckptkit.core.waiting import Patience
from ckptkit.errors import Preempted, ResumeError, SaveFailedError, StaleAttemptError, StorageError
from ckptkit.format.documents import CopiedFrom, RunDocument, encode
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.mirrors import Uploads
from ckptkit.manager.options import ERROR_BUDGET, Mirror, System
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.run.upload import UploadPace
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

    def held_at(self, home: str, batches: int, key: str = "*") -> Stall:
        """Save there; the upload waits at its first write."""
        pause = Stall()
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

    def __init__(self, base: Path, *, local="local", required=True, **options) -> None:
        places = {"local": local, "mirror": "mirror"}
        super().__init__(base, places, [{"required": required}], **options)
        self.local, self.mirror = self.homes.values()


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
    life.settle()
    life.manager.close()
    _, checkpoint = resumed(tmp_path)
    assert checkpoint == name_at(1, 2)


def test_final_save_of_an_uploaded_moment_looks_at_the_mirror(tmp_path):
    life = started(tmp_path, 2)
    before = len(life.mirror.calls)
    assert life.saved_at(2) == name_at(1, 2)
    looked = [call.operation for call in life.mirror.calls[before:]]
    assert {"create"} < {*looked} <= {"list", "read", "create"}, "the COMMIT is made durable"
    assert len(looked) <= 5
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
    kept = {
        key: data for key, data in tree(tmp_path / "local").items() if not key.startswith(("checkpoints", "events"))
    }
    assert tree(tmp_path / "mirror").items() >= kept.items()
    shutil.rmtree(tmp_path / "local")
    assert resumed(tmp_path)[1] == name_at(2, 7)
    check_homes(tmp_path)


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
    for home in ("local", "mirror"):  # of both copies that are corrupt, both are named
        corrupt(tmp_path / home, name_at(2, 7))
    assert resumed(tmp_path)[1] == name_at(2, 6)
    (passed_over,) = attempts(tree(tmp_path / "local"))[3]["passed_over"]
    for home in ("local", "mirror"):
        assert f"at {tmp_path / home}: checkpoints/{name_at(2, 7)}" in passed_over["reason"]


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
    pause.let_go()
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
    lost = functools.partial(shutil.rmtree, tmp_path / "local/checkpoints")
    gone = Fault(lost, operations={"write"}, key=f"checkpoints/{name_at(1, 2)}/rank-00000.json")
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


@pytest.mark.parametrize("then", ["is emptied", "belongs to a later attempt", "has a COMMIT that nobody can read"])
def test_folder_of_a_failed_upload(tmp_path, then, caplog):
    """The next upload empties it, unless it may be a checkpoint of somebody else."""
    life = started(tmp_path)
    life.mirror.inject(Fault("error", operations={"write"}, key="*/manifest.json"))
    life.saved_at(3)
    before, commit = files_of(tmp_path / "mirror", name_at(1, 3)), f"checkpoints/{name_at(1, 3)}/COMMIT"
    assert before != {}
    if then == "belongs to a later attempt":  # which takes over once the job has looked for what else may go
        taken = tmp_path / "mirror/attempts/000002.json"
        takeover = Fault(lambda: taken.write_bytes(b"{}"), operations={"list"}, key="checkpoints")
        committed = {"operations": {"create"}, "key": f"checkpoints/{name_at(1, 4)}/COMMIT", "when": "after"}
        life.mirror.inject(Fault(lambda: life.mirror.inject(takeover), **committed))
    if then == "has a COMMIT that nobody can read":
        torn = Fault(lambda: (tmp_path / "mirror" / commit).write_bytes(b"{"), operations={"create"}, key=commit)
        life.mirror.inject(torn)
    life.saved_at(4)
    after = files_of(tmp_path / "mirror", name_at(1, 3))
    if then == "is emptied":
        assert after.keys() == {commit}
    elif then == "belongs to a later attempt":
        assert after == before
        with pytest.raises(StaleAttemptError):
            life.manager.step(life.run)
    else:
        assert after == {**before, commit: b"{"}
        assert f"the folder stays unchanged, at {tmp_path / 'mirror'}" in warnings_in(caplog)


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
    silent = Life(tmp_path)
    silent.mirror.inject(Fault(Mock(side_effect=TimeoutError), operations={"list"}))
    with pytest.raises(StorageError, match="cannot be reached: TimeoutError"):
        silent.restore()
    assert tree(tmp_path) == before
    # The same manager starts once it is back.
    life.mirror.clear()
    assert life.restore().checkpoint == name_at(1, 2)


@pytest.mark.parametrize("message", ["two different runs", "has not ended"])
def test_what_is_no_mirror_of_the_run_is_refused(tmp_path, message):
    """Another run, of which the first document is gone; a copy of which the last document is still to come."""
    for home, times in (("local", 1), ("mirror", 2)):
        for _ in range(times):
            with CheckpointManager(tmp_path / home) as manager:
                manager.restore(NumpyRun())
    os.unlink(tmp_path / "mirror" / "attempts" / "000001.json")
    if message == "has not ended":
        origin = CopiedFrom(url="elsewhere", run_id=None, checkpoint=None, last_attempt=3)
        unfinished = RunDocument(run_id="0" * 32, created_at="", copied_from=origin).sealed()
        (tmp_path / "mirror" / "run.json").write_bytes(encode(unfinished))
    before = tree(tmp_path)
    with pytest.raises(ResumeError, match=message):
        Life(tmp_path).restore()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("emptied", [True, False])
def test_start_without_the_mirror_sets_nothing_aside(tmp_path, emptied):
    """This root was emptied, or went on from what the mirror alone has; then a start died before it committed."""
    started(tmp_path, 1, 2).manager.close()
    if emptied:
        shutil.rmtree(tmp_path / "local")
    else:
        started(tmp_path, 4, local="other").manager.close()
    newest = name_at(1, 2) if emptied else name_at(2, 4)
    life = Life(tmp_path)
    life.local.inject(Fault("error", operations={"write"}, times=None))
    assert life.restore().checkpoint == newest  # has the attempt's document, and not the checkpoint
    life.settle()
    before = tree(tmp_path)
    life = Life(tmp_path, required=False)
    life.away("mirror")
    with pytest.raises(StorageError, match=f"continued from {newest}.*set it aside"):
        life.restore()
    assert tree(tmp_path) == before
    if not emptied:
        assert life.restore(name_at(1, 2)).checkpoint == name_at(1, 2)  # which somebody has named
        return
    life.mirror.clear()  # the same manager now knows all that it holds
    assert life.restore().checkpoint == newest
    assert [one.name for one in life.manager.checkpoints()] == [name_at(1, 1), name_at(1, 2)]


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


def test_takeover_at_the_mirror_outranks_preemption(tmp_path):
    """It is found by the upload of the last save."""
    life = started(tmp_path, 2)
    takeover = life.mirror.inject(Fault(lambda: started(tmp_path, local="other"), operations={"write"}))
    life.train(4)
    life.manager._run.preemption.ask("a signal")
    with pytest.raises(StaleAttemptError), life.manager:
        life.manager.step(life.run)
    assert takeover.fired == 1
    assert committed(tmp_path, "mirror") == [name_at(1, 2)]


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
    pause.let_go()
    first.settle()
    with pytest.raises(StaleAttemptError):
        first.manager.step(first.run)
    assert folders(tree(tmp_path / "mirror")).uncommitted == [name_at(1, 3)] * (not voids)
    assert committed(tmp_path, "mirror") == [name_at(1, 2)]
    second.saved_at(4)
    resumed(tmp_path, local="other")  # the next start sweeps what was stuck
    assert folders(tree(tmp_path / "mirror")).void == [name_at(1, 3)]


def alone(base: Path) -> None:
    """A life that does not see the mirror, and saves at 4."""
    life = Life(base, required=False, host="alone")
    life.away("mirror")
    life.restore()
    life.saved_at(4)


@pytest.mark.parametrize("died", [False, True])
def test_roots_that_went_on_separately_are_an_error(tmp_path, died):
    """Also after a start that died before it took over: it has brought to the root nothing of the other job."""
    started(tmp_path, 2)
    started(tmp_path, 3, 6, local="other", host="elsewhere")
    if died:
        life = Life(tmp_path)
        death = life.mirror.inject(Fault("kill", operations={"create"}, key="attempts/000003.json"))
        with pytest.raises(Killed):
            life.restore()
        assert death.fired
    alone(tmp_path)
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


def test_job_elsewhere_that_begins_during_a_start_is_no_less_separate(tmp_path):
    """It takes the number that this root used alone, after this start has compared the two and before it takes over."""
    started(tmp_path, 2)
    alone(tmp_path)
    life = Life(tmp_path)
    elsewhere = Fault(
        lambda: started(tmp_path, 3, 6, local="other"), operations={"read"}, key=f"*{name_at(2, 4)}/rank*"
    )
    life.local.inject(elsewhere)
    with pytest.raises(ResumeError, match="continued separately"):
        life.restore()
    assert elsewhere.fired
    assert [*attempts(tree(tmp_path / "mirror"))] == [1, 2]


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
        pause.let_go()
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
    with pytest.raises(SaveFailedError, match=f"{name_at(1, 5)} is committed .* lacks it: .* or its next one"):
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
    back.mirror.inject(Fault("error", operations=("write",), key="checkpoints/*", times=None))
    behind = back.saved_at(8)
    elsewhere = started(tmp_path, 9, local="other2")  # but one that committed
    assert resumed(tmp_path)[1] == elsewhere.manager.latest().name
    assert behind in committed(tmp_path, "local")


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
        self.pace, self.patience = UploadPace(None), Patience(LONG)
        self.asked: list[str] = []

    def upload(self, name):
        self.asked.append(str(name))
        outcome = self.outcomes.pop(0) if self.outcomes else "copied"
        if isinstance(outcome, BaseException):
            raise outcome
        return (outcome() or "copied") if callable(outcome) else outcome


def behind(uploading):
    return Uploads(Mirror("memory://mirror"), open_storage("memory://local"), uploading, tolerant=True)


A, B, C = (CheckpointName.parse(name_at(1, at)) for at in (1, 2, 3))


def test_offer_during_its_upload_is_uploaded_once():
    uploading = Uploading(lambda: uploads.offer(A))
    uploads = behind(uploading)
    uploads.offer(A)
    uploads.settle(LONG.total_seconds)
    assert (uploading.asked, len(uploads.behind)) == ([str(A)], 0)


def test_upload_that_never_ends_is_told(caplog):
    """The mirror hangs: nothing fails, and nothing is uploaded."""
    hang = Stall()
    uploads = behind(Uploading(hang))
    names = [CheckpointName.parse(name_at(1, at)) for at in range(1, 121)]
    uploads.offer(names[0])
    assert hang.reached.wait(LONG.total_seconds())
    for name in names[1:]:
        uploads.offer(name)
    assert [lag for lag in range(1, 121) if f"is {lag} commits behind" in caplog.text] == [10, 100]
    assert caplog.text.count(f"the upload of {names[0]} has not ended") == 2
    hang.let_go()
    uploads.settle(LONG.total_seconds)
    assert len(uploads.behind) == 0


def test_each_start_tidies_its_mirror_once_that_works(tmp_path):
    """After an upload, which may go on with what half of an earlier one has left; a full one before the next."""
    for fails in ("none", "walk", "write", "full"):
        base = tmp_path / fails
        life = started(base)
        life.away("mirror")
        life.saved_at(2)
        half = base / "mirror/checkpoints" / name_at(1, 1) / "manifest.json"
        half.parent.mkdir(parents=True)
        half.touch()
        life = Life(base)

        def fill(half=half) -> None:
            if half.exists():
                raise StorageError("full") from OSError(errno.ENOSPC, "no space left")

        fault = Fault(fill, operations={"write"}, times=None) if fails == "full" else Fault("error", operations={fails})
        life.mirror.inject(fault)
        life.restore()
        life.settle()
        assert half.exists() == (fails != "none"), fails
        life.saved_at(3)
        assert not half.exists(), fails
        life.manager.close()
        assert committed(base, "mirror")[-1] == name_at(2, 3), fails


AWAY = StorageError("away")


@pytest.mark.parametrize(
    ("outcomes", "times", "error", "message"),
    [
        ((AWAY, AWAY), 3, None, ""),
        ((AWAY,) * 9, 3, SaveFailedError, f"{A} is committed at memory://local, but the mirror memory://mirror lacks"),
        (("void", "void"), 2, SaveFailedError, "give a new mirror"),
        ((KeyboardInterrupt("odd"), MemoryError(), SystemExit(3)), 3, SaveFailedError, "lacks it: 3"),
        ((StaleAttemptError("taken"),), 1, StaleAttemptError, "taken"),
    ],
)
def test_checkpoint_of_the_start_is_insisted_on(outcomes, times, error, message):
    """A run that is finished commits nothing more."""
    uploading = Uploading(*outcomes)
    one = behind(uploading)
    one.offer(A)
    one.settle(LONG.total_seconds)
    assert len(one.behind) == 1
    if error is None:
        one.finish(LONG.total_seconds)
        one.collect()
    else:
        with pytest.raises(error, match=message):
            one.finish(LONG.total_seconds)
    assert uploading.asked == [str(A)] * times
    assert len(one.behind) == (error is not None)
    if error is StaleAttemptError:  # always raised, and a save that had not heard of it is not uploaded
        one.offer(B)
        for tolerate in (False, True):
            with pytest.raises(error, match=message):
                one.collect(tolerate=tolerate)
        assert not one.try_again()
        one.settle(lambda: 0.0)
