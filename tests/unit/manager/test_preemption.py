"""Real signals to real processes: what is saved, what the process says, with which code it ends."""

import contextlib
import ctypes
import functools
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from support.clock import Manual
from support.live import Stall, let_end
from support.options import grouped
from support.process import forked, python
from support.runs.grown import run_at, started
from support.runs.ranks import job, new_run
from support.thread_ranks import results_of, run_ranks

import ckptkit as ck
from ckptkit.manager.preemption import SIGNALS, PreemptionRequest, SignalWatch, name_of
from ckptkit.manager.run import Run
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

    def of(self, key):
        found = [one[key] for one in self.said if key in one]
        return found[-1] if found else None


def live(root, **plan) -> Ended:
    """One life of the training."""
    done = forked(VICTIM, root, json.dumps({"until": WHOLE, **plan}), expect=None, timeout=20)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return Ended(done.returncode, said, done.stderr)


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


@pytest.mark.parametrize("at", [8, 10])
def test_signal_at_any_micro_step_saves_it(root, at):
    """The process ends with 143, and the same command goes on from there. A launcher may repeat a signal."""
    ended = live(root, signals={at: ["SIGTERM", "SIGUSR1", "SIGTERM"]})
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


def test_grace_ends_without_stderr_reader(root):
    ear, mouth = os.pipe()
    os.close(ear)
    plan = {"until": WHOLE, "stall": "checkpoints/*", "grace": 1, "signals": {6: ["SIGTERM"]}}
    python(VICTIM, root, json.dumps(plan), expect=TERMINATED, stdout=subprocess.DEVNULL, stderr=mouth)
    os.close(mouth)


HUNG = """
from ckptkit.testing.faults import Fault, FaultyStorage
mirror = FaultyStorage(open_storage(sys.argv[1] + "-mirror"))
more_options = {"mirror": mirror}
def after_step(batches):
    if batches == 4:
        mirror.inject(Fault(clock.hang, operations={"write", "create"}, key="*", times=None))
"""
# Three uploads fail within the grace; the fourth would hang, and nothing would end the process.
FAILING = HUNG.replace('key="*"', "nth=4").replace(
    "        mirror", '        mirror.inject(Fault("error", operations={"write"}, times=3))\n        mirror'
)
LEAVES = "def after(): say(after=True); os._exit(5)"  # at the end of the interpreter the save would be waited for
# The mirror lacks the save before the last one, which fails; what close uploads there hangs.
FOR_CLOSE = (
    HUNG.partition("def after_step")[0]
    + """
mirror.inject(Fault("error", operations={"write"}, key="checkpoints/*"))
mirror.inject(Fault(lambda: (say(hangs=True), clock.hang()), operations={"write"}, key="checkpoints/*", nth=2))
def after_step(batches):
    if batches == 4:
        manager = sys._getframe(1).f_locals["manager"]
        manager._run.results.drain()
        manager._setup.mirrors._uploads[0].settle(lambda: 60.0)
"""
)
LATE = """
import ckptkit.manager.run as module
wait = module.Run.wait
def signalled(self, timeout=None, **how):
    wait(self, timeout, **how)
    os.kill(os.getpid(), signal.SIGTERM)
module.Run.wait = signalled
"""
# The handler of a training, set by somebody after it: it ends the process as before, and hears in the next training.
REINSTALLED = """
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
        assert manager.preempted
    signal.signal(signal.SIGTERM, kept[0])
    os.kill(os.getpid(), signal.SIGTERM)
"""
ASYNCIO = """
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
AT_ONCE = """
import ckptkit.manager.preemption as preemption
preemption._ONE_SIGNAL = timedelta(0)  # however soon after the first signal the second one comes
"""
AT_6 = {6: ["SIGTERM"]}
RETURNS = {"on_preempt": "return"}
SAVED = "SIGTERM: saved a000001-c0000000001-m0002"
NEWEST = "The newest checkpoint is a000001-c0000000001-m0000 at {}: the same command continues from it"
LATE_SAVE = "SIGTERM: the last save, or what follows it such as an upload, did not end within 1 s. "
SECOND = "SIGUSR1 arrived again after SIGTERM, so the process ends without waiting. "


@pytest.mark.parametrize(
    ("plan", "code", "says", "newest"),
    [
        (
            {"until": 6, "stall": "*COMMIT", "signal_at_stall": "SIGTERM", "grace": 1},
            143,
            "There is no checkpoint at",
            (),
        ),
        ({"every": 4, "stall": "*m0002*", "grace": 1, "signals": AT_6}, 143, LATE_SAVE + NEWEST, (4,)),
        (
            {"every": 4, "stall": "*m0002*", "signal_at_stall": "SIGUSR1", "script": AT_ONCE, "signals": AT_6},
            *(143, SECOND + NEWEST, (4,)),
        ),
        (
            {"script": HUNG, "grace": 1, "signals": AT_6},
            143,
            "did not end within 1 s. The newest checkpoint is a000001-c0000000001-m0002",
            (6,),
        ),
        ({"script": FAILING, "grace": 1, "signals": AT_6}, 143, "failed (3 in a row)", (6,)),
        ({"script": HUNG + LEAVES, "grace": 1, "signals": AT_6, "options": RETURNS}, 5, "not at the mirror yet", (6,)),
        (
            {"stall": "checkpoints/*", "script": LEAVES, "grace": 1, "signals": AT_6, "options": RETURNS},
            *(5, "was not committed within the grace", ()),
        ),
        (
            {"script": FOR_CLOSE, "every": 4, "fail": "*c0000000002*", "grace": 1, "signals": {8: ["SIGTERM"]}},
            *(143, "SIGTERM: the last save failed: injected failure", (4,)),
        ),
        ({"options": {"on_preempt": "off"}, "signals": AT_6}, -signal.SIGTERM, "", ()),
        ({"until": 6, "script": LATE}, -signal.SIGTERM, "SIGTERM arrived after training had ended and its last", (6,)),
        ({"until": 6, "signals": AT_6}, 143, SAVED, (6,)),
        ({"until": 6, "script": REINSTALLED}, -signal.SIGTERM, "", (7,)),
        ({"script": ASYNCIO}, 143, "SIGTERM: saved", (7, 9)),
    ],
    ids=[
        *(
            "hang at the end",
            "hung storage",
            "second signal",
            "hung mirror",
            "failing mirror",
            "returns from a hung mirror",
            "returns from a hung disk",
        ),
        "hung for close",
        *("off", "late", "at the end", "reinstalled handler", "asyncio"),
    ],
)
def test_signal_ends_a_life_as_it_should(root, plan, code, says, newest):
    """Nothing of the script after the training runs."""
    ended = live(root, **plan)
    assert (ended.code, ended.of("exported")) == (code, None)
    assert says.format(root) in ended.log
    assert "Traceback" not in ended.log
    assert (restored_at(root) in newest) if newest else (names(root) == [])


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


@pytest.fixture
def own():
    """What the program's own handler of SIGTERM has heard."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    descriptor = signal.set_wakeup_fd(-1)
    yield heard
    with contextlib.suppress(OSError, ValueError):  # that of a manager which another test left open is closed by now
        signal.set_wakeup_fd(descriptor)
    signal.signal(signal.SIGTERM, before)


def test_late_signal_does_not_hide_an_error(root, own):
    """Whoever had the signal before ends the process, as a rule."""
    storage = FaultyStorage(open_storage(root), [Fault("error", operations={"write"})])
    manager, run = started(storage, on_save_error="raise", on_preempt="return")
    manager.save(run).exception()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(ck.SaveFailedError, match="injected"):
        manager.close()
    assert own == []


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


def test_other_thread_uses_callable_without_signals(root, caplog):
    caplog.set_level("INFO", "ckptkit")
    raised, run = [], NumpyRun()

    def act():
        with pytest.raises(ck.Preempted) as error:
            train(started(root, run, preempt_when=lambda: run.batches == 6)[0], run)
        raised.append(error.value.checkpoint)

    before, thread = signal.getsignal(signal.SIGTERM), threading.Thread(target=act)
    thread.start()
    thread.join()
    assert raised == ["a000001-c0000000001-m0002"]
    assert "training is not in the main thread" in caplog.text
    assert signal.getsignal(signal.SIGTERM) is before


def train(manager, run, after_step=lambda: None):
    with manager:
        for _ in run.train_until(WHOLE):
            manager.step(run)
            after_step()
            if manager.preempted:
                break


def test_a_file_is_looked_for_once_a_second(root, tmp_path, caplog):
    clock, file = Manual(), tmp_path / "leave"
    manager, run = started(root, preempt_when=file, monotonic=clock)

    def after_step():
        clock.now += 0.4
        if run.batches == 2:
            file.touch()

    with pytest.raises(ck.Preempted) as raised:
        train(manager, run, after_step)
    assert run.batches == 4  # at 0, 0.4 and 0.8 s it was not looked for again
    assert raised.value.code == TERMINATED
    assert raised.value.checkpoint == names(root)[-1] == "a000001-c0000000001-m0000"
    assert f"the file {file} is there (remove it before the next start): saved" in str(raised.value)
    assert str(raised.value) in caplog.text


def test_before_the_final_save_nobody_else_saves(root):
    """Also where a save is due, and where somebody asked: what belongs to the last state is still to come."""
    manager, run = started(root, save=ck.SaveEvery(micro_steps=1), preempt_when=lambda: run.batches >= 2)
    next(run.train_until(1))
    assert manager.step(run) is not None
    manager.wait()
    manager.live().is_held = True
    for _ in run.train_until(4):
        assert manager.step(run) is None
        assert not manager.live().end_if_asked(run, None, run.progress())
    assert names(root) == ["a000001-c0000000000-m0001"]
    manager._run.preemption.poll()
    with pytest.raises(ck.Preempted) as raised:
        manager.save_final(run)
    assert raised.value.checkpoint == names(root)[-1] == "a000001-c0000000001-m0000"
    assert manager.preempted
    manager.close()


def test_neither_an_evaluation_nor_on_save_is_a_slow_micro_step(root):
    clock = Manual()
    manager, run = started(
        root,
        monotonic=clock,
        on_preempt="return",
        preempt_when=lambda: run.batches >= 9,
        on_save=lambda _: setattr(clock, "now", clock.now + 1000),
    )

    def after_step():
        if run.batches == 4:
            manager.save(run).result()
        if run.batches == 8:
            assert clock.now > 1000, "the step after a save calls on_save"
            manager.pause()
            clock.now += 1000
        clock.now += 0.1

    train(manager, run, after_step)
    assert clock.now > 2000
    assert run.batches == 12  # there is time to end the cycle


def test_no_save_begins_while_cycle_is_finished(root):
    """It would keep the last one waiting, for which there is time now."""
    manager, run = started(
        root,
        save=ck.SaveEvery(micro_steps=1),
        when_busy="wait",
        monotonic=Manual(),
        on_preempt="return",
        preempt_when=lambda: run.batches >= 9,
    )
    train(manager, run)
    assert [one.progress.batches_delivered for one in manager.checkpoints()] == [*range(1, 9), 12]


def test_failed_save_hides_no_request_to_end(root):
    """Even where no save may fail: the last one is made at the end of the cycle."""
    lost = Fault("error", operations={"write"}, key="*-c0000000002-m0000/*")
    options = {"monotonic": Manual(), "on_save_error": "raise", "on_preempt": "return"}
    storage = FaultyStorage(open_storage(root), [lost])
    manager, run = started(storage, preempt_when=lambda: run.batches >= 8, **options)

    def after_step():  # and before the next one
        manager.live().is_held = run.batches == 7
        if run.batches == 4:
            manager.save(run).result()
        if run.batches == 7:
            run.train_step()
            manager._run.preemption.poll()
            assert manager.save(run).exception() is not None
            manager.step(run)
            manager.live().is_held = False

    train(manager, run, after_step)
    assert lost.fired == 1
    assert run.batches == restored_at(root) == 12


HOURS = timedelta(hours=9)


def preempted(root, size, asks, *, faults=None, saves_at=0, **options):
    """A job of threads; ``asks``: rank to the micro-step after which it alone is asked.

    By its clock everything takes more than a second.
    """
    ticking = functools.partial(next, itertools.count(2.0, 2.0))

    def act(storage, world, until):
        run = new_run(world)
        when = lambda: run.batches >= asks.get(world.rank, 10**9)  # noqa: E731 - of this rank's own run
        # A clock that ticks must not end the patience between ranks.
        usual = {"save": ck.SaveEvery(micro_steps=1000), "preempt_when": when, "rank_patience": HOURS}
        given = grouped(**{**usual, "monotonic": ticking, "grace": HOURS, **options})
        try:
            with ck.CheckpointManager(storage, **given) as manager:
                manager.restore(run)
                for batches in run.train_until(until):
                    if batches == saves_at:
                        manager.save(run).exception()
                    manager.step(run)
                    if manager.preempted:
                        break
        except (ck.Preempted, ck.CkptKitError) as error:
            return run.batches, error
        return run.batches, manager.preempted

    return results_of(job(root, size, 40, faults=faults, act=act))


@pytest.mark.parametrize("rank", [0, 2])
def test_preempted_rank_makes_all_save_same_moment(root, rank):
    lives = preempted(root, 3, {rank: 6})
    assert {batches for batches, _ in lives} == {6}
    assert [type(error) for _, error in lives] == [ck.Preempted] * 3
    assert {error.checkpoint for _, error in lives} == {"a000001-c0000000001-m0002"} == set(names(root))


def test_unwritable_rank_fails_last_save_of_all(root):
    """All name the newest checkpoint, also who learns of it only now."""
    broken = Fault("error", operations={"write"}, key="*m0002*rank-00001*", times=None)
    lives = preempted(root, 2, {0: 2}, faults={1: broken}, save=ck.SaveEvery(micro_steps=1))
    (newest,) = names(root)
    for _, error in lives:
        assert (type(error), error.checkpoint) == (ck.Preempted, None)
        assert "the last save failed" in str(error)
        assert "rank 1" in str(error)
        assert f"The newest checkpoint is {newest} at" in str(error)


def test_a_hung_rank_holds_nobody_beyond_the_grace(root):
    go = threading.Event()
    hang = Fault(lambda: go.wait(60), operations={"write"})
    lives = preempted(root, 2, {0: 1, 1: 1}, faults={1: hang}, on_preempt="return", grace=timedelta(milliseconds=1))
    assert names(root) == []
    go.set()
    let_end("ckptkit-writer")
    assert [(batches, over) for batches, over in lives] == [(1, True)] * 2
    assert hang.fired == 1


def test_failed_save_of_ranks_keeps_them_from_no_last_one(root):
    """Also where none may fail, which ends a training that goes on."""
    fault = Fault("error", operations={"write"}, key="*rank-00001*")
    lives = preempted(root, 2, {0: 1}, faults={1: fault}, saves_at=1, on_save_error="raise")
    assert fault.fired == 1
    assert [error.checkpoint for _, error in lives] == names(root) * 2


@pytest.mark.parametrize("size", [1, 2])
def test_last_save_follows_one_under_way_that_fails(root, size, monkeypatch):
    """It fails when the last save waits for it already."""
    stall, wait = Stall(), Run._wait_a_while

    def lose():
        stall()
        raise ck.StorageError("lost")

    def wait_a_while(run, left):
        if run.results.busy:
            stall.let_go()
        wait(run, left)

    monkeypatch.setattr(Run, "_wait_a_while", wait_a_while)
    fault = Fault(lose, operations={"write"}, key=f"*m0001*rank-{size - 1:05}*")
    options = {"save": ck.SaveEvery(micro_steps=1), "on_save_error": "raise"}
    lives = preempted(root, size, {0: 2}, faults={size - 1: fault}, **options)
    assert fault.fired == 1
    assert [error.checkpoint for _, error in lives] == names(root) * size == ["a000001-c0000000000-m0002"] * size


def test_a_takeover_ends_departing_ranks_too(root):
    other = ck.CheckpointManager(root, preemption=ck.Preemption(then="off"))
    takeover = Fault(lambda: other.restore(NumpyRun()), operations={"write"})
    lives = preempted(root, 2, {1: 1}, faults={0: takeover})
    assert [type(error) for _, error in lives] == [ck.StaleAttemptError] * 2
    assert names(root) == []


def test_rank_asked_during_last_save_ends_all(root):
    def act(world):
        run = new_run(world)
        preemption = ck.Preemption(when=lambda: False, grace=HOURS)
        with ck.CheckpointManager(root, preemption=preemption) as manager:
            manager.restore(run)
            run.train_step()
            if world.rank == 1:
                manager._run.preemption.ask("a signal")
            with pytest.raises(ck.Preempted) as raised:
                manager.save_final(run)
        return str(raised.value)

    first, second = results_of(run_ranks(2, act))
    assert first.startswith(f"another rank was asked to end: saved {names(root)[0]}")
    assert second.startswith(f"a signal: saved {names(root)[0]}")


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


def test_a_signal_before_the_training_is_no_preemption(own):
    """The last listener left in another thread, which cannot put the handler before back."""
    ears, earlier, later = Unwatched(), Hearing(), Hearing()
    ears.listen(earlier)
    leaving = threading.Thread(target=ears.leave, args=(earlier,))
    leaving.start()
    leaving.join()
    os.kill(os.getpid(), signal.SIGTERM)
    assert own == [signal.SIGTERM]
    ears.listen(later)
    assert ears.leave(later)
    assert earlier.signals == later.signals == []


@pytest.mark.usefixtures("own")
def test_what_somebody_set_meanwhile_stays():
    ears, hearing = SignalWatch(), Hearing()
    ear, mouth = socket.socketpair()
    mouth.setblocking(False)
    with ear, mouth:
        ears.listen(hearing)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.set_wakeup_fd(mouth.fileno())
        ears.leave(hearing)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        assert signal.set_wakeup_fd(-1) == mouth.fileno()


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
        os.close(mouth)

    ears, listener, disturbing = SignalWatch(), Counting(), threading.Thread(target=disturb)
    ears.listen(listener)
    disturbing.start()
    read = library.read(ear, letter, 1)
    disturbing.join()
    ears.leave(listener)
    os.close(ear)
    assert read == 1


def request(clock=time.monotonic, newest=lambda: None) -> PreemptionRequest:
    options = ck.Preemption(grace=timedelta(seconds=30))
    return PreemptionRequest(options, newest=newest, url="somewhere", monotonic=clock)


def test_signal_stays_with_another_training(root, own):
    """One that ends without having acted on it does not send it again, which would end the process at once."""
    other = Hearing()
    SIGNALS.listen(other)
    manager, _ = started(root, on_preempt="return")
    os.kill(os.getpid(), signal.SIGTERM)
    manager.close()
    SIGNALS.leave(other)
    assert (other.signals, own) == ([signal.SIGTERM], [])


def test_first_signal_after_another_request_ends_nothing(monkeypatch):
    """The training was asked by a file or by another rank, and saves."""
    clock, died = Manual(), []
    monkeypatch.setattr(PreemptionRequest, "_die", lambda preemption, what: died.append(what))
    preemption = request(clock)
    preemption.ask("another rank was asked to end")
    for seconds in (5, 0.4, 5):
        assert died == []
        clock.now += seconds
        act = preemption.heard(signal.SIGTERM)
        if act is not None:
            act()
    assert len(died) == 1
    preemption.settle()


def test_sigterm_names_a_data_worker_that_died(monkeypatch):
    monkeypatch.setattr(SIGNALS, "listen", lambda listener: True)
    for end, number, why in [
        ("kill -9 $$", signal.SIGTERM, "SIGTERM after {} was killed by SIGKILL, probably by the OOM killer"),
        ("kill -11 $$", signal.SIGTERM, "SIGTERM after {} was killed by SIGSEGV"),
        ("exit 3", signal.SIGTERM, "SIGTERM after {} ended with exit code 3"),
        ("exit 0", signal.SIGTERM, "SIGTERM"),
        ("kill -15 $$", signal.SIGTERM, "SIGTERM"),  # the whole process group may have got it
        ("kill -9 $$", signal.SIGUSR1, "SIGUSR1"),  # MindSpore does not send that one
        ("exit 4", signal.SIGTERM, "SIGTERM"),  # it had died before the training
    ]:
        preemption = request()
        child = subprocess.Popen(["/bin/sh", "-c", end])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        if end == "exit 4":
            preemption.begin()
        preemption.heard(number)
        assert preemption.why == why.format(f"child process {child.pid}, probably a data worker,")
        assert (preemption.dead_child != "") == ("after" in why)
        preemption.settle()
        child.wait()
        assert child.returncode is not None  # its end was not taken from whoever waits for it


@pytest.mark.usefixtures("own")
def test_a_log_that_blocks_holds_up_no_final_save(monkeypatch):
    """The thread that reads the signal waits for the log, and training must learn of the request nevertheless."""
    is_logging, may_go_on, is_over = threading.Event(), threading.Event(), threading.Event()

    class Blocking(logging.Handler):
        def emit(self, record):
            is_logging.set()
            may_go_on.wait(10)
            is_over.set()

    preemption = request()
    preemption.begin()
    monkeypatch.setattr(logging.getLogger("ckptkit"), "handlers", [Blocking()])
    os.kill(os.getpid(), signal.SIGTERM)
    assert is_logging.wait(60)
    assert preemption.poll()
    assert not is_over.is_set()
    may_go_on.set()
    preemption.settle()
    preemption.end()


def test_ctrl_c_is_named_where_it_may_have_come():
    """MindSpore sends its own process SIGTERM after Ctrl-C, from C and anew in each step: nothing here sees that."""
    terminal, stdin = os.openpty()
    names = [name_of(number, stdin) for number in (signal.SIGTERM, signal.SIGUSR1)]
    os.close(terminal)
    os.close(stdin)
    assert names == ["Ctrl-C or SIGTERM", "SIGUSR1"]
    assert name_of(signal.SIGTERM, stdin) == "SIGTERM"  # no terminal, and not even a file


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("last", ["listen", "leave without the wakeup descriptor", "the rest of leave"])
def test_signal_before_the_reader_wakes_is_acted_on(last):
    ears, earlier, later = Unwatched(), Hearing(), Hearing()
    ears.listen(earlier)
    read = ears._read

    def read_before():
        ears._read, acts = read, read()
        os.kill(os.getpid(), signal.SIGTERM)
        return acts

    if last == "leave without the wakeup descriptor":
        signal.set_wakeup_fd(-1)  # as asyncio.run does
    if last == "the rest of leave":
        ears._read = read_before
    else:
        os.kill(os.getpid(), signal.SIGTERM)
    if last == "listen":
        ears.listen(later)
        ears.leave(later)
    ears.leave(earlier)
    assert earlier.signals == [signal.SIGTERM]
    assert later.signals == []
