"""Real signals to real processes: what is saved, what the process says, with which code it ends."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.options import grouped
from support.process import forked, python
from support.runs.grown import run_at
from support.runs.ranks import new_run
from support.thread_ranks import results_of, run_ranks

import ckptkit as ck
from ckptkit.manager.preemption import SIGNALS, PreemptionRequest, SignalWatch, name_of
from ckptkit.manager.schedule import StepTiming, fits
from ckptkit.storage import open_storage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

VICTIM = Path(__file__).parents[2] / "support/victim.py"
TERMINATED = 143
WHOLE = 23  # micro-steps; K is 4


@dataclass
class Ended:
    code: int
    said: list[dict]
    log: str
    seconds: float

    def of(self, key):
        found = [one[key] for one in self.said if key in one]
        return found[-1] if found else None


def live(root, **plan) -> Ended:
    """One life of the training."""
    begun = time.monotonic()
    done = forked(VICTIM, root, json.dumps({"until": WHOLE, **plan}), expect=None)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return Ended(done.returncode, said, done.stderr, time.monotonic() - begun)


def names(root) -> list[str]:
    return [one.name for one in ck.CheckpointManager(root).checkpoints()]


def restored_at(root) -> int:
    """Where a start goes on, which must be bit for bit where an uninterrupted run stands after as many micro-steps."""
    run = NumpyRun()
    manager = ck.CheckpointManager(root, preemption=ck.Preemption(then="off"))
    point = manager.restore(run)
    assert run.digest() == run_at(point.batches_delivered).digest()
    manager.close()
    return point.batches_delivered


# Signals


@pytest.mark.parametrize("at", [8, 9, 10, 11])
def test_signal_at_any_micro_step_saves_it(root, at):
    """The process ends with 143, and the same command goes on from there."""
    ended = live(root, signals={at: ["SIGTERM"]})
    assert ended.code == TERMINATED
    name = f"a000001-c{at // 4:010d}-m{at % 4:04d}"
    assert names(root) == [name]
    assert ended.of("exported") is None  # nothing after the training was run
    announced, settled = [line for line in ended.log.splitlines() if "SIGTERM" in line]
    assert announced == "[ckptkit] SIGTERM: saving within 25 s and ending"
    assert settled == (
        f"[ckptkit] SIGTERM: saved {name} at {root} (epoch {at // 10}, batch {at % 10}, micro-step {at % 4} of 4). "
        "The same command continues from it"
    )
    assert "Traceback" not in ended.log
    again = live(root)
    assert (again.code, again.of("began")) == (0, at)
    assert again.of("digest") == run_at(WHOLE).digest()


def test_sigusr1_asks_for_the_same(root):
    ended = live(root, signals={6: ["SIGUSR1"]})
    assert ended.code == TERMINATED
    assert "SIGUSR1: saved a000001-c0000000001-m0002" in ended.log
    assert restored_at(root) == 6


def test_cycle_is_finished_within_grace(root):
    """Saves have been measured, and micro-steps are short."""
    ended = live(root, every=2, options={"when_busy": "wait"}, signals={13: ["SIGTERM"]})
    assert ended.code == TERMINATED
    assert names(root)[-1] == "a000001-c0000000004-m0000"
    assert restored_at(root) == 16


def test_a_signal_during_a_save_waits_for_both(root):
    """The save under way is stuck at its first file until the signal has come."""
    script = """
import ckptkit.manager.writer as writer, ckptkit.storage.local as local
release, write, exception = threading.Event(), local.LocalStorage.write, writer.SaveHandle.exception
def waited_for(self, timeout=None):
    release.set()
    return exception(self, timeout)
writer.SaveHandle.exception = waited_for
def slow(self, key, stream, size_bytes):
    if "c0000000001-m0001" in key:
        release.wait()
    write(self, key, stream, size_bytes)
local.LocalStorage.write = slow
def after_step(batches):
    if batches == 5:
        os.kill(os.getpid(), signal.SIGTERM)
"""
    ended = live(root, every=5, script=script)
    assert ended.code == TERMINATED
    assert names(root) == ["a000001-c0000000001-m0001", "a000001-c0000000001-m0002"]
    assert restored_at(root) == 6


def test_a_second_signal_stops_at_once(root):
    """It comes from the save that the first one asked for, and that never ends."""
    script = """
import ckptkit.manager.preemption as preemption
preemption._ONE_SIGNAL = timedelta(0)  # however soon after the first it comes
"""
    live(root, until=4)
    ended = live(root, stall="*m0002*", signal_at_stall="SIGUSR1", signals={6: ["SIGTERM"]}, script=script)
    assert ended.code == TERMINATED
    assert ended.log.splitlines()[-1] == (
        "[ckptkit] SIGUSR1 arrived again after SIGTERM, so the process ends without waiting. The newest checkpoint is "
        f"a000001-c0000000001-m0000 at {root}: the same command continues from it."
    )
    assert ended.seconds < 20
    assert restored_at(root) == 4


def test_repeated_signal_counts_once(root):
    """A launcher forwards what the whole process group has got already."""
    ended = live(root, signals={6: ["SIGTERM", "SIGUSR1", "SIGTERM"]})
    assert ended.code == TERMINATED
    assert restored_at(root) == 6


def test_hung_storage_keeps_and_names_previous_checkpoint(root):
    live(root, until=4)
    ended = live(root, stall="checkpoints/*", grace=1, signals={6: ["SIGTERM"]})
    assert ended.code == TERMINATED
    assert ended.log.splitlines()[-1] == (
        "[ckptkit] SIGTERM: nothing was saved within 1 s. The newest checkpoint is a000001-c0000000001-m0000 at "
        f"{root}: the same command continues from it."
    )
    assert names(root) == ["a000001-c0000000001-m0000"]
    assert restored_at(root) == 4


def test_grace_ends_without_stderr_reader(root):
    ear, mouth = os.pipe()
    os.close(ear)
    plan = {"until": WHOLE, "stall": "checkpoints/*", "grace": 1, "signals": {6: ["SIGTERM"]}}
    python(VICTIM, root, json.dumps(plan), expect=TERMINATED, stdout=subprocess.DEVNULL, stderr=mouth)
    os.close(mouth)


def test_hang_at_end_of_training_is_ended(root):
    ended = live(root, until=6, stall="*COMMIT", signal_at_stall="SIGTERM", grace=1)
    assert ended.code == TERMINATED
    assert f"There is no checkpoint at {root} yet: the same command begins afresh." in ended.log


MIRRORED = """
from ckptkit.testing.faults import Fault, FaultyStorage
mirror = FaultyStorage(open_storage(sys.argv[1] + "-mirror"))
more_options = {"mirror": mirror}
def after_step(batches):
    if batches == 4:
        mirror.inject(Fault(clock.hang, operations={"write", "create"}, key="*", times=None))
"""


def test_hung_mirror_is_no_failed_save(root):
    ended = live(root, script=MIRRORED, grace=1, signals={6: ["SIGTERM"]})
    assert ended.code == TERMINATED
    last = ended.log.splitlines()[-1]
    assert last.startswith(
        "[ckptkit] SIGTERM: saved a000001-c0000000001-m0002, but the work after a commit, such as the"
    )
    assert "nothing was saved" not in ended.log
    assert restored_at(root) == 6


def test_no_upload_begins_after_the_grace_clock(root):
    """Three fail within the grace; the fourth would hang, and nothing would end the process."""
    script = """
from ckptkit.testing.faults import Fault, FaultyStorage
mirror = FaultyStorage(open_storage(sys.argv[1] + "-mirror"))
more_options = {"mirror": mirror}
def after_step(batches):
    if batches == 4:
        mirror.inject(Fault("error", operations={"write"}, times=3))
        mirror.inject(Fault(clock.hang, operations={"write"}, nth=4, times=None))
"""
    ended = live(root, script=script, grace=1, signals={6: ["SIGTERM"]})
    assert ended.code == TERMINATED
    assert [f"failed ({n} in a row)" in ended.log for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert "SIGTERM: saved a000001-c0000000001-m0002" in ended.log
    assert restored_at(root) == 6


def test_upload_begun_by_close_ends_with_grace(root):
    """The last save failed, and the mirror lacks the one before, for which it hangs now."""
    script = """
from ckptkit.testing.faults import Fault, FaultyStorage
mirror = FaultyStorage(open_storage(sys.argv[1] + "-mirror"))
more_options = {"mirror": mirror}
mirror.inject(Fault("error", operations={"write"}, key="checkpoints/*"))
mirror.inject(Fault(lambda: (say(hangs=True), clock.hang()), operations={"write"}, key="checkpoints/*", nth=2))
def after_step(batches):
    if batches == 4:
        manager = sys._getframe(1).f_locals["manager"]
        manager._run.results.drain()
        manager._setup.mirrors._uploads[0].settle(lambda: 60.0)
"""
    ended = live(root, script=script, every=4, fail="*c0000000002*", grace=1, signals={8: ["SIGTERM"]})
    assert (ended.code, ended.of("hangs")) == (TERMINATED, True)
    assert "SIGTERM: the last save failed: injected failure" in ended.log
    assert restored_at(root) == 4


def test_return_does_not_wait_for_hung_mirror(root):
    script = MIRRORED + "def after(): say(after=True); os._exit(5)"
    ended = live(root, script=script, grace=1, signals={6: ["SIGTERM"]}, options={"on_preempt": "return"})
    assert (ended.code, ended.of("after")) == (5, True)
    assert "the checkpoint is committed, but not at the mirror yet" in ended.log
    assert restored_at(root) == 6


def test_grace_bounds_work_after_last_save(root):
    """The events wait 10 s for a storage that hangs, which a scheduler does not."""
    script = """
def after_step(batches):
    if batches == 5:
        manager = sys._getframe(1).f_locals["manager"]
        manager._run.recorder._log.take = lambda events: clock.hang()
        manager._run.recorder._is_time = lambda: False
"""
    ended = live(root, script=script, grace=1, signals={6: ["SIGTERM"]})
    assert ended.code == TERMINATED
    assert "SIGTERM: saved a000001-c0000000001-m0002" in ended.log
    assert "the storage accepted none for" in ended.log
    assert "the storage accepted none for 10" not in ended.log
    assert restored_at(root) == 6


def test_failed_save_names_previous_checkpoint(root):
    """The process ends with 143."""
    live(root, until=4)
    ended = live(root, fail="*m0002*", signals={6: ["SIGTERM"]})
    assert ended.code == TERMINATED
    last = ended.log.splitlines()[-1]
    assert "SIGTERM: the last save failed: injected failure" in last
    assert last.endswith(
        f"The newest checkpoint is a000001-c0000000001-m0000 at {root}: the same command continues from it"
    )
    assert "Traceback" not in ended.log
    assert restored_at(root) == 4


def test_fenced_process_reports_stale_attempt_on_signal(root):
    script = """
def after_step(batches):
    if batches == 6:
        other = ck.CheckpointManager(sys.argv[1], preemption=ck.Preemption(then="off"))
        other.restore(NumpyRun())
        other.close()
        os.kill(os.getpid(), signal.SIGTERM)
"""
    ended = live(root, script=script)
    assert ended.code == 1
    assert "StaleAttemptError" in ended.log
    assert names(root) == []


def test_return_ends_loop_and_continues_script(root):
    ended = live(root, options={"on_preempt": "return"}, signals={6: ["SIGTERM"]})
    assert (ended.code, ended.of("preempted"), ended.of("exported")) == (0, True, 6)
    assert restored_at(root) == 6


def test_return_does_not_wait_beyond_the_grace(root):
    live(root, until=4)
    script = "def after(): say(after=True); os._exit(5)"  # at the end of the interpreter the save would be waited for
    plan = {"stall": "checkpoints/*", "grace": 1, "script": script, "options": {"on_preempt": "return"}}
    ended = live(root, signals={6: ["SIGTERM"]}, **plan)
    assert (ended.code, ended.of("after")) == (5, True)
    assert "was not committed within the grace" in ended.log
    assert "The newest checkpoint is a000001-c0000000001-m0000" in ended.log
    assert restored_at(root) == 4


def test_off_leaves_signals_alone(root):
    ended = live(root, options={"on_preempt": "off"}, signals={6: ["SIGTERM"]})
    assert ended.code == -signal.SIGTERM
    assert names(root) == []


# What was there before


def test_handlers_and_the_wakeup_descriptor_come_back(root):
    script = """
import faulthandler, socket
heard = []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
faulthandler.register(signal.SIGUSR1, file=sys.stdout)  # a handler in C, of which Python knows nothing
ear, mouth = socket.socketpair()
mouth.setblocking(False)
signal.set_wakeup_fd(mouth.fileno())
signal.signal(signal.SIGWINCH, lambda number, frame: None)
def after_step(batches):
    if batches == 3:
        os.kill(os.getpid(), signal.SIGWINCH)
def after():
    say(passed_on=list(ear.recv(9)), fd=signal.set_wakeup_fd(-1) == mouth.fileno())
    os.kill(os.getpid(), signal.SIGTERM)
    say(heard=heard, threads=[one.name for one in threading.enumerate() if one.name == "ckptkit-grace"])
    os.kill(os.getpid(), signal.SIGUSR1)
    os._exit(0)
"""
    done = python(VICTIM, root, json.dumps({"until": 6, "script": script}))
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert {"passed_on": [signal.SIGWINCH], "fd": True} in lines
    assert {"heard": [signal.SIGTERM], "threads": []} in lines
    assert "most recent call first" in done.stdout  # faulthandler's
    assert "the handler of SIGTERM is replaced during training" in done.stderr


def test_late_signal_goes_to_previous_handler(root):
    """It comes when nothing asks any more: the process ends as it would without ckptkit, and nothing is exported."""
    script = """
import ckptkit.manager.run as module
wait = module.Run.wait
def signalled(self, timeout=None):
    wait(self, timeout)
    os.kill(os.getpid(), signal.SIGTERM)
module.Run.wait = signalled
"""
    ended = live(root, until=6, script=script)
    assert ended.code == -signal.SIGTERM
    assert "SIGTERM arrived after training had ended and its last state was saved" in ended.log
    assert ended.of("exported") is None
    assert "Traceback" not in ended.log
    assert restored_at(root) == 6


def test_late_signal_does_not_hide_an_error(root):
    """Whoever had the signal before ends the process, as a rule."""
    own = []
    before = signal.signal(signal.SIGTERM, lambda *_: own.append("heard"))
    try:
        storage = FaultyStorage(open_storage(root), [Fault("error", operations={"write"})])
        manager, run = started(storage, on_save_error="raise", on_preempt="return")
        manager.save(run).exception()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(ck.SaveFailedError, match="injected"):
            manager.close()
        assert own == []
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signal_at_end_stops_after_last_save(root):
    """Nothing of the script after the training runs."""
    ended = live(root, until=6, signals={6: ["SIGTERM"]})
    assert ended.code == TERMINATED
    assert ended.of("exported") is None
    assert restored_at(root) == 6


def test_reinstalled_old_handler_is_harmless(root):
    """After the training it ends the process as before; in the next one it hears again."""
    script = """
kept = []
def after_step(batches):
    kept.append(signal.getsignal(signal.SIGTERM))
def after():
    signal.signal(signal.SIGTERM, kept[0])
    run = NumpyRun()
    with ck.CheckpointManager(sys.argv[1], preemption=ck.Preemption(then="return")) as manager:
        manager.restore(run)
        run.train_step()
        os.kill(os.getpid(), signal.SIGTERM)
        manager.step(run)
        say(heard=manager.preempted)
    signal.signal(signal.SIGTERM, kept[0])
    os.kill(os.getpid(), signal.SIGTERM)
"""
    ended = live(root, until=6, script=script)
    assert (ended.code, ended.of("heard"), ended.of("exported")) == (-signal.SIGTERM, True, None)


def test_a_forked_process_has_its_signals_for_itself(root):
    """A data worker that is terminated must not look like the end of the training."""
    script = """
def after_step(batches):
    if batches == 6:
        child = os.fork()
        if child == 0:
            signal.pause()
        os.kill(child, signal.SIGTERM)
        say(child=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ended = live(root, script=script)
    assert (ended.code, ended.of("child"), ended.of("exported")) == (0, -signal.SIGTERM, WHOLE)


def test_signal_that_nobody_took_does_what_it_did():
    script = "import signal; from ckptkit.manager.preemption import PreviousHandler as D; D(signal.SIGTERM).take(None)"
    python("-c", script, expect=-signal.SIGTERM)


def test_forked_process_that_trains_hears_for_itself():
    """What listened in the process that it was forked off from is not asked."""
    script = """
import os, signal
from ckptkit.manager.preemption import SIGNALS

class Hearing:
    def __init__(self):
        self.signals = []

    def heard(self, number):
        self.signals.append(number)

parent, own = Hearing(), Hearing()
SIGNALS.listen(parent)
if os.fork():
    os.wait()
    SIGNALS.leave(parent)
else:
    SIGNALS.listen(own)
    os.kill(os.getpid(), signal.SIGTERM)
    SIGNALS.leave(own)
    print(len(parent.signals), len(own.signals))
"""
    done = python("-c", script)
    assert done.stdout == "0 1\n"


def test_asyncio_during_training_keeps_signal_handling(root):
    script = """
import asyncio
def after_step(batches):
    if batches == 6:
        async def turn():
            os.kill(os.getpid(), signal.SIGTERM)
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, print)
        asyncio.run(turn())
        signal.set_wakeup_fd(-1)
    if batches == 8:
        os.kill(os.getpid(), signal.SIGTERM)
"""
    ended = live(root, script=script)
    assert ended.code == TERMINATED
    assert restored_at(root) in (7, 9)


def test_other_thread_uses_callable_without_signals(root, caplog):
    caplog.set_level("INFO", "ckptkit")
    raised = []

    def act():
        run = NumpyRun()
        manager = ck.CheckpointManager(root, preemption=ck.Preemption(when=lambda: run.batches == 6))
        try:
            with manager:
                manager.restore(run)
                for _ in run.train_until(WHOLE):
                    manager.step(run)
        except ck.Preempted as error:
            raised.append(error.checkpoint)

    thread = threading.Thread(target=act)
    before = signal.getsignal(signal.SIGTERM)
    thread.start()
    thread.join()
    assert raised == ["a000001-c0000000001-m0002"]
    assert "training is not in the main thread" in caplog.text
    assert signal.getsignal(signal.SIGTERM) is before


# A file or a callable


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def started(root, **options):
    run = NumpyRun()
    manager = ck.CheckpointManager(root, **grouped(**{"save": ck.SaveEvery(micro_steps=10**9), **options}))
    manager.restore(run)
    return manager, run


def test_a_file_is_looked_for_once_a_second(root, tmp_path, caplog):
    clock, file = Clock(), tmp_path / "leave"
    manager, run = started(root, preempt_when=file, monotonic=clock)

    def train():
        with manager:
            for batches in run.train_until(WHOLE):
                manager.step(run)
                clock.now += 0.4
                if batches == 2:
                    file.touch()

    with pytest.raises(ck.Preempted) as raised:
        train()
    assert run.batches == 4  # at 0, 0.4 and 0.8 s it was not looked for again
    assert raised.value.code == TERMINATED
    assert raised.value.checkpoint == names(root)[-1] == "a000001-c0000000001-m0000"
    assert f"the file {file} is there (remove it before the next start): saved" in str(raised.value)
    assert str(raised.value) in caplog.text


def test_a_callable_asks_and_training_returns(root):
    manager, run = started(root, preempt_when=lambda: run.batches >= 5, on_preempt="return")
    with manager:
        for _ in run.train_until(WHOLE):
            assert not manager.preempted
            manager.step(run)
            if manager.preempted:
                break
    assert manager.preempted
    assert run.batches == 5
    assert restored_at(root) == 5


def test_last_save_is_reported_before_the_end(root):
    """What follows may never come to this manager again."""
    reports = []
    manager, run = started(root, preempt_when=lambda: run.batches >= 2, on_save=reports.append)
    train = run.train_until(WHOLE)
    next(train)
    manager.step(run)
    next(train)
    with pytest.raises(ck.Preempted) as raised:
        manager.step(run)
    assert [one.checkpoint for one in reports] == [raised.value.checkpoint] == names(root)
    manager.close()


def test_before_the_final_save_nobody_else_saves(root):
    """Also where a save is due, and where somebody asked: what belongs to the last state is still to come."""
    manager, run = started(root, save=ck.SaveEvery(micro_steps=1), preempt_when=lambda: run.batches >= 2)
    next(run.train_until(1))
    assert manager.step(run) is not None
    manager.wait()
    manager.live().final_save.is_held = True
    for _ in run.train_until(4):
        assert manager.step(run) is None
        assert not manager.live().heed(run, None, run.progress())
    assert names(root) == ["a000001-c0000000000-m0001"]
    manager._run.preemption.poll()
    with pytest.raises(ck.Preempted) as raised:
        manager.save_final(run)
    assert raised.value.checkpoint == names(root)[-1] == "a000001-c0000000001-m0000"
    assert manager.preempted
    manager.close()


@pytest.mark.parametrize("kind", [str, Path])
def test_a_relative_file_stays_where_it_was_meant(root, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    manager, run = started(root, preempt_when=kind("leave"), on_preempt="return")
    monkeypatch.chdir("/")
    (tmp_path / "leave").touch()
    with manager:
        next(run.train_until(1))
        manager.step(run)
    assert manager.preempted
    assert restored_at(root) == 1


def test_an_evaluation_is_no_slow_micro_step(root):
    clock = Clock()
    manager, run = started(root, monotonic=clock, on_preempt="return", preempt_when=lambda: run.batches >= 9)
    clock.now += 1
    with manager:
        for batches in run.train_until(WHOLE):
            clock.now += 0.1
            manager.step(run)
            if batches == 4:
                manager.save(run).result()
                manager.wait()
            if batches == 8:
                manager.pause()
                clock.now += 1000
            if manager.preempted:
                break
    assert run.batches == 12  # there is time to end the cycle


def test_on_save_is_no_slow_micro_step(root):
    clock = Clock()
    manager, run = started(
        root,
        monotonic=clock,
        on_preempt="return",
        preempt_when=lambda: run.batches >= 9,
        on_save=lambda _: setattr(clock, "now", clock.now + 1000),
    )
    with manager:
        for batches in run.train_until(WHOLE):
            clock.now += 0.1
            manager.step(run)
            if batches == 4:
                manager.save(run).result()  # the next step tells it
            if manager.preempted:
                break
    assert clock.now > 1000
    assert run.batches == 12  # there is time to end the cycle


def test_no_save_begins_while_cycle_is_finished(root):
    """It would keep the last one waiting, for which there is time now."""
    manager, run = started(
        root,
        save=ck.SaveEvery(micro_steps=1),
        keep=ck.KeepLatest(100),
        when_busy="wait",
        monotonic=Clock(),
        on_preempt="return",
        preempt_when=lambda: run.batches >= 9,
    )
    with manager:
        for _ in run.train_until(WHOLE):
            manager.step(run)
            if manager.preempted:
                break
    assert [one.progress.batches_delivered for one in manager.checkpoints()] == [*range(1, 9), 12]


def test_closing_with_a_timeout_keeps_it(root, monkeypatch, caplog):
    """Also where more of the grace is left: here, to wait for events."""
    monkeypatch.setattr("ckptkit.manager.recorder._SHORTEST", timedelta(0))
    go = threading.Event()
    storage = FaultyStorage(open_storage(root))
    manager, run = started(storage, preempt_when=lambda: run.batches == 1)
    next(run.train_until(1))
    with pytest.raises(ck.Preempted):
        manager.step(run)
    storage.inject(Fault(lambda: go.wait(5), key="events/*"))
    try:
        manager.close(timedelta(0))
    finally:
        go.set()
    assert "the storage accepted none for 0.0 s" in caplog.text


def test_save_under_way_takes_its_time_first(root):
    """A save takes 10 s, two of them and a margin more than there is, so that the cycle is not finished."""
    clock, go = Clock(), threading.Event()
    slow = Fault(lambda: setattr(clock, "now", clock.now + 10), operations={"write"})
    stuck = Fault(lambda: go.wait(20), operations={"write"}, key="*-c0000000001-m0000/*")
    manager, run = started(
        FaultyStorage(open_storage(root), [slow, stuck]),
        monotonic=clock,
        on_preempt="return",
        preempt_when=lambda: run.batches >= 5 and (go.set() or True),
        grace=timedelta(seconds=25),
    )
    with manager:
        for batches in run.train_until(WHOLE):
            manager.step(run)
            if batches == 2:
                manager.save(run).result()
                manager.wait()
                manager.pause()
            if batches == 4:
                manager.save(run)
            if manager.preempted:
                break
    assert slow.fired == stuck.fired == 1
    assert run.batches == 5


def test_failed_save_hides_no_request_to_end(root):
    """Even where no save may fail: the last one is made at the end of the cycle."""
    clock, go = Clock(), threading.Event()

    def fail():
        go.wait(20)
        raise ck.StorageError("no room")

    lost = Fault(fail, operations={"write"}, key="*-c0000000002-m0000/*")
    manager, run = started(
        FaultyStorage(open_storage(root), [lost]),
        monotonic=clock,
        on_save_error="raise",
        on_preempt="return",
        preempt_when=lambda: run.batches >= 9 and (go.set() or True),
    )
    handles = []
    with manager:
        for batches in run.train_until(WHOLE):
            if batches == 10:
                assert handles[0].exception() is not None
            manager.step(run)
            if batches == 4:
                manager.save(run).result()
                manager.wait()
            if batches == 8:
                handles.append(manager.save(run))
            if manager.preempted:
                break
    assert lost.fired
    assert run.batches == restored_at(root) == 12


def test_longest_of_the_last_saves_counts(root):
    """One took 100 s and the next one nothing, so that the cycle is not finished first."""
    clock = Clock()
    slow = Fault(lambda: setattr(clock, "now", clock.now + 100), operations={"write"})
    manager, run = started(
        FaultyStorage(open_storage(root), [slow]),
        monotonic=clock,
        on_preempt="return",
        preempt_when=lambda: run.batches >= 5,
        grace=timedelta(seconds=60),
    )
    with manager:
        for batches in run.train_until(WHOLE):
            manager.step(run)
            if batches in (2, 3):
                manager.save(run).result()
                manager.wait()
                manager.pause()
            if manager.preempted:
                break
    assert slow.fired == 1
    assert run.batches == 5


@pytest.mark.parametrize("grace", [timedelta(0), timedelta(seconds=-1), 25])
def test_there_must_be_some_grace(root, grace):
    with pytest.raises(ValueError, match="grace must be a positive timedelta"):
        ck.CheckpointManager(root, preemption=ck.Preemption(grace=grace))


@pytest.mark.parametrize(("option", "value"), [("then", "stop"), ("when", 5), ("when", "")])
def test_unknown_choices_are_refused(option, value):
    with pytest.raises(ValueError, match=f"{option} must be"):
        ck.Preemption(**{option: value})


# The decision


SOME = st.timedeltas(timedelta(0), timedelta(hours=1))


@given(st.integers(1, 1000), SOME, SOME, st.timedeltas(timedelta(0), timedelta(days=1)))
def test_fits_has_margin_and_is_monotonic(steps, micro_step, save, left):
    needed = steps * micro_step + save
    assert fits(steps, micro_step, save, left) == (needed * 1.5 <= left)
    if fits(steps, micro_step, save, left):
        assert fits(steps - 1, micro_step, save, left)
        assert fits(steps, micro_step, save, left * 2)


@given(st.integers(1, 9), st.none() | SOME, st.none() | SOME)
def test_what_nobody_has_measured_fits_nowhere(steps, micro_step, save):
    if micro_step is None or save is None:
        assert not fits(steps, micro_step, save, timedelta(days=99))


def test_pace_is_slowest_recent_micro_step():
    """The time of saves and evaluations does not count."""
    clock = Clock()
    pace = StepTiming(clock)
    pace.arrive(4)
    assert pace.micro_step is None  # its beginning is not known, and it compiled
    for seconds in (5, *[1] * 8):
        pace.depart()
        clock.now += seconds
        pace.arrive(4)
        clock.now += 100  # a save
    assert pace.micro_step == timedelta(seconds=1)
    pace.depart()
    pace.pause()
    clock.now += 1000  # an evaluation
    pace.arrive(4)
    assert pace.micro_step == timedelta(seconds=1)


def test_of_a_long_cycle_the_update_is_remembered():
    clock = Clock()
    pace = StepTiming(clock)
    for seconds in (9, *[1] * 31):
        pace.depart()
        clock.now += seconds
        pace.arrive(32)
    assert pace.micro_step == timedelta(seconds=9)


# Many ranks


def preempted(root, size, asks, *, until=40, faults=None, **options):
    """A job of threads; ``asks``: rank to the micro-step after which it alone is asked."""

    def act(world):
        storage = open_storage(root)
        fault = (faults or {}).get(world.rank)
        if fault is not None:
            storage = FaultyStorage(storage, [fault])
        run = new_run(world)
        when = lambda: run.batches >= asks.get(world.rank, 10**9)  # noqa: E731 - of this rank's own run
        manager = ck.CheckpointManager(
            storage, **grouped(**{"save": ck.SaveEvery(micro_steps=1000), "preempt_when": when, **options})
        )
        gathers = 0
        try:
            with manager:
                manager.restore(run)
                gathers = world.gathers
                for _ in run.train_until(until):
                    manager.step(run)
                    if manager.preempted:
                        break
        except (ck.Preempted, ck.CkptKitError) as error:
            return run.batches, error, run.digest()
        return run.batches, manager.preempted, world.gathers - gathers

    return results_of(run_ranks(size, act))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_preempted_rank_makes_all_save_same_moment(root, rank):
    lives = preempted(root, 3, {rank: 6}, monotonic=_ticking(), grace=timedelta(hours=9))
    assert {batches for batches, *_ in lives} == {6}
    assert [type(error) for _, error, _ in lives] == [ck.Preempted] * 3
    assert {error.checkpoint for _, error, _ in lives} == {"a000001-c0000000001-m0002"} == set(names(root))


def _ticking():
    """A clock by which everything takes more than a second."""
    clock = Clock()

    def tick() -> float:
        clock.now += 2
        return clock.now

    return tick


def test_ranks_meet_about_once_a_second(root):
    lives = preempted(root, 2, {}, until=30)
    gathers = {count for *_, count in lives}
    # The reductions of 7 cycles, the first meetings, until micro-steps are known to be short, and none after that.
    assert len(gathers) == 1
    assert gathers.pop() <= 7 + 3


def test_rank_0_says_when_ranks_meet(root):
    """Whose own micro-steps are five times as short."""

    def act(world):
        clock, run = Clock(), new_run(world)
        asks = lambda: world.rank == 1 and run.batches >= 20  # noqa: E731 - of this rank's own run
        options = {"monotonic": clock, "preempt_when": asks, "on_preempt": "return"}
        with ck.CheckpointManager(
            open_storage(root), save=ck.SaveEvery(micro_steps=1000), **grouped(**options)
        ) as manager:
            manager.restore(run)
            for _ in run.train_until(40):
                clock.now += 0.2 + 0.8 * world.rank
                manager.step(run)
                if manager.preempted:
                    break
        return run.batches

    ended = results_of(run_ranks(2, act))
    assert ended[0] == ended[1] < 40


def test_ranks_return_together_too(root):
    lives = preempted(root, 2, {1: 5}, monotonic=_ticking(), on_preempt="return", grace=timedelta(hours=9))
    assert [(batches, over) for batches, over, _ in lives] == [(5, True), (5, True)]
    assert names(root) == ["a000001-c0000000001-m0001"]


def test_unwritable_rank_fails_last_save_of_all(root):
    fault = Fault("error", operations={"write"}, key="*rank-00001*", times=None)
    lives = preempted(root, 2, {0: 5}, monotonic=_ticking(), faults={1: fault}, grace=timedelta(hours=9))
    assert fault.fired >= 1
    assert [type(error) for _, error, _ in lives] == [ck.Preempted] * 2
    assert {error.checkpoint for _, error, _ in lives} == {None}
    assert all("the last save failed" in str(error) and "rank 1" in str(error) for _, error, _ in lives)
    assert names(root) == []


def test_last_save_of_ranks_is_tried_again(root):
    fault = Fault("error", operations={"write"}, key="*rank-00001*")
    lives = preempted(root, 2, {0: 5}, monotonic=_ticking(), faults={1: fault}, grace=timedelta(hours=9))
    assert fault.fired == 1
    assert [error.checkpoint for _, error, _ in lives] == names(root) * 2


def test_every_rank_names_the_newest_checkpoint(root, monkeypatch):
    """Nor does a rank that learns of it only now take it for what the grace has saved."""
    recalled = []
    monkeypatch.setattr(PreemptionRequest, "recall", lambda preemption: recalled.append(preemption.account()))
    broken = Fault("error", operations={"write"}, key="*m0002*rank-00001*", times=None)
    options = {"save": ck.SaveEvery(micro_steps=1), "grace": timedelta(hours=9)}
    lives = preempted(root, 2, {0: 2}, monotonic=_ticking(), faults={1: broken}, **options)
    (newest,) = names(root)
    assert [error.checkpoint for _, error, _ in lives] == [None, None]
    assert all(f"The newest checkpoint is {newest} at" in str(error) for _, error, _ in lives)
    assert [f"The newest checkpoint is {newest} at" in account for account in recalled] == [True] * 3  # of rank 1


def departing(root, act, *, faults=None, **options):
    """A job of two threads whose ranks ``act(manager, run)``; what each raises or returns."""

    def life(world):
        storage = open_storage(root)
        if world.rank in (faults or {}):
            storage = FaultyStorage(storage, [faults[world.rank]])
        run = new_run(world)
        try:
            with ck.CheckpointManager(storage, **grouped(preempt_when=lambda: run.batches >= 1, **options)) as manager:
                manager.restore(run)
                return act(manager, run)
        except (ck.Preempted, ck.CkptKitError) as error:
            return error

    return results_of(run_ranks(2, life))


def train_and_step(manager, run):
    for _ in run.train_until(9):
        manager.step(run)
        if manager.preempted:
            break


def test_rank_asked_during_last_save_ends_all(root):
    def act(manager, run):
        for _ in run.train_until(6):
            manager.live().final_save.is_held = True
            manager.step(run)
        if run.world.rank == 1:
            manager._run.preemption.ask("a signal")
        manager.save_final(run)

    first, second = departing(root, act, grace=timedelta(hours=9))
    assert [type(error) for error in (first, second)] == [ck.Preempted] * 2
    assert str(first).startswith("another rank was asked to end: saved")
    assert str(second).startswith("a signal: saved")
    assert names(root) == [first.checkpoint] == [second.checkpoint]


def test_ranks_that_saved_just_now_end_at_once(root):
    def act(manager, run):
        for _ in run.train_until(1):
            name = manager.save(run).result()
            with pytest.raises(ck.Preempted) as raised:
                manager.step(run)
        return name, raised.value.checkpoint

    ended = departing(root, act, grace=timedelta(hours=9))
    assert {*ended} == {(name, name) for name in names(root)}


def test_ranks_end_although_no_save_may_fail(root):
    """One before has failed, which ends a training that goes on."""
    broken = Fault("error", operations={"write"}, key="*rank-00001*", times=None)

    def act(manager, run):
        for _ in run.train_until(1):
            assert manager.save(run).exception() is not None
            manager.step(run)

    ended = departing(root, act, faults={1: broken}, grace=timedelta(hours=9), on_save_error="raise")
    assert [type(error) for error in ended] == [ck.Preempted] * 2
    assert all("the last save failed" in str(error) for error in ended)
    assert names(root) == []


def test_a_takeover_ends_departing_ranks_too(root):
    takeover = Fault(
        lambda: ck.CheckpointManager(root, preemption=ck.Preemption(then="off")).restore(NumpyRun()),
        operations={"write"},
    )
    ended = departing(root, train_and_step, faults={0: takeover}, grace=timedelta(hours=9))
    assert [type(error) for error in ended] == [ck.StaleAttemptError] * 2
    assert names(root) == []


def test_a_hung_rank_holds_nobody_beyond_the_grace(root):
    go = threading.Event()
    hang = Fault(lambda: go.wait(60), operations={"write"})

    def act(manager, run):
        train_and_step(manager, run)
        go.set()
        manager.wait()
        return run.batches, manager.preempted

    options = {"on_preempt": "return", "grace": timedelta(milliseconds=1)}
    assert departing(root, act, faults={1: hang}, **options) == [(1, True)] * 2
    assert hang.fired == 1


class Unwatched(SignalWatch):
    """Has a thread that comes to read only when all is over."""

    def _watch(self, line):
        while not line.over:
            line.wait()
        line.close()


class Hearing:
    def __init__(self):
        self.signals = []

    def heard(self, number):
        self.signals.append(number)


def test_a_signal_before_the_training_is_no_preemption():
    """The last listener left in another thread, so that the line to the thread that reads is still there."""
    ears, earlier, later, own = Unwatched(), Hearing(), Hearing(), []
    before = signal.getsignal(signal.SIGTERM)
    try:
        ears.listen(earlier)
        leaving = threading.Thread(target=ears.leave, args=(earlier,))
        leaving.start()
        leaving.join()
        signal.signal(signal.SIGTERM, lambda *_: own.append("heard"))
        os.kill(os.getpid(), signal.SIGTERM)
        assert own == ["heard"]
        ears.listen(later)
        assert ears.leave(later)
        assert later.signals == []
    finally:
        signal.signal(signal.SIGTERM, before)


def test_handlers_stay_until_the_last_listener_leaves():
    ears, first, second = SignalWatch(), Hearing(), Hearing()
    before = signal.getsignal(signal.SIGTERM)
    try:
        ears.listen(first)
        ears.listen(second)
        assert not ears.leave(first)
        assert signal.getsignal(signal.SIGTERM) != before
        os.kill(os.getpid(), signal.SIGTERM)
        assert ears.leave(second)
        assert (first.signals, second.signals) == ([], [signal.SIGTERM])
        assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGTERM, before)


def test_thread_that_reads_while_the_last_listener_leaves_ends():
    """It does not take the byte that is to end it along with a signal's."""
    reads, signalled = threading.Event(), threading.Event()

    class Read(SignalWatch):
        def _restore(self, line):
            read = line.read

            def read_late():
                reads.set()
                signalled.wait(0.1)
                return read()

            line.read = read_late
            line.mouth.send(b"x")
            assert reads.wait(30)
            super()._restore(line)
            tell = line.tell
            line.tell = lambda number: (tell(number), signalled.set())

    ears, listener, others = Read(), Hearing(), {*threading.enumerate()}
    ears.listen(listener)
    (own,) = [one for one in threading.enumerate() if one not in others and one.name == "ckptkit-signals"]
    ears.leave(listener)
    own.join(30)
    assert not own.is_alive()


def test_what_somebody_set_meanwhile_stays():
    ears, hearing = SignalWatch(), Hearing()
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    before, descriptor = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
    try:
        ears.listen(hearing)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.set_wakeup_fd(mouth.fileno())
        ears.leave(hearing)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        assert signal.set_wakeup_fd(-1) == mouth.fileno()
    finally:
        signal.set_wakeup_fd(descriptor)
        signal.signal(signal.SIGTERM, before)
        ear.close()
        mouth.close()


def test_a_signal_breaks_off_no_system_call():
    """Such as one of a framework, which may take that for a failure."""
    library, letter = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(1)
    ear, mouth = os.pipe()
    counted = threading.Semaphore(0)

    class Counting:
        def heard(self, number):
            counted.release()

    def disturb():
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGTERM)
            assert counted.acquire(timeout=30)
        os.write(mouth, b"x")

    ears, listener, disturbing = SignalWatch(), Counting(), threading.Thread(target=disturb)
    ears.listen(listener)
    try:
        disturbing.start()
        assert library.read(ear, letter, 1) == 1
    finally:
        disturbing.join()
        ears.leave(listener)
        os.close(ear)
        os.close(mouth)


def test_signal_stays_with_another_training(root):
    """One that ends without having acted on it does not send it again, which would end the process at once."""
    other, own = Hearing(), []
    before = signal.signal(signal.SIGTERM, lambda *_: own.append("heard"))
    SIGNALS.listen(other)
    try:
        manager, _ = started(root, on_preempt="return")
        os.kill(os.getpid(), signal.SIGTERM)
        manager.close()
    finally:
        SIGNALS.leave(other)
        signal.signal(signal.SIGTERM, before)
    assert (other.signals, own) == ([signal.SIGTERM], [])


def test_first_signal_after_another_request_ends_nothing():
    """The training was asked by a file or by another rank, and saves."""
    clock = Clock()
    preemption = PreemptionRequest(
        ck.Preemption(grace=timedelta(seconds=30)), newest=lambda: None, url="somewhere", monotonic=clock
    )
    preemption.ask("another rank was asked to end")
    clock.now += 5
    assert preemption.heard(signal.SIGTERM) is None
    clock.now += 5
    assert preemption.heard(signal.SIGTERM) is not None  # ends the process
    preemption.settle()


@pytest.mark.parametrize(
    ("end", "number", "why"),
    [
        ("kill -9 $$", signal.SIGTERM, "SIGTERM after {} was killed by SIGKILL, probably by the OOM killer"),
        ("kill -11 $$", signal.SIGTERM, "SIGTERM after {} was killed by SIGSEGV"),
        ("exit 3", signal.SIGTERM, "SIGTERM after {} ended with exit code 3"),
        ("exit 0", signal.SIGTERM, "SIGTERM"),
        ("kill -15 $$", signal.SIGTERM, "SIGTERM"),  # the whole process group may have got it
        ("kill -9 $$", signal.SIGUSR1, "SIGUSR1"),  # MindSpore does not send that one
    ],
)
def test_sigterm_names_a_data_worker_that_died(end, number, why):
    preemption = PreemptionRequest(ck.Preemption(), newest=lambda: None, url="somewhere")
    child = subprocess.Popen(["/bin/sh", "-c", end])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    preemption.heard(number)
    assert preemption.why == why.format(f"child process {child.pid}, probably a data worker,")
    assert (preemption.dead_child != "") == ("after" in why)
    child.wait()
    assert child.returncode is not None  # its end was not taken from whoever waits for it


def test_child_that_had_died_before_is_not_blamed(monkeypatch):
    monkeypatch.setattr(SIGNALS, "listen", lambda listener: True)
    child = subprocess.Popen(["/bin/sh", "-c", "exit 3"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    preemption = PreemptionRequest(ck.Preemption(), newest=lambda: None, url="somewhere")
    preemption.begin()
    preemption.heard(signal.SIGTERM)
    assert (preemption.why, preemption.dead_child) == ("SIGTERM", "")
    assert child.wait() == 3


def test_ctrl_c_is_named_where_it_may_have_come():
    """MindSpore sends its own process SIGTERM after Ctrl-C, from C and anew in each step: nothing here sees that."""
    terminal, stdin = os.openpty()
    try:
        assert name_of(signal.SIGTERM, stdin) == "SIGTERM (which MindSpore also sends after Ctrl-C)"
        assert name_of(signal.SIGUSR1, stdin) == "SIGUSR1"
    finally:
        os.close(terminal)
        os.close(stdin)
    assert name_of(signal.SIGTERM, stdin) == "SIGTERM"  # no terminal, and not even a file


def test_after_its_end_training_has_no_grace():
    """Something worse has ended it, which the script may handle for as long as it likes."""
    there = threading.enumerate()
    preemption = PreemptionRequest(ck.Preemption(grace=timedelta(hours=9)), newest=lambda: None, url="somewhere")
    preemption.begin()
    preemption.ask("the file stop is there")
    assert preemption.is_asked
    preemption.end(quietly=True)
    assert not preemption.is_asked
    for thread in set(threading.enumerate()) - set(there):
        thread.join(60)
        assert not thread.is_alive()


def test_without_a_thread_the_last_save_is_made(root, monkeypatch, caplog):
    """Where none can watch the grace, nothing but the scheduler ends it."""
    start = threading.Thread.start

    def fail(thread):
        if thread.name == "ckptkit-grace":
            raise RuntimeError("can't start new thread")
        start(thread)

    manager, run = started(root, preempt_when=lambda: run.batches == 1)
    next(run.train_until(1))
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", fail)
        with pytest.raises(ck.Preempted) as raised:
            manager.step(run)
    manager.close()
    assert [raised.value.checkpoint] == names(root)
    assert "could not start the grace-period timer; only the scheduler will stop this process" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_was_learned_late_was_saved_before(monkeypatch):
    """A rank that does not commit is told by rank 0 when it meets it for the last save."""

    def end(code):
        said.append(code)
        raise SystemExit

    said, there, clock, newest = [], threading.enumerate(), Clock(), [None]
    monkeypatch.setattr(
        "ckptkit.manager.preemption.os", SimpleNamespace(write=lambda _, line: said.append(line), _exit=end)
    )
    preemption = PreemptionRequest(
        ck.Preemption(grace=timedelta(seconds=30)), newest=lambda: newest[0], url="somewhere", monotonic=clock
    )
    preemption.ask("a signal")
    newest[0], clock.now = "a000001-c0000000001-m0000", 31.0
    preemption.recall()
    for thread in set(threading.enumerate()) - set(there):
        thread.join(60)
    line, code = said
    assert line == (
        b"[ckptkit] a signal: nothing was saved within 30 s. The newest checkpoint is a000001-c0000000001-m0000 at "
        b"somewhere: the same command continues from it.\n"
    )
    assert code == TERMINATED


class Acting(Hearing):
    def __init__(self):
        super().__init__()
        self.acted = []

    def heard(self, number):
        super().heard(number)
        return lambda: self.acted.append(number)


@pytest.mark.parametrize("last", ["leave", "listen", "leave without the wakeup descriptor"])
def test_signal_before_the_reader_wakes_is_acted_on(last):
    ears, earlier, later = Unwatched(), Acting(), Acting()
    before, descriptor = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
    try:
        ears.listen(earlier)
        if "without" in last:
            signal.set_wakeup_fd(-1)  # as asyncio.run does
        os.kill(os.getpid(), signal.SIGTERM)
        if last == "listen":
            ears.listen(later)
            ears.leave(later)
        else:
            ears.leave(earlier)
        assert earlier.signals == earlier.acted == [signal.SIGTERM]
        assert later.signals == []
    finally:
        ears.leave(earlier)
        signal.set_wakeup_fd(descriptor)
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("own", [True, False], ids=["a handler", "ignored"])
def test_signal_without_listeners_goes_to_previous_handler(own):
    """The last one left in another thread, which cannot put it back."""
    ears, earlier, heard = Unwatched(), Hearing(), []
    before = signal.signal(signal.SIGTERM, (lambda number, frame: heard.append(number)) if own else signal.SIG_IGN)
    try:
        ears.listen(earlier)
        leaving = threading.Thread(target=ears.leave, args=(earlier,))
        leaving.start()
        leaving.join()
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == ([signal.SIGTERM] if own else [])
        assert earlier.signals == []
    finally:
        ears.listen(earlier)
        ears.leave(earlier)
        signal.signal(signal.SIGTERM, before)
