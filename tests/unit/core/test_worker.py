"""Latches, workers and lanes: all is done or has failed, and Ctrl-C anywhere leaves nobody waiting for ever."""

import ast
import contextlib
import gc
import itertools
import os
import threading
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.interrupted import InterruptedCall

import ckptkit
from ckptkit.core import worker
from ckptkit.core.worker import FEW, Lanes, Latch, NoThreadError, Worker, each_of
from ckptkit.errors import ResumeError

PLACES = (worker, threading, contextlib)
LONG_SECONDS = 30.0
MANY = 3 * FEW


def interrupted_at_each_place(*, more_than, modules=PLACES):
    """Ctrl-C at the first place of what a test does next, at the second, and so on, until there is none."""
    for nth in itertools.count(1):
        ctrl_c = InterruptedCall(nth, modules)
        yield ctrl_c
        if not ctrl_c.fired:
            assert nth > more_than
            return


def ended(threads, seconds=LONG_SECONDS):
    for thread in threads:
        thread.join(seconds)
    return not any(thread.is_alive() for thread in threads)


def started(*functions):
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    return threads


# Latch


@pytest.mark.parametrize(
    "action", [lambda latch: (latch.open(), latch.open(), latch.wait(1.0)), lambda latch: latch.wait(0.001)]
)
def test_no_ctrl_c_keeps_others_waiting(action):
    for ctrl_c in interrupted_at_each_place(more_than=3):
        latch = Latch()
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            action(latch)
        was_open = latch.is_open
        others = started(*[partial(latch.wait, LONG_SECONDS / 3)] * 2)
        latch.open()
        assert ended(others, LONG_SECONDS / 6 if not was_open else LONG_SECONDS)
        assert latch.wait(0.0)


def test_latch_survives_two_threads_that_open_at_once():
    """The second one releases the lock that the first, or a waiter, has just taken."""
    latch = Latch()
    assert [latch.wait(0.001), latch.wait(0.0), latch.wait(-1.0), latch.is_open] == [False] * 4
    latch._closed = SimpleNamespace(
        acquire=lambda timeout: setattr(latch, "_is_open", True) or True, release=threading.Lock().release
    )
    assert latch.wait(1.0)
    latch._is_open = False
    latch.open()
    assert latch.is_open


PYTHON_LOCKS = {"Event", "Semaphore", "BoundedSemaphore", "Barrier", "Queue", "LifoQueue", "PriorityQueue", "Future"}


def test_library_waits_for_nothing_that_ctrl_c_leaves_locked():
    package, calls = Path(ckptkit.__file__).parent, []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package).as_posix()
        if where.startswith("testing/"):  # the contract is for tests
            continue
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            made_outside = name == "Thread" and where != "core/worker.py"
            if made_outside or name in PYTHON_LOCKS or "Executor" in name or (name == "Condition" and not call.args):
                calls.append(f"{where}:{call.lineno} {name}()")
    assert calls == []


# Worker


class Work:
    def __init__(self, seconds=0.0):
        self.begun, self.ended, self._seconds = threading.Event(), threading.Event(), seconds

    def __call__(self):
        self.begun.set()
        threading.Event().wait(self._seconds)
        self.ended.set()


def joined(worker):
    """Whether `join` returns, in another thread, so that a hang is a failure."""
    return ended(started(worker.join))


def test_ctrl_c_at_any_place_of_a_start_is_raised_as_itself():
    for ctrl_c in interrupted_at_each_place(more_than=10):
        work = Work()
        begun = Worker(work, "test")
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            begun.start()
            assert not ctrl_c.fired, "Ctrl-C is lost"
        begun.join()  # in the thread that made it, which knows that no start is under way
        assert work.ended.is_set() == work.begun.is_set() != begun.take_back()


def test_ctrl_c_at_any_place_of_a_join_leaves_a_thread_that_runs_known():
    for ctrl_c in interrupted_at_each_place(more_than=3):
        work = Work(0.05)
        begun = Worker(work, "test")
        begun.start()
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            begun.join()
        begun.join()
        assert work.ended.is_set(), "join returns while the function runs"
        assert begun.has_ended


def test_function_that_raises_has_ended(monkeypatch):
    raised = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    begun = Worker(lambda: 1 // 0, "test", gives_way=True)
    begun.start()
    assert joined(begun)
    assert begun.has_ended
    assert begun._thread.native_id not in worker._GIVING_WAY  # another thread may get its number
    assert raised[0].exc_type is ZeroDivisionError


def test_only_a_missing_thread_is_taken_for_one(monkeypatch):
    """Within a handler of Ctrl-C, too; and an error of a signal handler is not."""
    begun, errors = Worker(Work(), "test"), [RuntimeError("can't start new thread")]
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(errors[-1]))
    with pytest.raises(NoThreadError, match="can't start"):
        begun.start()
    assert begun.take_back()
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(NoThreadError, match="can't start"):
            begun.start()
    for error in (ResumeError("can't go on of a signal handler"), RuntimeError("of a signal handler")):
        errors.append(error)
        with pytest.raises(RuntimeError, match="of a signal handler") as raised:
            begun.start()
        assert raised.value is error


def test_thread_of_the_process_that_forked_is_lost(monkeypatch):
    """Whether it runs, waits for its turn, or was never started."""
    go, begun = threading.Event(), threading.Event()
    running = Worker(lambda: (begun.set(), go.wait(LONG_SECONDS)), "test")
    running.start()
    assert begun.wait(LONG_SECONDS)
    waiting, late = Worker(Work(), "test"), Worker(Work(), "test")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: None)
        late.start()
    child = os.fork()
    if not child:
        # One of these may get the id of the lost one.
        others = [Worker(lambda: go.wait(LONG_SECONDS), "other") for _ in range(3)]
        for other in others:
            other.start()
        are_lost = all(worker.is_lost for worker in (running, waiting, late))
        os._exit(0 if are_lost and not any(other.is_lost for other in others) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not late.is_lost
    go.set()
    assert joined(running)


# Priorities


def priority(thread=0):
    return os.getpriority(os.PRIO_PROCESS, thread)


class Asked:
    def __init__(self, then=lambda: None):
        self.then, self.said, self.is_over = then, [], False
        self.asked, self.answered = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self):
        self.then()
        while self.asked.acquire(timeout=LONG_SECONDS) and not self.is_over:
            self.said.append(priority(threading.get_native_id()))
            self.answered.release()

    def now(self):
        self.asked.release()
        assert self.answered.acquire(timeout=LONG_SECONDS)
        return self.said[-1]


@pytest.fixture
def asks():
    every = []

    def start(work=None, *, gives_way=True):
        every.append(work := work or Asked())
        Worker(work, "test", gives_way=gives_way).start()
        return work

    yield start
    for work in every:
        work.is_over = True
        work.asked.release()


def test_worker_gives_way_except_while_a_thread_waits(asks):
    """And what it starts gives way with it."""
    before, inner = priority(), Asked()
    outer = asks(Asked(then=lambda: asks(inner, gives_way=False)))
    low = outer.now()
    high = before if low == 19 else low  # as the system allows
    assert low in (10, 19)
    assert inner.now() == low
    assert asks(gives_way=False).now() == before
    with worker.awaited():
        assert inner.now() == outer.now() == high
        with worker.awaited():
            assert asks().now() == before  # it begins meanwhile
        assert outer.now() == high
    assert inner.now() == outer.now() == low
    assert priority() == before


def test_thread_that_may_not_rise_again_does_not_go_so_low(asks, monkeypatch):
    """As in a container without CAP_SYS_NICE, where what a preemption waits for would get nothing of a busy core."""
    set_priority = os.setpriority

    def refusing(which, who, value):
        if value < os.getpriority(which, who):
            raise PermissionError(13, "Permission denied")
        set_priority(which, who, value)

    with monkeypatch.context() as patch:
        patch.setattr(worker.os, "setpriority", refusing)
        worker._lowest.cache_clear()
        first, low = asks(), max(10, priority() + 1)  # one lower is where it was tried
        assert first.now() == low
        with worker.awaited():
            assert first.now() == low
            assert asks().now() == priority()  # it was never lower
    worker._lowest.cache_clear()


def test_forked_process_has_priorities_of_its_own(asks):
    """It leaves threads of its parent alone, and waits for none although its parent does."""
    parent, child = asks(), Asked()
    low = parent.now()
    with worker.awaited():
        high, pid = parent.now(), os.fork()
        if pid == 0:
            with worker.awaited():
                pass
            Worker(child, "test", gives_way=True).start()
            os._exit(0 if child.now() in (10, 19) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert parent.now() == high
    assert parent.now() == low


# Lanes


def alive(name):
    """The threads that run; Python also lists one whose start was interrupted before it ran."""
    return [thread for thread in threading.enumerate() if thread.name == name and thread.is_alive()]


def squared(number):
    return number * number


@pytest.mark.parametrize("startable", [0, 1, 4])
def test_jobs_are_done_with_too_few_threads(monkeypatch, startable):
    """The process may have no more, or be on its way out."""
    real, running, done = threading.Thread.start, [], []

    def start(thread):
        if len(running) == startable:
            raise RuntimeError("can't start new thread")
        running.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with Lanes(4) as lanes:
        for _ in range(2):  # they can be used again after they have finished
            for number in range(20):
                lanes.submit(partial(done.append, number))
            lanes.finish()
    assert sorted(done) == sorted([*range(20)] * 2)
    assert len(running) == startable
    assert not any(thread.is_alive() for thread in running)


def test_after_a_failure_no_job_is_taken():
    begun = []

    def job(number):
        begun.append(number)
        raise ValueError(f"lost {number}")

    with Lanes(1) as lanes:
        lanes.submit(lambda: job(0))
        assert lanes.stop.wait(60)
        for attempt in (lambda: lanes.submit(lambda: job(1)), lanes.finish):
            with pytest.raises(ValueError, match="lost 0"):
                attempt()
    assert begun == [0]


def test_what_still_runs_learns_of_a_failure():
    begun, stopped = threading.Event(), []

    def waiting(stop):
        begun.set()
        stopped.append(stop.wait(60))

    def fail():
        assert begun.wait(60)
        raise ValueError("lost")

    def use(last):
        begun.clear()
        with Lanes(2) as lanes:
            lanes.submit(partial(waiting, lanes.stop))
            last(lanes)
            lanes.finish()

    for last in (lambda lanes: lanes.submit(fail), lambda lanes: fail()):
        with pytest.raises(ValueError, match="lost"):
            use(last)
    assert stopped == [True, True]


def test_results_come_in_order_or_the_first_error():
    """After which the rest is not called."""
    for count in (500, FEW, 0):
        assert each_of(range(count), squared) == [number * number for number in range(count)]
    assert alive("ckptkit-read") == []
    called, begun, stopped = [], threading.Event(), threading.Event()

    def fails(number):
        called.append(number)
        if number == 0:
            assert begun.wait(60)
            raise ValueError("first")
        begun.set()
        assert stopped.wait(60)
        if number == 1:
            raise ValueError("later")

    with pytest.raises(ValueError, match="first"):
        each_of(range(10_000), fails, stop=stopped.set)
    assert len(called) < 1000
    assert alive("ckptkit-read") == []


def test_error_keeps_nothing_until_the_collector_runs():
    class Memory: ...

    def fails(memory):
        raise ValueError("lost")

    memories = [Memory() for _ in range(MANY)]
    kept = [weakref.ref(memory) for memory in memories]
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            each_of(memories, fails)
        memories.clear()
        assert not any(memory() for memory in kept)
    finally:
        gc.enable()


@pytest.mark.parametrize("fails", [True, False])
def test_no_ctrl_c_leaves_a_thread(fails):
    function = (lambda number: 1 // (number - FEW + 1)) if fails else squared
    for ctrl_c in interrupted_at_each_place(more_than=MANY, modules=(worker, threading)):

        def call(ctrl_c=ctrl_c):
            with contextlib.suppress(KeyboardInterrupt, ZeroDivisionError), ctrl_c:
                each_of(range(MANY), function)

        assert ended(started(call)), "it never ends"
        assert ended(alive("ckptkit-read"))
