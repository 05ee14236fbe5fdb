"""A function in a thread of its own runs whole or never, wherever Ctrl-C arrives, and nobody takes it for ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading

import pytest
from support.interrupted import InterruptedCall

from ckptkit.core import worker
from ckptkit.core.worker import NoThreadError, Worker
from ckptkit.errors import ResumeError

PLACES = (worker, threading, contextlib)
LONG_SECONDS = 30.0


class Work:
    """A function that takes a moment."""

    def __init__(self, seconds=0.0):
        self.begun, self.ended, self._seconds = threading.Event(), threading.Event(), seconds

    def __call__(self):
        self.begun.set()
        threading.Event().wait(self._seconds)
        self.ended.set()


def joined(one):
    """Whether `join` returns, in another thread, so that a hang is a failure."""
    thread = threading.Thread(target=one.join, daemon=True)
    thread.start()
    thread.join(LONG_SECONDS)
    return not thread.is_alive()


def test_ctrl_c_at_any_place_of_a_start_is_raised_as_itself():
    for nth in itertools.count(1):
        work = Work()
        one, ctrl_c = Worker(work, "test"), InterruptedCall(nth, PLACES)
        try:
            with ctrl_c:
                one.start()
        except KeyboardInterrupt:
            assert ctrl_c.fired
        else:
            assert not ctrl_c.fired, "Ctrl-C is lost"
        one.join()  # in the thread that made it, which knows that no start is under way
        assert work.ended.is_set() == work.begun.is_set()
        assert work.begun.is_set() != one.take_back()
        if not ctrl_c.fired:
            assert nth > 10
            return


def test_ctrl_c_at_any_place_of_a_join_leaves_a_thread_that_runs_known():
    for nth in itertools.count(1):
        work = Work(0.05)
        one, ctrl_c = Worker(work, "test"), InterruptedCall(nth, PLACES)
        one.start()
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            one.join()
        one.join()
        assert work.ended.is_set(), f"join returns while the function runs, after Ctrl-C at place {nth}"
        assert one.has_ended
        if not ctrl_c.fired:
            assert nth > 3
            return


def test_function_taken_back_never_runs():
    work = Work()
    one = Worker(work, "test")
    assert one.take_back()
    assert one.is_lost
    one.start()
    assert joined(one)
    assert not work.begun.is_set()


def test_function_that_raises_has_ended(monkeypatch):
    said = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    one = Worker(lambda: 1 // 0, "test", gives_way=True)
    one.start()
    assert joined(one)
    assert one.has_ended
    assert one._thread.native_id not in worker._GIVING_WAY  # another thread may get its number
    assert said[0].exc_type is ZeroDivisionError


def starts_with(monkeypatch, error):
    def start(thread):
        raise error

    monkeypatch.setattr(threading.Thread, "start", start)
    return Worker(Work(), "test")


def test_no_more_threads_is_said_and_the_function_may_be_taken_back(monkeypatch):
    """Within a handler of Ctrl-C, it is not taken for that."""
    one = starts_with(monkeypatch, RuntimeError("can't start new thread"))
    with pytest.raises(NoThreadError, match="can't start"):
        one.start()
    assert one.take_back()
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(NoThreadError, match="can't start"):
            one.start()


@pytest.mark.parametrize("error", [ResumeError("can't go on of a signal handler"), RuntimeError("of a signal handler")])
def test_error_of_a_signal_handler_is_not_taken_for_a_missing_thread(monkeypatch, error):
    with pytest.raises(RuntimeError, match="of a signal handler") as raised:
        starts_with(monkeypatch, error).start()
    assert raised.value is error


def test_thread_of_the_process_that_forked_is_lost():
    go, begun = threading.Event(), threading.Event()
    running = Worker(lambda: (begun.set(), go.wait(LONG_SECONDS)), "test")
    running.start()
    assert begun.wait(LONG_SECONDS)
    waiting = Worker(Work(), "test")
    child = os.fork()
    if not child:
        # One of these may get the id of the lost one.
        others = [Worker(lambda: go.wait(LONG_SECONDS), "other") for _ in range(3)]
        for one in others:
            one.start()
        os._exit(0 if running.is_lost and waiting.is_lost and not any(one.is_lost for one in others) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go.set()
    assert joined(running)


def priority(thread=0):
    return os.getpriority(os.PRIO_PROCESS, thread)


class Told:
    """A function that says its priority each time that it is asked to."""

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

    def end(self):
        self.is_over = True
        self.asked.release()


@pytest.fixture
def asks():
    """Starts workers that give way, and ends them."""
    every = []

    def started(work=None, **options):
        every.append(work := work or Told())
        one = Worker(work, "test", **{"gives_way": True, **options})
        one.start()
        return work

    yield started
    for one in every:
        one.end()


def test_worker_gives_way_except_while_a_thread_waits(asks):
    before, first = priority(), asks()
    low = first.now()
    high = before if low == 19 else low  # as the system allows
    assert low in (10, 19)
    assert asks(gives_way=False).now() == before
    with worker.awaited():
        assert first.now() == high
        with worker.awaited():
            assert asks().now() == before  # it begins meanwhile
        assert first.now() == high
    assert first.now() == low
    assert priority() == before


def test_what_a_worker_starts_gives_way_with_it(asks):
    inner = Told()
    outer = asks(Told(then=lambda: asks(inner, gives_way=False)))
    low, before = outer.now(), priority()
    assert inner.now() == low
    with worker.awaited():
        assert inner.now() == outer.now() == (before if low == 19 else low)
    assert inner.now() == low


@pytest.fixture
def priorities(monkeypatch):
    """Puts a function in the place of one of `os` that reads or sets priorities."""
    yield lambda name, function: (monkeypatch.setattr(worker.os, name, function), worker._lowest.cache_clear())
    monkeypatch.undo()
    worker._lowest.cache_clear()


def test_thread_that_may_not_rise_again_does_not_go_so_low(asks, priorities):
    """As in a container without CAP_SYS_NICE, where what a preemption waits for would get nothing of a busy core."""
    set_priority = os.setpriority

    def refusing(which, who, value):
        if value < os.getpriority(which, who):
            raise PermissionError(13, "Permission denied")
        set_priority(which, who, value)

    priorities("setpriority", refusing)
    one, low = asks(), max(10, priority() + 1)  # one lower is where it was tried
    assert one.now() == low
    with worker.awaited():
        assert one.now() == low
        assert asks().now() == priority()  # it was never lower


def test_threads_of_a_parent_process_are_left_alone(asks):
    one = asks()
    low = one.now()
    child = os.fork()
    if child == 0:
        with worker.awaited():
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert one.now() == low


def test_thread_that_begins_to_wait_as_another_one_ends_is_served(asks, monkeypatch):
    """The one that ends has seen that nobody else waits, and lowers the priority after the other one has raised it."""
    one, set_priority = asks(), os.setpriority
    low = one.now()
    second = contextlib.ExitStack()

    def late(which, who, value):
        monkeypatch.undo()
        second.enter_context(worker.awaited())
        set_priority(which, who, value)

    with worker.awaited():
        high = one.now()
        monkeypatch.setattr(worker.os, "setpriority", late)
    with second:
        assert one.now() == high
    assert one.now() == low


def test_process_that_is_forked_while_a_thread_waits_does_not_wait():
    told = Told()
    with worker.awaited():
        child = os.fork()
        if child == 0:
            Worker(told, "test", gives_way=True).start()
            os._exit(0 if told.now() in (10, 19) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_function_runs_where_priorities_cannot_be_read(priorities):
    """A sandbox may refuse it, and then a thread that waits would fail, too."""

    def refused(which, who):
        raise PermissionError(1, "Operation not permitted")

    priorities("getpriority", refused)
    work = Work()
    with worker.awaited():
        one = Worker(work, "test", gives_way=True)
        one.start()
        assert joined(one)
    assert work.ended.is_set()
