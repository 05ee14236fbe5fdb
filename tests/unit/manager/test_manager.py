from __future__ import annotations

import atexit
import dataclasses
import errno
import gc
import itertools
import json
import logging
import math
import multiprocessing
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import numpy as np
import pytest
from support.interrupted import InterruptedStart
from support.options import grouped
from support.process import forked, python
from support.runs.grown import ON_REQUEST, WatchedRun, grow, opened, run_at, train

from ckptkit.checkpoint.read import load
from ckptkit.core import worker
from ckptkit.core.contents import Capture
from ckptkit.core.progress import Progress, ResumePoint
from ckptkit.core.save_policy import SaveEvery
from ckptkit.core.save_report import SaveCost
from ckptkit.core.tensors import leaf_of
from ckptkit.core.worker import Latch, Worker
from ckptkit.errors import (
    CheckpointNotFoundError,
    CkptKitError,
    ResumeError,
    SaveFailedError,
    StaleAttemptError,
    StateMismatchError,
    StorageError,
)
from ckptkit.manager import process
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.mirrors import Chain
from ckptkit.manager.options import ERROR_BUDGET, Preemption, Saving, System
from ckptkit.manager.run import Run
from ckptkit.manager.writer import SaveHandle, SaveResults
from ckptkit.run.keep_policy import KeepBest, KeepLatest
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

MOMENT = timedelta(milliseconds=10)
LONG = timedelta(seconds=60)


class Valve(LocalStorage):
    """A local root whose writes can be held back, or made to fail."""

    def __init__(self, root) -> None:
        super().__init__(root)
        self._open = threading.Event()
        self._open.set()
        self.reached = threading.Event()
        self.failures_to_come = 0
        self.failed = 0

    def close(self) -> None:
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def write(self, key, stream, size_bytes) -> None:
        self.reached.set()
        assert self._open.wait(LONG.total_seconds())
        if self.failures_to_come:
            self.failures_to_come -= 1
            self.failed += 1
            cause = OSError(errno.ENOSPC, "No space left on device")
            raise StorageError(f"could not write {key}: disk full, failure {self.failed}") from cause
        super().write(key, stream, size_bytes)


@pytest.fixture
def valve(root) -> Iterator[Valve]:
    valve = Valve(root)
    yield valve
    valve.open()  # so that the writer thread ends whatever the test did


def started(storage, state=None, **options) -> tuple[CheckpointManager, WatchedRun]:
    state = state or WatchedRun()
    manager = CheckpointManager(storage, **grouped(**{"save": ON_REQUEST, "keep": KeepLatest(100), **options}))
    manager.restore(state)
    return manager, state


def names(manager) -> list[str]:
    return [one.name for one in manager.checkpoints()]


def warnings_in(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# Starting


def test_nothing_is_written_before_restore(root):
    manager = CheckpointManager(root)
    assert manager.checkpoints() == []
    assert manager.latest() is None
    assert not root.exists()


@pytest.mark.parametrize("verb", ["step", "save", "save_final"])
def test_saving_needs_a_restore_first(root, verb):
    with pytest.raises(ResumeError, match=r"call restore\(state\) before the first save"):
        getattr(CheckpointManager(root), verb)(run_at(1))
    assert not root.exists()


@pytest.mark.parametrize("closed", [False, True])
def test_a_manager_restores_once(root, closed):
    manager, run = started(root)
    if closed:
        manager.close()
    with pytest.raises(ResumeError, match="restored already"):
        manager.restore(run)


@pytest.mark.parametrize(
    ("option", "value"),
    [("when_busy", "queue"), ("when_busy", None), ("on_error", "ignore"), ("buffer_bytes", 0)],
)
def test_unknown_options_are_refused(option, value):
    with pytest.raises(ValueError, match=f"{option} must be .* got {value!r}"):
        Saving(**{option: value})


def test_fresh_start_changes_nothing_without_checkpoint(root):
    run = WatchedRun()
    before = run.digest()
    assert CheckpointManager(root).restore(run) == ResumePoint()
    assert (run.applied, run.digest()) == ([], before)


@pytest.mark.parametrize("killed_at", range(1, 13))
def test_resumed_run_ends_with_uninterrupted_bits(root, killed_at):
    manager, run = started(root, save=SaveEvery(micro_steps=1))
    for _ in run.train_until(killed_at):
        manager.step(run).result()
    resumed = WatchedRun()
    point = CheckpointManager(root).restore(resumed)
    progress = run.progress()
    assert point == ResumePoint.at(progress, f"a000001-c{progress.cycles:010d}-m{progress.micro_step:04d}")
    train(resumed, 13)
    assert resumed.digest() == run_at(13).digest()


def test_a_state_that_does_not_fit_fences_nobody(root):
    manager, run = started(root)
    manager.save(run).result()
    with pytest.raises(StateMismatchError):
        CheckpointManager(root).restore(NumpyRun(size=9))
    assert os.listdir(root / "attempts") == ["000001.json"]
    train(run, 2)
    assert manager.save(run).exception() is None


def test_missing_checkpoint_is_not_found(root):
    grow(root, 2)
    with pytest.raises(CheckpointNotFoundError, match="there are: a000001-c0000000000-m0002"):
        CheckpointManager(root).restore(WatchedRun(), checkpoint="a000001-c0000000009-m0000")


# What is saved


def test_checkpoints_and_latest_tell_what_is_there(root):
    noon = datetime(2024, 5, 17, 12, tzinfo=timezone.utc)
    manager, run = started(root, clock=lambda: noon)
    for at in (2, 4, 7):
        train(run, at)
        manager.save(run, {"loss": at / 2}).result()
    listed = manager.checkpoints()
    assert [one.name for one in listed] == [
        "a000001-c0000000000-m0002",
        "a000001-c0000000001-m0000",
        "a000001-c0000000001-m0003",
    ]
    assert manager.latest() == listed[-1]
    assert listed[-1].progress == run.progress()
    assert [one.metrics for one in listed] == [{"loss": 1.0}, {"loss": 2.0}, {"loss": 3.5}]
    assert {one.created_at for one in listed} == {noon.isoformat()}
    assert {(one.attempt, one.problem) for one in listed} == {(1, None)}
    shards = [path.stat().st_size for path in root.rglob("*.safetensors") if listed[-1].name in str(path)]
    frozen = [path.stat().st_size for path in (root / "frozen").rglob("*.safetensors")]
    assert listed[-1].size_bytes == sum(shards) + sum(frozen)
    assert manager.url == str(root)


def test_a_save_at_a_boundary_holds_no_accumulators(root):
    manager, run = started(root)
    held = {}
    for at in (3, 4):
        train(run, at)
        contents = load(LocalStorage(root), opened(LocalStorage(root), manager.save(run).result()))
        held[at] = (
            {name: one.role for name, one in contents.entries.items()},
            sorted(p.name for p in (root / "checkpoints" / contents.checkpoint).rglob("*.s*")),
        )
    assert "accumulators" in held[3][0].values()
    assert "accumulators-000.safetensors" in held[3][1]
    assert "accumulators" not in held[4][0].values()
    assert held[4][1] == ["optimizer-000.safetensors", "weights-000.safetensors"]


def test_metrics_that_are_not_finite_become_none(root):
    manager, run = started(root)
    manager.save(run, {"nan": np.nan, "inf": np.inf, "minus": -np.inf, "fine": 0.5}).result()
    assert manager.latest().metrics == {"nan": None, "inf": None, "minus": None, "fine": 0.5}


@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), np.array(0.5), 0.5])
def test_metrics_may_be_numpy_numbers(root, value):
    manager, run = started(root)
    manager.save(run, {"loss": value}).result()
    assert manager.latest().metrics == {"loss": 0.5}


def test_metric_that_is_no_number_is_refused(root):
    manager, run = started(root)
    with pytest.raises((TypeError, ValueError)):
        manager.save(run, {"loss": "low"})
    assert names(manager) == []
    assert manager.save(run).exception() is None


def test_saving_advances_no_random_generator(root):
    random.seed(3)
    np.random.seed(3)
    before = random.getstate(), np.random.get_state()
    manager, run = started(root, save=SaveEvery(micro_steps=1))
    for _ in run.train_until(6):
        manager.step(run).result()
    manager.save_final(run)
    manager.close()
    CheckpointManager(root).restore(WatchedRun())
    after = random.getstate(), np.random.get_state()
    assert before[0] == after[0]
    assert all(np.array_equal(one, other) for one, other in zip(before[1], after[1], strict=True))


def test_training_does_not_change_what_is_being_written(valve, root):
    manager, run = started(valve)
    train(run, 6)
    valve.close()
    handle = manager.save(run)
    train(run, 11)
    run.embedding[:] = 0
    assert not handle.done()
    valve.open()
    handle.result()
    restored = WatchedRun()
    CheckpointManager(root).restore(restored)
    assert restored.digest() == run_at(6).digest()


class LiveState(NumpyRun):
    """Gives its own nested state, which a capture may only reference."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = {"seen": [1, 2], "best": {"loss": 0.5}}

    def capture(self) -> Capture:
        capture = super().capture()
        return dataclasses.replace(capture, state={**capture.state, "notes": self.notes})


def test_training_does_not_change_json_state_being_written(valve, root):
    manager, run = started(valve, LiveState())
    valve.close()
    handle = manager.save(run)
    run.notes["seen"].append(3)
    run.notes["best"]["loss"] = 0.1
    valve.open()
    contents = load(LocalStorage(root), opened(LocalStorage(root), handle.result()))
    assert contents.state["notes"] == {"seen": [1, 2], "best": {"loss": 0.5}}


class Morphing(NumpyRun):
    """One tensor changes its shape or dtype from save to save."""

    extra = np.zeros(0)

    def capture(self) -> Capture:
        capture = super().capture()
        return Capture(capture.progress, (*capture.leaves, leaf_of("extra", self.extra, role="state")), capture.state)


def test_buffers_are_reused_without_mixing_saves(root):
    manager, run = started(root, Morphing())
    arrays = [
        np.arange(4.0),
        np.arange(4.0) + 1,
        np.arange(2.0),
        np.array(5.0),
        np.arange(4, dtype=np.int64),
        np.arange(6.0).reshape(2, 3)[:, ::2],
        np.empty(0),
    ]
    for at, array in enumerate(arrays, start=1):
        train(run, at)
        run.extra = array
        contents = load(LocalStorage(root), opened(LocalStorage(root), manager.save(run).result()))
        found = contents.tensors["extra"]
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


class UpdatesNext(WatchedRun):
    """Goes on within the save, as a train cell whose next call updates: there is no later moment to fence at."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = ["before"]

    def capture(self) -> Capture:
        capture = super().capture()
        return dataclasses.replace(capture, state={**capture.state, "user": self.notes})

    def guard(self, fence) -> None:
        fence()
        self.weights += 1
        self.notes.append("after")


def test_state_that_goes_on_immediately_is_whole(root):
    run = UpdatesNext()
    before = run.weights.copy()
    with CheckpointManager(root, save=ON_REQUEST) as manager:
        manager.restore(run)
        train(run, 1)
        name = manager.save(run).result()
    assert run.notes == ["before", "after"]
    storage = LocalStorage(root)
    stored = load(storage, opened(storage, name))
    assert np.array_equal(stored.tensors["weights"], before)
    assert stored.state["user"] == ["before"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_save_that_does_not_begin_holds_nothing(root, error):
    """A fence would wait for a writer that there is not."""

    class Interrupted(WatchedRun):
        errors = (error(),)

        def guard(self, fence) -> None:
            while self.errors:
                one, *self.errors = self.errors
                raise one

    manager, run = started(root, Interrupted(), buffer_bytes=1)
    train(run, 1)
    with pytest.raises(error):
        manager.save(run)
    assert not manager._run._window.is_open
    assert manager.save(run).result()
    manager.close()


# When it saves


def saved_at(manager, run, last) -> list[int]:
    at = []
    for batches in run.train_until(last):
        if (handle := manager.step(run)) is not None:
            handle.result()
            at.append(batches)
    return at


def test_step_saves_when_due_once_per_progress(root):
    manager, run = started(root, save=SaveEvery(optimizer_steps=2) | SaveEvery(micro_steps=5))
    assert saved_at(manager, run, 17) == [5, 8, 10, 15, 16]
    train(run, 20)
    assert manager.step(run) is not None
    manager.wait()
    assert manager.step(run) is None
    assert len(names(manager)) == 6


def test_aligned_save_is_due_once(root):
    """At the boundaries after 6, 12, 18 and 24 micro-steps, and at none between."""
    manager, run = started(root, save=SaveEvery(micro_steps=6), mid_cycle="align")
    assert saved_at(manager, run, 24) == [8, 12, 20, 24]


def test_a_rewound_save_holds_its_cycle_s_start(root):
    manager, run = started(root, save=SaveEvery(micro_steps=3), mid_cycle="rewind", when_busy="wait")
    for _ in run.train_until(7):
        manager.step(run)
    manager.close()
    assert names(manager) == ["a000001-c0000000000-m0000", "a000001-c0000000001-m0000"]
    restored = WatchedRun()
    assert CheckpointManager(root).restore(restored).batches_delivered == 4
    train(restored, 7)
    assert restored.digest() == run.digest()


def test_a_rewound_save_is_due_once_a_cycle(root):
    manager, run = started(root, save=SaveEvery(micro_steps=1), mid_cycle="rewind")
    assert saved_at(manager, run, 9) == [1, 4, 8]
    assert manager.save(run).result() == "a000001-c0000000002-m0001"  # outright: as it is
    manager.close()


@pytest.mark.parametrize("save", [lambda *both: both[0].save(both[1]).result(), CheckpointManager.save_final])
def test_rewinding_knows_cycles_begun_at_other_saves(root, save):
    """A save that was asked for, and a restore, begin a cycle as a step does."""
    manager, run = started(root, save=SaveEvery(micro_steps=6), mid_cycle="rewind")
    train(run, 4)
    save(manager, run)
    train(run, 6)
    assert manager.step(run) is None  # its start is stored
    manager.close()
    manager, run = started(root, save=SaveEvery(micro_steps=6), mid_cycle="rewind")
    train(run, 6)
    manager.step(run)
    manager.close()
    assert {name.partition("-")[2] for name in names(manager)} == {"c0000000001-m0000"}


class Kept:
    """What a save writes, and whether it was let go."""

    released = 0
    shards = ()
    by_slices = False
    cost = SaveCost()

    def release(self):
        self.released += 1

    def advance(self, micro_steps_left):
        return True


def dies_at_once(worker):
    """A thread that ends without a word once it has begun."""
    worker._runs["runs"] = True


@pytest.mark.parametrize("how", ["no thread", "dead thread"])
def test_save_without_a_thread_lets_memory_go(monkeypatch, how):
    """Else the fence would wait for a writer that there is not."""

    def start(thread):
        raise RuntimeError("can't start new thread")

    if how == "no thread":
        monkeypatch.setattr(threading.Thread, "start", start)
    else:
        monkeypatch.setattr(Worker, "_begin", dies_at_once)
    handle = SaveHandle(kept := Kept())
    handle.start(lambda: None, lambda saved: saved)
    assert isinstance(handle.exception(timedelta(seconds=30)), CkptKitError if how == "dead thread" else RuntimeError)
    assert handle.done()
    assert isinstance(handle.exception(), RuntimeError if how == "no thread" else SaveFailedError)
    assert kept.released == 1


@pytest.mark.parametrize("has_thread", [False, True])
def test_withdrawal_that_is_interrupted_ends_the_save(monkeypatch, has_thread):
    """Ctrl-C, and Ctrl-C again while the first one is dealt with."""

    class Interrupted(Kept):
        def release(self):
            super().release()
            if self.released == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    handle = SaveHandle(kept := Interrupted())
    if has_thread:
        handle.start(lambda: None, lambda saved: saved)
    with pytest.raises(KeyboardInterrupt):
        handle.withdraw(KeyboardInterrupt())
    assert handle.done()
    assert isinstance(handle.exception(), SaveFailedError)
    assert kept.released == 2


@pytest.mark.parametrize("runs", [False, True])
def test_ctrl_c_at_thread_start_tears_nothing(root, monkeypatch, runs):
    """Whether the thread runs or not: no second save runs beside it, and none is waited for that never began."""
    slow = Fault(lambda: threading.Event().wait(0.05), operations={"write", "create"}, times=99)
    with CheckpointManager(FaultyStorage(LocalStorage(root), [slow]), save=ON_REQUEST) as manager:
        manager.restore(run := NumpyRun())
        train(run, 4)
        first = manager.save(run).result()
        train(run, 8)
        ctrl_c = InterruptedStart(monkeypatch, "ckptkit-writer", runs=runs)
        with pytest.raises(KeyboardInterrupt):
            manager.save(run)
        last = manager.save_final(run)
    assert ctrl_c.fired == 1
    assert slow.fired > 0
    assert names(manager) == [first, last]
    assert not manager._run._window.is_open
    assert not [one for one in process.AT_EXIT._callbacks if getattr(one, "__func__", None) is SaveHandle.finish]
    again = CheckpointManager(root, save=ON_REQUEST)
    assert again.restore(resumed := NumpyRun()).checkpoint == last
    assert resumed.digest() == run.digest()


def test_save_takes_locks_that_ctrl_c_cannot_leak(root):
    """A Condition's own ``with`` is Python code: Ctrl-C right after it took its lock would leave the lock taken."""
    taken = []

    def note(frame, event, arg):
        if event == "call" and frame.f_code is threading.Condition.__enter__.__code__:
            caller = frame.f_back.f_code.co_filename
            if os.sep + "ckptkit" + os.sep in caller:
                taken.append(caller)

    manager, run = started(root)
    train(run, 2)
    sys.setprofile(note)
    try:
        manager.save(run).result()
        train(run, 2)
        manager.save_final(run)
        manager.close()
    finally:
        sys.setprofile(None)
    assert taken == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_save_under_way_outlives_process_of_multiprocessing(root, method):
    context = multiprocessing.get_context(method)
    child = context.Process(target=_save_and_return, args=(root,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert names(CheckpointManager(root)) == ["a000001-c0000000001-m0000"]


def _save_and_return(root):
    slow = Fault(lambda: threading.Event().wait(0.2), operations={"create"}, times=99)
    manager = CheckpointManager(FaultyStorage(LocalStorage(root), [slow]), save=ON_REQUEST)
    manager.restore(run := NumpyRun())
    train(run, 4)
    manager.save(run)


def test_interrupted_save_keeps_no_update_waiting(root):
    def clock():
        if run.batches == 2:
            raise KeyboardInterrupt
        return datetime.now(timezone.utc)

    run = WatchedRun()
    manager = CheckpointManager(root, save=ON_REQUEST, system=System(clock=clock))
    manager.restore(run)
    train(run, 2)
    with pytest.raises(KeyboardInterrupt):
        manager.save(run)
    assert not manager._run._window.is_open
    train(run, 5)
    assert manager.save(run).result() == "a000001-c0000000001-m0001"
    manager.close()


def test_writer_is_told_how_far_the_update_is(root, monkeypatch):
    told = []

    def advance(self, progress):
        told.append(progress.accumulation_steps - progress.micro_step)

    monkeypatch.setattr(Run, "_advance", advance)
    manager, run = started(root)
    for _ in run.train_until(5):
        manager.step(run)
    manager.close()
    assert told == [3, 2, 1, 4, 3]


def test_failed_save_keeps_no_update_waiting(valve):
    manager, run = started(valve)
    train(run, 2)
    valve.failures_to_come = 1
    assert manager.save(run).exception() is not None
    assert not manager._run._window.is_open
    manager.close()


def test_manifest_tells_what_the_call_cost(root, monkeypatch):
    """The writer may be done before the call returns."""
    ticks = itertools.count()
    monkeypatch.setattr(SaveHandle, "start", lambda handle, save, report, *_, **__: handle.end(report(save())))
    manager = CheckpointManager(root, save=ON_REQUEST, system=System(monotonic=lambda: float(next(ticks))))
    manager.restore(run := NumpyRun())
    train(run, 2)
    name = manager.save(run).result()
    manager.close()
    cost = json.loads((root / "checkpoints" / name / "manifest.json").read_bytes())["cost"]
    assert cost["stall_seconds"] > 0


def test_rewound_save_never_goes_below_a_commit(root):
    """The names of an attempt are in the order of training: prune and retention rely on that."""
    manager, run = started(root, save=SaveEvery(micro_steps=3), mid_cycle="rewind")
    train(run, 4)
    assert manager.step(run) is None
    train(run, 6)
    name = manager.save(run).result()
    assert name == "a000001-c0000000001-m0002"
    assert manager.step(run) is None, "the start of the cycle lies before what is committed"
    manager.close()
    assert names(manager) == [name]


def test_cycle_whose_start_nobody_saw_is_stored_exactly(root):
    manager, run = started(root, save=SaveEvery(micro_steps=6), mid_cycle="rewind")
    train(run, 6)  # without a step at the boundary
    assert manager.step(run).result() == "a000001-c0000000001-m0002"
    manager.close()


@pytest.mark.parametrize("when", ["before the save", "during the save"])
def test_given_up_window_reads_nothing_in_place(valve, when):
    """From then on others may write to the parameters at any time."""
    manager = CheckpointManager(valve, save=ON_REQUEST)
    run = WatchedRun()
    manager.restore(run)
    if when == "before the save":
        manager.live().give_up_window()
    train(run, 4)
    digest = run.digest()
    valve.close()
    handle = manager.save(run)
    if when == "during the save":
        manager.live().give_up_window()
    run.weights[:] = 7
    run.moments[:] = 7
    valve.open()
    assert handle.result(LONG)
    restored = WatchedRun()
    CheckpointManager(valve.url).restore(restored)
    assert restored.digest() == digest


def test_defaults_save_every_100_cycles_and_keep_three(root):
    run = WatchedRun()
    manager = CheckpointManager(root)
    manager.restore(run)
    assert saved_at(manager, run, 1700) == [400, 800, 1200, 1600]
    assert [one.progress.cycles for one in manager.checkpoints()] == [200, 300, 400]


def test_interval_counts_from_start_then_last_save(root):
    now = [1000.0]
    manager, run = started(root, save=SaveEvery(interval=timedelta(seconds=10)), monotonic=lambda: now[0])
    saved = []
    for batches, elapsed in enumerate([0, 9.9, 10, 15, 19.9, 31, 40.9, 41, 42], start=1):
        now[0] = 1000.0 + elapsed
        train(run, batches)
        if (handle := manager.step(run)) is not None:
            handle.result()
            saved.append(elapsed)
    assert saved == [10, 31, 41]


def test_a_save_on_request_restarts_the_interval(root):
    now = [0.0]
    manager, run = started(root, save=SaveEvery(interval=timedelta(seconds=10)), monotonic=lambda: now[0])
    now[0] = 9.0
    manager.save(run).result()
    train(run, 1)
    now[0] = 18.0
    assert manager.step(run) is None
    now[0] = 19.0
    assert manager.step(run) is not None
    manager.close()


def test_busy_writer_defers_save_to_next_multiple(valve):
    manager, run = started(valve, save=SaveEvery(micro_steps=2))
    valve.close()
    handles = {batches: manager.step(run) for batches in run.train_until(5)}
    assert [batches for batches, handle in handles.items() if handle] == [2]
    assert manager.skipped_saves == 1
    valve.open()
    handles[2].result()
    assert saved_at(manager, run, 9) == [6, 8]
    assert manager.skipped_saves == 1
    assert [one.progress.batches_delivered for one in manager.checkpoints()] == [2, 6, 8]


class OpensWhenAsked:
    """A schedule that is always due, and opens the valve when it is asked: after step has looked at the writer."""

    def __init__(self, valve: Valve) -> None:
        self.valve = valve

    def due(self, progress: Progress, since_last_save: timedelta) -> bool:
        self.valve.open()
        return True


@pytest.mark.parametrize(("when_busy", "skipped", "saved"), [("wait", 0, [1, 2]), ("skip", 1, [1])])
def test_when_busy(valve, when_busy, skipped, saved):
    manager, run = started(valve, save=OpensWhenAsked(valve), when_busy=when_busy)
    train(run, 1)
    valve.close()
    first = manager.save(run)
    assert valve.reached.wait(LONG.total_seconds())
    train(run, 2)
    second = manager.step(run)
    assert (second is None) == (when_busy == "skip")
    if when_busy == "wait":
        assert first.done()
    manager.wait()
    assert manager.skipped_saves == skipped
    assert [one.progress.batches_delivered for one in manager.checkpoints()] == saved


def test_skipped_saves_are_logged_once_then_counted(caplog):
    caplog.set_level(logging.INFO, "ckptkit")
    outcomes = SaveResults("root", 3, None)
    for number in range(1, 110):
        outcomes.begin(number, SaveHandle(None))
        outcomes.skip(timedelta(0))
        outcomes.skip(timedelta(0))  # an interval that has passed stays due
    assert outcomes.skipped_saves == 109
    assert [record.getMessage() for record in caplog.records] == [
        "a save is due and skipped, because the previous one is still being written; later skips are counted",
        "10 saves were due while the previous one was still being written",
        "100 saves were due while the previous one was still being written",
    ]


def test_save_that_never_ends_is_told_again(root, caplog):
    """The storage hangs, such as a network file system without its server: nothing fails, and nothing is saved."""
    now, go_on = [0.0], threading.Event()
    storage = FaultyStorage(LocalStorage(root))
    manager, run = started(storage, save=SaveEvery(optimizer_steps=1), monotonic=lambda: now[0], events=False)
    fault = storage.inject(Fault(lambda: go_on.wait(LONG.total_seconds()), operations={"write"}, key="*/manifest.json"))
    told = []
    for minute in range(100):
        now[0] = 60.0 * minute
        train(run, 4)
        manager.step(run)
        told += [minute] * caplog.text.count("training continues without new checkpoints")
        caplog.clear()
    go_on.set()
    manager.wait()
    assert fault.fired == 1
    assert told == [10, 20, 40, 80]


def test_save_skipped_for_another_rank_counts():
    """This one has nothing in flight, neither before its first save nor after one."""
    outcomes = SaveResults("root", 3, None)
    outcomes.skip(timedelta(0))
    assert outcomes.skipped_saves == 1
    outcomes.begin(1, SaveHandle(None))
    outcomes.skip(timedelta(0))
    assert outcomes.skipped_saves == 2


def test_one_save_is_in_flight_at_a_time(root):
    class Counting(LocalStorage):
        inside = 0
        most = 0

        def write(self, key, stream, size_bytes):
            self.inside += 1
            self.most = max(self.most, self.inside)
            super().write(key, stream, size_bytes)
            self.inside -= 1

    storage = Counting(root)
    manager, run = started(storage)
    for _ in run.train_until(8):
        manager.save(run)
    manager.close()
    assert storage.most == 1
    assert len(list(root.glob("checkpoints/*/COMMIT"))) == 8


def test_the_same_progress_is_not_written_again(root):
    manager, run = started(root)
    train(run, 3)
    name = manager.save(run).result()
    files = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    assert manager.save(run).result() == name
    assert manager.save_final(run) == name
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()} == files


def test_new_metrics_are_saved_with_their_moment(root):
    manager, run = started(root)
    train(run, 3)
    name = manager.save(run, {"loss": 1.0}).result()
    assert manager.save(run).result() == manager.save(run, {"loss": 1.0}).result() == name
    for metrics in ({"accuracy": 0.5}, {"accuracy": math.nan}):
        last = manager.save(run, metrics).result()
        assert {manager.save(run, {}).result(), manager.save_final(run, metrics), last} == {last}
    assert [(one.name, one.metrics) for one in manager.checkpoints()] == [
        (name, {"loss": 1.0}),
        (f"{name}-t02", {"accuracy": 0.5}),
        (f"{name}-t03", {"accuracy": None}),
    ]
    restored = WatchedRun()
    CheckpointManager(root).restore(restored)
    assert restored.applied == [f"{name}-t03"]
    assert restored.digest() == run.digest()


@pytest.mark.parametrize("save", [lambda *both: both[0].save(*both[1:]).result(), CheckpointManager.save_final])
def test_best_state_is_kept_if_evaluated_later(root, save):
    """The loop's step has saved it before its metrics are known."""
    manager, run = started(root, save=SaveEvery(micro_steps=4), keep=KeepBest(1, "accuracy", "max"))
    for epoch, accuracy in enumerate([0.5, 0.99, 0.6, 0.6, 0.6], 1):
        for _ in run.train_until(4 * epoch):
            manager.step(run)
        save(manager, run, {"accuracy": accuracy})
    manager.close()
    assert [one.metrics["accuracy"] for one in manager.checkpoints() if one.metrics] == [0.99, 0.6]


@pytest.mark.parametrize("failures", [1, ERROR_BUDGET])
def test_failed_save_of_metrics_is_a_failed_save(valve, failures):
    """Its moment is committed without them."""
    manager, run = started(valve)
    name = manager.save(run).result()
    valve.failures_to_come = failures
    assert isinstance(manager.save(run, {"accuracy": 0.5}).exception(), StorageError)
    assert manager.save(run).result() == name
    assert names(manager) == [name]


def lose(root, what) -> None:
    """Take the last commit away from a job that lives."""
    if what == "the run":
        shutil.rmtree(root)
    elif what == "the checkpoints":
        shutil.rmtree(root / "checkpoints")
    else:
        [commit] = root.glob("checkpoints/*/COMMIT")
        commit.write_bytes(b"torn")


@pytest.mark.parametrize("what", ["the run", "the checkpoints", "a whole COMMIT"])
@pytest.mark.parametrize("verb", ["save", "save_final", "step"])
def test_lost_commit_is_saved_again(root, verb, what):
    manager, run = started(root, save=SaveEvery(micro_steps=1))
    train(run, 3)
    name = manager.step(run).result()
    lose(root, what)
    if verb != "save_final":
        assert "COMMIT" in str(manager.save(run).exception())
    answer = getattr(manager, verb)(run)
    assert (answer if verb == "save_final" else answer.result()) == f"{name}-t02"
    manager.close()
    restored = WatchedRun()
    CheckpointManager(root).restore(restored)
    assert restored.applied == [f"{name}-t02"]
    assert restored.digest() == run.digest()


def test_confirmed_commit_is_no_second_save(root):
    """It is looked at: that is neither a capture, nor a save that is reported or counted."""
    told = []
    storage = FaultyStorage(LocalStorage(root))
    manager, run = started(storage, on_save=told.append)
    name = manager.save(run).result()
    run.capture = None
    storage.calls.clear()
    assert manager.save_final(run) == name
    assert [(call.operation, *call.keys) for call in storage.calls] == [
        ("list", "attempts"),
        ("read", "attempts/000001.json"),
        ("read", f"checkpoints/{name}/COMMIT"),
    ]
    assert manager.totals.saves == len(told) == 1


def test_failed_look_at_commit_costs_no_save(root):
    storage = FaultyStorage(LocalStorage(root))
    manager, run = started(storage)
    name = manager.save(run).result()
    run.capture = None
    storage.inject(Fault("error", operations={"list"}, key="attempts", times=ERROR_BUDGET - 1))
    assert manager.save_final(run) == name
    assert names(manager) == [name]


def test_a_failed_save_is_repeated_under_another_name(valve):
    manager, run = started(valve)
    train(run, 3)
    valve.failures_to_come = 1
    assert manager.save(run).exception() is not None
    assert manager.save(run).result() == "a000001-c0000000000-m0003-t02"
    assert names(manager) == ["a000001-c0000000000-m0003-t02"]
    restored = WatchedRun()
    CheckpointManager(valve.url).restore(restored)
    assert restored.digest() == run.digest()


# Handles and deadlines


def test_a_handle_of_a_save_that_ends_well(valve):
    manager, run = started(valve)
    valve.close()
    handle = manager.save(run)
    assert not handle.done()
    with pytest.raises(TimeoutError, match="continues in the background"):
        handle.result(MOMENT)
    with pytest.raises(TimeoutError, match="continues in the background"):
        handle.exception(MOMENT)
    valve.open()
    assert handle.result(LONG) == "a000001-c0000000000-m0000"
    assert handle.done()
    assert handle.exception() is None
    assert names(manager) == [handle.result()]


def test_a_handle_of_a_save_that_fails(valve):
    manager, run = started(valve)
    valve.failures_to_come = 1
    handle = manager.save(run)
    error = handle.exception(LONG)
    assert isinstance(error, StorageError)
    assert error.__cause__.errno == errno.ENOSPC
    with pytest.raises(StorageError, match="disk full") as caught:
        handle.result()
    assert caught.value is error
    assert handle.done()


def test_asking_a_handle_again_and_again_ends(root):
    """Its writer waits for slices, which only the training thread takes."""
    manager, run = started(root, window="slice", buffer_bytes=1)
    handle = manager.save(run)
    until = time.monotonic() + LONG.total_seconds()
    while not handle.done():
        assert time.monotonic() < until
    assert names(manager) == [handle.result()]


def test_only_the_writer_has_the_lowest_priority_until_it_is_awaited(root):
    """On busy cores, it gets a hundredth of one: a preemption would not wait so long."""
    begun, awaited = threading.Event(), threading.Event()

    class Watched(LocalStorage):
        def write(self, key, stream, size_bytes):
            seen.append((threading.current_thread().name, priority()))
            begun.set()
            assert awaited.wait(LONG.total_seconds())
            seen.append((threading.current_thread().name, priority()))
            super().write(key, stream, size_bytes)

    def priority():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def wait(self, seconds):
        awaited.set()
        return waiting(self, seconds)

    seen: list[tuple[str, int]] = []
    before, waiting = priority(), Latch.wait
    manager, run = started(Watched(root))
    handle = manager.save(run)
    assert begun.wait(LONG.total_seconds())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Latch, "wait", wait)  # which the thread that waits for the save calls
        handle.result()
    low = worker._lowest()
    assert {name for name, _ in seen} == {"ckptkit-writer"}
    assert [number for _, number in seen][:2] == [low, before if low == 19 else low]
    seen.clear()
    run.train_step()
    manager.save_final(run)
    assert {number for _, number in seen} == {before}  # nothing trains any more
    assert priority() == before


@pytest.mark.parametrize("verb", ["wait", "close"])
def test_timeout_is_kept_and_save_continues(valve, verb):
    manager, run = started(valve)
    valve.close()
    handle = manager.save(run)
    with pytest.raises(TimeoutError, match=r"0:00:00\.01"):
        getattr(manager, verb)(MOMENT)
    assert not handle.done()
    valve.open()
    name = handle.result(LONG)
    assert names(CheckpointManager(valve.url)) == [name]


def test_closed_manager_reads_training_no_more(valve, root):
    """Nor does the save that did not end in time, since whoever closed it may do what they want with the weights."""
    manager, run = started(valve)
    train(run, 6)
    valve.close()
    handle = manager.save(run)
    with pytest.raises(TimeoutError):
        manager.close(MOMENT)
    run.weights += 1
    run.moments += 1
    valve.open()
    handle.result(LONG)
    restored = WatchedRun()
    CheckpointManager(root).restore(restored)
    assert restored.digest() == run_at(6).digest()


class Patient(Chain):
    """Notes how long a close would wait for it."""

    def finish(self, seconds_left) -> None:
        self.left = seconds_left()


@pytest.mark.parametrize(
    ("on_preempt", "preempted", "timeout", "most"),
    [
        ("exit", False, None, math.inf),
        ("exit", False, 5, 5),
        ("exit", True, None, 25),  # the process is killed then
        ("exit", True, 5, 5),
        ("return", True, None, math.inf),
        ("return", True, 5, 5),
    ],
)
def test_close_waits_for_the_mirror_within_its_time(root, on_preempt, preempted, timeout, most):
    manager = CheckpointManager(root, save=ON_REQUEST, preemption=Preemption(then=on_preempt))
    mirror = Patient(LocalStorage(root), (), KeepLatest(3), tolerant=True, monotonic=time.monotonic)
    manager._setup = dataclasses.replace(manager._setup, mirrors=mirror)
    manager.restore(WatchedRun())
    manager._run.final_save.is_over = preempted
    manager.close(None if timeout is None else timedelta(seconds=timeout))
    assert mirror.left == most or 0 < mirror.left <= most < math.inf


def test_wait_without_a_save_returns_at_once(root):
    manager, _ = started(root)
    manager.wait()
    manager.wait(timedelta(0))
    CheckpointManager(root).wait()


@pytest.mark.parametrize("verb", ["step", "save", "save_final"])
def test_a_closed_manager_saves_no_more(root, verb):
    manager, run = started(root, save=SaveEvery(micro_steps=1))
    name = manager.save(run).result()
    manager.close()
    manager.close()
    train(run, 1)
    with pytest.raises(ResumeError, match=r"not after close\(\)"):
        getattr(manager, verb)(run)
    assert names(manager) == [name]


def test_close_ends_the_writer_thread(root):
    manager, run = started(root)
    before = set(threading.enumerate())
    manager.save(run)
    begun = set(threading.enumerate()) - before
    assert "ckptkit-writer" in {thread.name for thread in begun}
    manager.close()
    for thread in begun:
        thread.join(LONG.total_seconds())
        assert not thread.is_alive()


def under_way(valve, **options):
    """A save is under way until the manager waits for it."""
    manager = CheckpointManager(valve, save=ON_REQUEST, keep=KeepLatest(100), **grouped(**options))
    run = WatchedRun()
    manager.restore(run)
    wait = manager._run.wait

    def open_and_wait(timeout):
        valve.open()
        wait(timeout)

    manager._run.wait = open_and_wait
    valve.close()
    return manager, run


def test_leaving_by_an_exception_lets_the_save_finish(valve):
    manager, run = under_way(valve)
    handle = manager.save(run)
    with pytest.raises(ZeroDivisionError), manager:
        raise ZeroDivisionError
    assert handle.done()
    assert names(manager) == [handle.result()]


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), KeyboardInterrupt("mine")])
def test_leaving_by_an_exception_hides_it_behind_nothing(valve, caplog, error):
    manager, run = under_way(valve, on_save_error="raise")
    valve.failures_to_come = 1
    manager.save(run)
    with pytest.raises(type(error), match="mine"), manager:
        raise error
    assert any("disk full" in message for message in warnings_in(caplog))


def test_leaving_quietly_raises_what_failed(valve):
    manager, run = under_way(valve, on_save_error="raise")
    valve.failures_to_come = 1
    with pytest.raises(SaveFailedError, match="disk full"), manager:
        manager.save(run)


# Failures


def test_consecutive_failures_are_tolerated_up_to_budget(valve, caplog):
    manager, run = started(valve)
    valve.failures_to_come = ERROR_BUDGET
    for at in range(1, ERROR_BUDGET):
        train(run, at)
        assert isinstance(manager.save(run).exception(), StorageError)
        assert manager.step(run) is None
        assert f"{at} in a row" in warnings_in(caplog)[-1]
        assert f"failure {at}" in warnings_in(caplog)[-1]
    train(run, ERROR_BUDGET)
    handle = manager.save(run)
    handle.exception()
    with pytest.raises(SaveFailedError, match=rf"\({ERROR_BUDGET} in a row\).*failure {ERROR_BUDGET}") as caught:
        manager.step(run)
    assert caught.value.__cause__ is handle.exception()
    assert f"Repair {valve.url} and start again: no checkpoint is committed yet" in str(caught.value)
    assert "no checkpoint is committed yet" in warnings_in(caplog)[0]
    assert names(manager) == []


def test_failures_name_what_was_committed_before(valve, caplog):
    manager, run = started(valve)
    manager.save(run).result()
    valve.failures_to_come = 100
    for at in range(1, ERROR_BUDGET):
        train(run, at)
        manager.save(run).exception()
    assert "the last committed checkpoint is untouched" in warnings_in(caplog)[-1]
    train(run, ERROR_BUDGET)
    with pytest.raises(SaveFailedError, match=rf"The newest checkpoint is {names(manager)[0]} at "):
        manager.save_final(run)


class Unlucky(LocalStorage):
    """Its writes fail with ``error``."""

    def __init__(self, root, error) -> None:
        super().__init__(root)
        self._error = error

    def write(self, key, stream, size_bytes) -> None:
        raise self._error from ConnectionError("reset by peer")


@pytest.mark.parametrize(
    ("error", "level"), [(StorageError("away"), logging.DEBUG), (KeyError("a bug"), logging.WARNING)]
)
def test_an_outage_has_its_traceback_at_debug(root, caplog, error, level):
    caplog.set_level(logging.DEBUG, "ckptkit")
    manager, run = started(Unlucky(root, error))
    manager.save(run).exception()
    manager.wait()
    assert [record.levelno for record in caplog.records if record.exc_info] == [level]
    assert f"(1 in a row): {error} (ConnectionError: reset by peer); training continues" in warnings_in(caplog)[-1]


def test_failure_without_a_message_is_told_by_its_class(root, monkeypatch, caplog):
    manager, run = started(root)

    def fails(*given):
        raise MemoryError

    monkeypatch.setattr(LocalStorage, "write", fails)
    manager.save(run)
    manager.wait()
    assert "a background save failed (1 in a row): MemoryError; training continues" in caplog.text


AT_EXIT = """
import sys, threading
from ckptkit.errors import StorageError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage
from ckptkit.testing.state import NumpyRun

class Failing(LocalStorage):
    def write(self, *args):
        if how == "at the end":
            threading.main_thread().join()
        raise StorageError("the disk is gone.")

root, how = sys.argv[1:]
manager, run = CheckpointManager(Failing(root)), NumpyRun()
manager.restore(run)
handle = manager.save(run)
if how == "before":
    [thread.join() for thread in threading.enumerate() if thread.name == "ckptkit-writer"]
if how == "asked for":
    handle.exception()
if how == "collected":
    manager.wait()
"""


@pytest.mark.parametrize("how", ["at the end", "before", "asked for", "collected"])
def test_unawaited_failed_save_is_reported_at_exit(root, how):
    """A failed save that nobody asked for is told when the interpreter ends."""
    done = python("-c", AT_EXIT, root, how)
    told = {"asked for": [], "collected": ["a background save failed (1 in a row): the disk is gone"]}
    last = [
        "the last background save failed, and the program ended without checking its result: the disk is gone. What"
    ]
    lines = done.stderr.splitlines()
    for line, begin in zip(lines, ["starting afresh at", *told.get(how, last)], strict=True):
        assert line.startswith(f"[ckptkit] {begin}")


SAID = """
import logging, sys
from ckptkit.manager.manager import CheckpointManager
from ckptkit.core.save_policy import SaveEvery
from ckptkit.testing.state import NumpyRun

if sys.argv[2:] == ["logs itself"]:
    logging.basicConfig(level=logging.WARNING)
if sys.argv[2:] == ["has a handler"]:
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    logging.getLogger("ckptkit").addHandler(handler)
if sys.argv[2:] == ["restores twice"]:
    with CheckpointManager(sys.argv[1]) as manager:
        manager.restore(NumpyRun())
run = NumpyRun()
with CheckpointManager(sys.argv[1]) as manager:
    manager.restore(run)
    for _ in range(6):
        run.train_step()
    manager.save(run)
"""


def said_by_a_loop(*arguments):
    return forked("-c", SAID, *arguments).stderr.splitlines()


def test_custom_loop_is_told_its_resume_point(root):
    assert said_by_a_loop(root) == [f"[ckptkit] starting afresh at {root}"]
    assert said_by_a_loop(root) == [
        "[ckptkit] resuming from a000001-c0000000001-m0002: epoch 0, batch 6, after 1 optimizer step, micro-step 2 of "
        "its cycle"
    ]
    assert said_by_a_loop(root, "logs itself") == said_by_a_loop(root, "has a handler") == []
    assert len(said_by_a_loop(root, "restores twice")) == 2


def test_starts_that_left_no_checkpoint_are_counted(root, caplog):
    caplog.set_level(logging.INFO, "ckptkit")
    for _ in range(3):
        started(root)  # and dies before its first save
    assert [record.getMessage() for record in caplog.records] == [
        f"starting afresh at {root}",
        f"starting afresh at {root}: 1 start before this one left no checkpoint. If they ended before a save was due, "
        "save more often",
        f"starting afresh at {root}: 2 starts before this one left no checkpoint. If they ended before a save was due, "
        "save more often",
    ]


def test_wait_has_one_time_for_all(root, monkeypatch):
    """What the save under way took is not there for the mirror any more."""
    now, left = [0.0], []
    monkeypatch.setattr("ckptkit.core.progress_bar.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(SaveResults, "drain", lambda self, timeout: now.append(now.pop() + 4))
    monkeypatch.setattr(Chain, "settle", lambda self, seconds_left: left.append(seconds_left()))
    manager, _ = started(root)
    manager.wait(timedelta(seconds=10))
    assert left == [6]


@pytest.mark.parametrize("verb", ["step", "save", "wait", "close"])
def test_every_call_may_bring_the_news(valve, verb):
    manager, run = started(valve, on_save_error="raise")
    valve.failures_to_come = 1
    manager.save(run).exception()
    with pytest.raises(SaveFailedError, match=r"\(1 in a row\).*failure 1"):
        getattr(manager, verb)(*([run] if verb in ("step", "save") else []))


def test_a_success_resets_the_count(valve):
    manager, run = started(valve)
    outcomes = []
    for at, fails in enumerate([1, 1, 0, 1, 1, 0], start=1):
        train(run, at)
        valve.failures_to_come = fails
        outcomes.append(manager.save(run).exception() is None)
    manager.close()
    assert outcomes == [False, False, True, False, False, True]
    assert [one.progress.batches_delivered for one in manager.checkpoints()] == [3, 6]


def test_later_success_makes_up_for_failures(valve):
    """Whoever was told of them and trains on closes a manager that is well."""
    manager, run = started(valve, on_save_error="raise")
    valve.failures_to_come = 1
    manager.save(run).exception()
    with pytest.raises(SaveFailedError):
        manager.wait()
    name = manager.save(run).result()
    manager.close()
    assert names(manager) == [name]


def test_state_that_cannot_be_stored_raises_at_once(root):
    class Doubled(NumpyRun):
        def capture(self):
            capture = super().capture()
            return dataclasses.replace(capture, leaves=capture.leaves * 2)

    manager, run = started(root, Doubled())
    with pytest.raises(ValueError, match=r"more than once: .*'weights'"):
        manager.save(run)


def test_state_beyond_what_readers_accept_is_not_saved(root, monkeypatch):
    manager, run = started(root)
    monkeypatch.setattr("ckptkit.checkpoint.write.MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(ValueError, match=r"rank-00000\.json would have \d+ bytes; readers accept at most 100"):
        manager.save(run).result()
    assert names(manager) == []


def test_capture_error_raises_at_once_and_is_uncounted(root):
    class Moody(WatchedRun):
        angry = True

        def capture(self):
            if self.angry:
                raise RuntimeError("not now")
            return super().capture()

    manager, run = started(root, Moody(), on_save_error="raise")
    with pytest.raises(RuntimeError, match="not now"):
        manager.save(run)
    run.angry = False
    assert manager.save(run).exception() is None


# The end of training


@pytest.mark.parametrize("on_save_error", ["warn", "raise"])
@pytest.mark.parametrize("failures", range(ERROR_BUDGET))
def test_the_final_save_tries_again(valve, failures, on_save_error):
    manager, run = started(valve, on_save_error=on_save_error)
    train(run, 5)
    valve.failures_to_come = failures
    name = manager.save_final(run)
    assert name.startswith("a000001-c0000000001-m0001")
    assert valve.failed == failures
    assert names(manager) == [name]
    manager.close()


def test_the_final_save_gives_up_after_the_budget(valve):
    manager, run = started(valve)
    valve.failures_to_come = 100
    with pytest.raises(SaveFailedError, match=f"failure {ERROR_BUDGET}") as caught:
        manager.save_final(run)
    assert isinstance(caught.value.__cause__, StorageError)
    assert "There is no checkpoint at" in str(caught.value)
    assert valve.failed == ERROR_BUDGET
    assert names(manager) == []


def test_final_save_has_tries_of_its_own(valve):
    manager, run = started(valve)
    valve.failures_to_come = 100
    for at in range(1, ERROR_BUDGET):
        train(run, at)
        manager.save(run).exception()
    with pytest.raises(SaveFailedError):
        manager.save_final(run)
    assert valve.failed == ERROR_BUDGET - 1 + ERROR_BUDGET


def test_final_save_compensates_for_failed_one(valve):
    manager, run = started(valve, on_save_error="raise")
    valve.failures_to_come = 1
    manager.save(run).exception()
    assert manager.save_final(run) == "a000001-c0000000000-m0000-t02"


def test_final_save_waits_for_one_under_way(valve):
    manager, run = started(valve, save=ON_REQUEST)
    train(run, 2)
    valve.close()
    handle = manager.save(run)
    opener = threading.Thread(target=lambda: (valve.reached.wait(LONG.total_seconds()), valve.open()))
    opener.start()
    train(run, 3)
    last = manager.save_final(run)
    opener.join()
    assert names(manager) == [handle.result(), last]


# Taken over


def test_a_takeover_is_always_raised_and_stays_raised(root):
    manager, run = started(root, on_save_error="warn")
    train(run, 1)
    kept = manager.save(run).result()
    other, _ = started(root)
    train(run, 2)
    handle = manager.save(run)
    assert isinstance(handle.exception(), StaleAttemptError)
    for call in (manager.wait, manager.close):
        with pytest.raises(StaleAttemptError, match="attempt 2"):
            call()
    assert names(other) == [kept]


@pytest.mark.parametrize("verb", ["step", "save", "save_final", "wait"])
def test_takeover_is_raised_by_every_later_call(root, verb):
    manager, run = started(root)
    started(root)
    manager.save(run).exception()
    arguments = [] if verb == "wait" else [run]
    for _ in range(3):
        with pytest.raises(StaleAttemptError, match="must stop"):
            getattr(manager, verb)(*arguments)
    assert names(manager) == []


def test_takeover_during_write_prevents_commit(valve, root):
    manager, run = started(valve)
    valve.close()
    handle = manager.save(run)
    assert valve.reached.wait(LONG.total_seconds())
    started(LocalStorage(root))
    valve.open()
    assert isinstance(handle.exception(), StaleAttemptError)
    assert names(manager) == []


@pytest.mark.parametrize("save", [lambda *both: both[0].save(both[1]).result(), CheckpointManager.save_final])
def test_committed_moment_hides_no_takeover(root, save):
    manager, run = started(root)
    name = manager.save(run).result()
    started(root)
    with pytest.raises(StaleAttemptError, match="attempt 2"):
        save(manager, run)
    with pytest.raises(StaleAttemptError, match="attempt 2"):
        manager.close()
    assert names(manager) == [name]


def test_final_save_after_takeover_is_refused(root):
    manager, run = started(root)
    started(root)
    with pytest.raises(StaleAttemptError):
        manager.save_final(run)
    assert names(manager) == []


def test_loop_that_does_not_count_batches_is_refused(root):
    run = NumpyRun()
    with CheckpointManager(root, save=SaveEvery(micro_steps=1), saving=Saving(when_busy="wait")) as manager:
        manager.restore(run)
        with pytest.raises(ResumeError, match=r"is still at 0 batches.*count_delivered\(\)"):
            manager.step(run)
        for _ in run.train_until(3):
            manager.step(run)
    again = NumpyRun()
    with CheckpointManager(root, save=SaveEvery(micro_steps=1), saving=Saving(when_busy="wait")) as manager:
        manager.restore(again)
        with pytest.raises(ResumeError, match="is still at 3 batches"):
            manager.step(again)
        again.train_step()
        assert manager.step(again) is not None


@pytest.mark.extended
def test_memory_is_flat_over_many_saves(root, monkeypatch):
    """Of each save nothing stays: no report, no name, no folder, no exit handler."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    keep = KeepLatest(2)
    with CheckpointManager(
        root, save=SaveEvery(optimizer_steps=1), keep=keep, saving=Saving(when_busy="wait", events=False)
    ) as manager:
        run = NumpyRun(accumulation_steps=1)
        manager.restore(run)
        counts = []
        for saves in (300, 1000):
            for _ in run.train_until(saves):
                manager.step(run)
            manager.wait()
            assert manager.totals.saves == saves
            gc.collect()
            counts.append((len(gc.get_objects()), atexit._ncallbacks()))
    (objects, handlers), (objects_later, handlers_later) = counts
    assert handlers_later == handlers
    assert objects_later - objects < 1400  # less than two a save


def test_save_of_same_cycle_is_not_repeated(root):
    """What is forgotten of earlier saves does not make one that is there be written again."""
    with CheckpointManager(root, save=ON_REQUEST, keep=KeepLatest(9)) as manager:
        run = NumpyRun(accumulation_steps=4)
        manager.restore(run)
        names = []
        for micro_steps in (4, 6, 7, 8):
            for _ in run.train_until(micro_steps):
                pass
            names += [manager.save(run).result(), manager.save(run).result()]
    assert names[::2] == names[1::2]
    assert [one.name for one in CheckpointManager(root).checkpoints()] == names[::2]
