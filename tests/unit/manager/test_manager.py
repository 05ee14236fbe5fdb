import dataclasses
import errno
import itertools
import logging
import math
import multiprocessing
import os
import random
import shutil
import threading
from collections.abc import Iterator
from datetime import timedelta
from unittest.mock import Mock

import numpy as np
import pytest
from support.clock import Manual
from support.interrupted import InterruptedStart
from support.live import Stall, let_end
from support.process import python
from support.runs.grown import ON_REQUEST, WatchedRun, opened, run_at, slow_capture, started, train

from ckptkit.checkpoint.read import load
from ckptkit.core.contents import Capture
from ckptkit.core.save_policy import SaveEvery
from ckptkit.errors import ResumeError, SaveFailedError, StaleAttemptError, StateMismatchError, StorageError
from ckptkit.manager import process
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.mirrors import Chain
from ckptkit.manager.options import ERROR_BUDGET, System
from ckptkit.manager.writer import SaveHandle
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

MOMENT = timedelta(milliseconds=10)
LONG = timedelta(seconds=60)


@pytest.fixture
def stall() -> Iterator[Stall]:
    stall = Stall()
    yield stall
    stall.let_go()  # so that the writer thread ends whatever the test did


@pytest.fixture
def stalled(root, stall) -> FaultyStorage:
    """A local root whose first write is held back."""
    return FaultyStorage(LocalStorage(root), [Fault(stall, operations={"write"})])


def failing(root, times: int) -> tuple[FaultyStorage, Fault]:
    """A local root whose writes fail so often, each for a reason of its own."""
    numbers = itertools.count(1)

    def fail() -> None:
        raise StorageError(f"disk full, failure {next(numbers)}") from OSError(errno.ENOSPC, "No space left on device")

    fault = Fault(fail, operations={"write"}, times=times)
    return FaultyStorage(LocalStorage(root), [fault]), fault


def names(manager) -> list[str]:
    return [one.name for one in manager.checkpoints()]


def warnings_in(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_saving_needs_a_restore_first_and_no_close(root):
    manager, run = CheckpointManager(root, save=SaveEvery(micro_steps=1)), WatchedRun()

    def refused():
        for verb in ("step", "save", "save_final"):
            with pytest.raises(ResumeError, match=r"call restore\(state\) before the first save, and not after close"):
                getattr(manager, verb)(run)

    manager.wait(timedelta(0))
    refused()
    assert not root.exists()
    manager.restore(run)
    with pytest.raises(ResumeError, match="restored already"):
        manager.restore(run)
    name = manager.save(run).result()
    manager.close()
    manager.close()
    train(run, 1)
    refused()
    with pytest.raises(ResumeError, match="restored already"):
        manager.restore(run)
    assert names(manager) == [name]


def test_a_state_that_does_not_fit_fences_nobody(root):
    manager, run = started(root)
    manager.save(run).result()
    with pytest.raises(StateMismatchError):
        CheckpointManager(root).restore(NumpyRun(size=9))
    assert os.listdir(root / "attempts") == ["000001.json"]
    train(run, 2)
    assert manager.save(run).exception() is None


def test_metrics_are_numbers_and_none_where_not_finite(root):
    manager, run = started(root)
    with pytest.raises((TypeError, ValueError)):
        manager.save(run, {"loss": "low"})
    assert names(manager) == []
    endless = {"nan": np.nan, "inf": np.inf, "minus": -np.inf}
    halves = {"fine": 0.5, "numpy": np.float32(0.5), "array": np.array(0.5)}
    manager.save(run, {**endless, **halves}).result()
    assert manager.latest().metrics == {**dict.fromkeys(endless), **dict.fromkeys(halves, 0.5)}


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


def test_state_that_goes_on_immediately_is_whole(root):
    """Within the save, as a train cell whose next call updates: there is no later moment to fence at."""

    class UpdatesNext(WatchedRun):
        def capture(self) -> Capture:
            capture = super().capture()
            return dataclasses.replace(capture, state={**capture.state, "user": self.notes})

        def guard(self, fence) -> None:
            fence()
            self.weights += 1
            self.notes.append("after")

    manager, run = started(root, UpdatesNext())
    run.notes = ["before"]
    train(run, 1)
    before = run.weights.copy()
    name = manager.save(run).result()
    manager.close()
    assert run.notes == ["before", "after"]
    storage = LocalStorage(root)
    stored = load(storage, opened(storage, name))
    assert np.array_equal(stored.tensors["weights"], before)
    assert stored.state["user"] == ["before"]


def test_save_that_does_not_begin_holds_nothing(root):
    """A fence would wait for a writer that there is not."""

    class Interrupted(WatchedRun):
        interrupted = False

        def guard(self, fence) -> None:
            if not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt

    manager, run = started(root, Interrupted(), buffer_bytes=1)
    train(run, 1)
    with pytest.raises(KeyboardInterrupt):
        manager.save(run)
    assert not manager._run._window.is_open
    assert manager.save(run).result()
    manager.close()


def test_first_save_finds_its_memory(root, monkeypatch):
    """With a bound so low that the few bytes of this state are worth a thread."""
    monkeypatch.setattr("ckptkit.snapshot.staging._FEW_BYTES", 50)
    manager, run = started(root, save=SaveEvery(optimizer_steps=1), window="off")
    train(run, 1)
    manager.step(run)
    let_end("ckptkit-memory")
    pool = manager._setup.area._pool
    made_bytes = pool.made_bytes
    train(run, 4)
    manager.step(run).result()
    assert 0 < made_bytes == pool.made_bytes
    manager.close()


def saved_at(manager, run, last) -> list[int]:
    at = []
    for batches in run.train_until(last):
        if (handle := manager.step(run)) is not None:
            handle.result()
            at.append(batches)
    return at


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


def test_save_under_way_outlives_process_of_multiprocessing(root):
    def save_and_return():
        slow = Fault(lambda: threading.Event().wait(0.2), operations={"create"}, times=99)
        manager, run = started(FaultyStorage(LocalStorage(root), [slow]), NumpyRun())
        train(run, 4)
        manager.save(run)

    child = multiprocessing.get_context("fork").Process(target=save_and_return)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert names(CheckpointManager(root)) == ["a000001-c0000000001-m0000"]


def test_rewound_save_never_goes_below_a_commit(root):
    """The names of an attempt are in the order of training: prune and retention rely on that."""
    manager, run = started(root, save=SaveEvery(micro_steps=1), mid_cycle="rewind")
    assert saved_at(manager, run, 9) == [1, 4, 8]
    name = manager.save(run).result()
    assert name == "a000001-c0000000002-m0001"  # outright: as it is
    assert manager.step(run) is None, "the start of the cycle lies before what is committed"
    train(run, 14)  # without a step at the boundary
    assert manager.step(run).result() == "a000001-c0000000003-m0002"
    manager.close()


@pytest.mark.parametrize("when", ["before the save", "during the save", "at the end"])
def test_given_up_window_reads_nothing_in_place(root, stalled, stall, when):
    """From then on others may write to the parameters at any time; after a close that was not in time, too."""
    manager, run = started(stalled)
    train(run, 6)
    if when == "before the save":
        manager.live().give_up_window()
    handle = manager.save(run)
    if when == "during the save":
        manager.live().give_up_window()
    if when == "at the end":
        with pytest.raises(TimeoutError):
            manager.close(MOMENT)
    run.weights[:] = run.moments[:] = 7
    stall.let_go()
    handle.result(LONG)
    CheckpointManager(root).restore(resumed := WatchedRun())
    assert resumed.digest() == run_at(6).digest()


def test_defaults_save_every_100_cycles_and_keep_three(root):
    run = WatchedRun()
    manager = CheckpointManager(root)
    manager.restore(run)
    assert saved_at(manager, run, 1700) == [400, 800, 1200, 1600]
    assert [one.progress.cycles for one in manager.checkpoints()] == [200, 300, 400]


@pytest.mark.parametrize(("stall", "expected"), [(5.0, [8, 16, 24, 32, 40]), (30.0, [8, 40]), (30.0 * 9, [8])])
def test_default_saves_a_slow_training_every_ten_minutes(root, caplog, stall, expected):
    """At the first ends of cycles of four that are ten minutes later, unless saves would take more than 1 %."""
    caplog.set_level(logging.INFO, "ckptkit")
    time, run, saved = Manual(), WatchedRun(), []
    slow_capture(run, time, stall)
    manager = CheckpointManager(root, system=System(monotonic=time))
    manager.restore(run)
    for batches in range(1, 45):
        time.now += 100.0
        saved += saved_at(manager, run, batches)
    assert saved == expected
    told = [line for line in caplog.messages if "so by the clock they come" in line]
    assert len(told) == (stall > 6), told


def test_interval_counts_from_start_then_last_save(root):
    """Also from one on request, at 33 s."""
    time = Manual(1000.0)
    manager, run = started(root, save=SaveEvery(interval=timedelta(seconds=10)), monotonic=time)
    saved = []
    for batches, elapsed in enumerate([0, 9.9, 10, 15, 19.9, 31, 33, 42.9, 43, 44], start=1):
        time.now = 1000.0 + elapsed
        train(run, batches)
        if elapsed == 33:
            manager.save(run).result()
        elif (handle := manager.step(run)) is not None:
            handle.result()
            saved.append(elapsed)
    assert saved == [10, 31, 43]


def test_busy_writer_defers_save_to_next_multiple(stalled, stall):
    manager, run = started(stalled, save=SaveEvery(micro_steps=2))
    train(run, 2)
    handle = manager.step(run)
    capture, run.capture = run.capture, None  # a capture would wait for the device
    assert [manager.step(run) for _ in run.train_until(5)] == [None] * 3
    assert manager.skipped_saves == 1
    run.capture = capture
    stall.let_go()
    handle.result()
    assert saved_at(manager, run, 9) == [6, 8]
    assert manager.skipped_saves == 1
    assert [one.progress.batches_delivered for one in manager.checkpoints()] == [2, 6, 8]


def test_save_that_never_ends_is_told_again(root, caplog):
    """The storage hangs, such as a network file system without its server: nothing fails, and nothing is saved."""
    time, go_on = Manual(), threading.Event()
    storage = FaultyStorage(LocalStorage(root))
    manager, run = started(storage, save=SaveEvery(optimizer_steps=1), monotonic=time, events=False)
    hang = Fault(lambda: go_on.wait(LONG.total_seconds()), operations={"write"}, key="*/manifest.json", times=2)
    storage.inject(hang)
    told = []
    for batches, minutes in [(4, range(100)), (8, range(100, 400))]:
        go_on.clear()
        for minute in minutes:
            time.now = 60.0 * minute
            train(run, batches)
            manager.step(run)
            told += [minute] * caplog.text.count("training continues without new checkpoints")
            caplog.clear()
        go_on.set()
        manager.wait()
    assert hang.fired == 2
    assert told == [10, 20, 40, 80, 100 + 3 * 99]  # the first save took 99 minutes


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


@pytest.mark.parametrize(("lost", "verb"), [(".", "save_final"), ("checkpoints", "save"), ("COMMIT", "step")])
def test_lost_commit_is_saved_again(root, verb, lost):
    manager, run = started(root, save=SaveEvery(micro_steps=1))
    train(run, 3)
    name = manager.step(run).result()
    if lost == "COMMIT":
        (root / "checkpoints" / name / lost).write_bytes(b"torn")
    else:
        shutil.rmtree(root / lost)
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
    """It is looked at: that is neither a capture, nor a save that is reported or counted. A look may fail."""
    told = []
    storage = FaultyStorage(LocalStorage(root))
    manager, run = started(storage, on_save=told.append)
    name = manager.save(run).result()
    run.capture = None
    assert (manager.save(run).result(), [report.checkpoint for report in told]) == (name, [name])
    storage.calls.clear()
    assert manager.save_final(run) == name
    assert [(call.operation, *call.keys) for call in storage.calls] == [
        ("list", "attempts"),
        ("read", "attempts/000001.json"),
        ("read", f"checkpoints/{name}/COMMIT"),
    ]
    assert manager.totals.saves == len(told) == 1
    storage.inject(Fault("error", operations={"list"}, key="attempts", times=ERROR_BUDGET - 1))
    assert manager.save_final(run) == name
    assert names(manager) == [name]


def test_a_handle_of_a_save_that_ends_well(stalled, stall):
    manager, run = started(stalled)
    handle = manager.save(run)
    assert not handle.done()
    with pytest.raises(TimeoutError, match="continues in the background"):
        handle.result(MOMENT)
    with pytest.raises(TimeoutError, match=r"within 0:00:00\.01"):
        manager.wait(MOMENT)
    stall.let_go()
    assert handle.result(LONG) == "a000001-c0000000000-m0000"
    assert handle.done()
    assert handle.exception() is None
    assert names(manager) == [handle.result()]


@pytest.mark.parametrize(
    ("on_preempt", "preempted", "timeout", "most"),
    [("exit", False, None, math.inf), ("exit", True, None, 25), ("exit", True, 5, 5), ("return", True, None, math.inf)],
)
def test_close_waits_for_the_mirror_within_its_time(root, monkeypatch, *, on_preempt, preempted, timeout, most):
    """After the grace of 25 s the process is killed."""
    waits = []
    monkeypatch.setattr(Chain, "finish", lambda chain, seconds_left: waits.append(seconds_left()))
    manager, _ = started(root, on_preempt=on_preempt)
    manager._run.is_over = preempted
    manager.close(None if timeout is None else timedelta(seconds=timeout))
    assert waits == [most] or 0 < waits[0] <= most < math.inf


def test_leaving_by_an_exception_hides_it_behind_nothing(stalled, stall, caplog):
    """A save is under way until the manager waits for it, and fails then."""
    stalled.inject(Fault("error", operations={"write"}, nth=2))
    manager, run = started(stalled, on_save_error="raise")
    wait = manager._run.wait
    manager._run.wait = lambda timeout, **how: (stall.let_go(), wait(timeout, **how))
    handle = manager.save(run)
    with pytest.raises(KeyboardInterrupt, match="mine"), manager:
        raise KeyboardInterrupt("mine")
    assert handle.done()
    assert any("injected failure" in message for message in warnings_in(caplog))


def test_consecutive_failures_are_tolerated_up_to_budget(root, caplog):
    storage, _ = failing(root, ERROR_BUDGET)
    manager, run = started(storage)
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
    assert f"Repair {root} and start again: no checkpoint is committed yet" in str(caught.value)
    assert "no checkpoint is committed yet" in warnings_in(caplog)[0]
    assert names(manager) == []
    storage, _ = failing(root.parent / "interrupted", ERROR_BUDGET - 1)
    manager, run = started(storage)
    for at in range(1, ERROR_BUDGET + 2):
        if at == ERROR_BUDGET + 1:  # after one that succeeded
            storage.inject(Fault("error", operations={"write"}))
        train(run, at)
        assert (manager.save(run).exception() is None) == (at == ERROR_BUDGET)
        manager.step(run)
    assert "(1 in a row)" in warnings_in(caplog)[-1]


def test_an_outage_has_its_traceback_at_debug(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "ckptkit")
    away = StorageError("away")
    again = StorageError("no room: reset by peer")
    again.__cause__ = away.__cause__ = ConnectionError("reset by peer")
    for error, level, told in [
        (away, logging.DEBUG, "away (ConnectionError: reset by peer)"),
        (again, logging.DEBUG, "no room: reset by peer"),
        (KeyError("a bug"), logging.WARNING, "'a bug'"),
        (MemoryError(), logging.WARNING, "MemoryError"),
    ]:
        caplog.clear()
        fails = Fault(Mock(side_effect=error), operations={"write"})
        manager, run = started(FaultyStorage(LocalStorage(tmp_path / str(error)), [fails]))
        manager.save(run)
        manager.wait()
        assert f"a background save failed (1 in a row): {told}; training continues" in warnings_in(caplog)[-1]
        assert [record.levelno for record in caplog.records if record.exc_info] == [level]


AT_EXIT = """
import sys, threading
import ckptkit as ck
from ckptkit.storage import LocalStorage
from ckptkit.testing.state import NumpyRun

class Failing(LocalStorage):
    def write(self, *args):
        if how == "at the end":
            threading.main_thread().join()
        raise ck.StorageError("the disk is gone.")

root, how = sys.argv[1:]
manager, run = ck.CheckpointManager(Failing(root)), NumpyRun()
manager.restore(run)
handle = manager.save(run)
if how == "collected":
    manager.wait()
"""


@pytest.mark.parametrize("how", ["at the end", "collected"])
def test_unawaited_failed_save_is_reported_at_exit(root, how):
    done = python("-c", AT_EXIT, root, how)
    told = {
        "at the end": "the last background save failed, and the program ended without checking its result: the disk is",
        "collected": "a background save failed (1 in a row): the disk is gone",
    }
    for line, begin in zip(done.stderr.splitlines(), ["starting afresh at", told[how]], strict=True):
        assert line.startswith(f"[ckptkit] {begin}")


def test_log_goes_to_stderr_once_unless_the_program_logs(monkeypatch, capsys):
    logger, root = logging.getLogger("ckptkit"), logging.getLogger()
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    with monkeypatch.context() as program:
        program.setattr(root, "handlers", [logging.NullHandler()])
        process.show_log()
        assert logger.handlers == []
    monkeypatch.setattr(root, "handlers", [])
    for _ in range(2):
        process.show_log()
    logger.info("starting afresh")
    assert capsys.readouterr().err == "[ckptkit] starting afresh\n"


def test_start_says_where_it_goes_on_and_which_left_no_checkpoint(root, caplog):
    caplog.set_level(logging.INFO, "ckptkit")
    for _ in range(3):
        manager, run = started(root)  # and dies before its first save
    train(run, 6)
    manager.save(run).result()
    started(root)
    afresh, advice = f"starting afresh at {root}", "If they ended before a save was due, save more often"
    assert [record.getMessage() for record in caplog.records] == [
        afresh,
        f"{afresh}: 1 start before this one left no checkpoint. {advice}",
        f"{afresh}: 2 starts before this one left no checkpoint. {advice}",
        "resuming from a000003-c0000000001-m0002: epoch 0, batch 6, after 1 optimizer step, micro-step 2 of its cycle",
    ]


def test_every_call_may_bring_the_news(root):
    storage, _ = failing(root, 4)
    manager, run = started(storage, on_save_error="raise")
    for number, verb in enumerate(("step", "save", "wait", "close"), 1):
        train(run, number)
        manager.save(run).exception()
        with pytest.raises(SaveFailedError, match=rf"in a row\).*failure {number}"):
            getattr(manager, verb)(*([run] if verb in ("step", "save") else []))


def test_capture_error_raises_at_once_and_is_uncounted(root):
    class Moody(WatchedRun):
        angry, leaves_twice = True, False

        def capture(self):
            if self.angry:
                raise RuntimeError("not now")
            capture = super().capture()
            return dataclasses.replace(capture, leaves=capture.leaves * (1 + self.leaves_twice))

    manager, run = started(root, Moody(), on_save_error="raise")
    with pytest.raises(RuntimeError, match="not now"):
        manager.save(run)
    run.angry, run.leaves_twice = False, True
    with pytest.raises(ValueError, match=r"more than once: .*'weights'"):
        manager.save(run)
    run.leaves_twice = False
    assert manager.save(run).exception() is None


@pytest.mark.parametrize(
    ("earlier", "failures", "on_save_error"), [(0, 1, "raise"), (ERROR_BUDGET - 1, ERROR_BUDGET - 1, "warn")]
)
def test_the_final_save_tries_again(root, earlier, failures, on_save_error):
    """It has tries of its own, whatever failed before; at last it says so."""
    storage, fault = failing(root, earlier + failures)
    manager, run = started(storage, on_save_error=on_save_error)
    for at in range(1, earlier + 1):
        train(run, at)
        manager.save(run).exception()
    name = manager.save_final(run)
    assert names(manager) == [name]
    assert fault.fired == earlier + failures
    storage, fault = failing(root.parent / "full", 100)
    manager, run = started(storage, on_save_error=on_save_error)
    with pytest.raises(SaveFailedError, match="There is no checkpoint at") as caught:
        manager.save_final(run)
    assert isinstance(caught.value.__cause__, StorageError)
    assert (fault.fired, names(manager)) == (ERROR_BUDGET, [])


def test_a_takeover_is_always_raised_and_stays_raised(root):
    manager, run = started(root, on_save_error="warn")
    train(run, 1)
    kept = manager.save(run).result()
    other, _ = started(root)
    train(run, 2)
    handle = manager.save(run)
    assert isinstance(handle.exception(), StaleAttemptError)
    for call in (manager.wait, lambda: manager.save(run), lambda: manager.step(run), manager.close):
        with pytest.raises(StaleAttemptError, match="attempt 2"):
            call()
    assert names(other) == [kept]


def test_loop_that_does_not_count_batches_is_refused(root):
    run = NumpyRun()
    train(run, 3)
    with CheckpointManager(root) as manager:
        manager.restore(NumpyRun())
        manager.save_final(run)
    with CheckpointManager(root, save=SaveEvery(micro_steps=1)) as manager:
        manager.restore(run)
        with pytest.raises(ResumeError, match=r"is still at 3 batches.*count_delivered\(\)"):
            manager.step(run)
        run.train_step()
        assert manager.step(run) is not None
