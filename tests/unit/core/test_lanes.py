"""Jobs beside each other, and many small calls: all are done, or one has failed, and then no other begins."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import weakref
from functools import partial

import pytest
from support.interrupted import InterruptedCall, InterruptedStart

from ckptkit.core import worker
from ckptkit.core.worker import FEW, Lanes, each_of

LONG_SECONDS = 10.0


def alive(name):
    """The threads that run; Python also lists one whose start was interrupted before it ran."""
    return [one for one in threading.enumerate() if one.name == name and one.is_alive()]


def in_lanes(count, jobs):
    with Lanes(count) as lanes:
        for job in jobs:
            lanes.submit(partial(job, lanes.stop))
        lanes.finish()


@pytest.mark.parametrize("startable", [0, 1, 4])
def test_jobs_are_done_with_too_few_threads(monkeypatch, startable):
    """The process may have no more, or be on its way out."""
    real, started = threading.Thread.start, []

    def start(thread):
        if len(started) == startable:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    done = []
    in_lanes(4, [lambda stop, number=number: done.append(number) for number in range(20)])
    assert sorted(done) == list(range(20))
    assert len(started) == startable
    assert not any(thread.is_alive() for thread in started)


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
    """Of another job, or of who leaves by an error."""
    begun, told = threading.Event(), []

    def waiting(stop):
        begun.set()
        told.append(stop.wait(60))

    def fail():
        assert begun.wait(60)
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        in_lanes(2, [waiting, lambda stop: fail()])
    begun.clear()

    def leave():
        with Lanes(1) as lanes:
            lanes.submit(lambda: waiting(lanes.stop))
            fail()

    with pytest.raises(ValueError, match="lost"):
        leave()
    assert told == [True, True]


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("runs", [True, False])
def test_ctrl_c_in_the_start_of_a_lane_ends_all(nth, runs, monkeypatch):
    ended, raised = [], []

    def use():
        try:
            with Lanes(3) as lanes:
                for number in range(6):
                    if number == nth - 1:
                        raised.append(InterruptedStart(monkeypatch, "ckptkit-lane", runs=runs))
                    lanes.submit(lambda number=number: ended.append(number))
        except KeyboardInterrupt:
            pass

    user = threading.Thread(target=use, daemon=True)
    user.start()
    user.join(LONG_SECONDS)
    assert not user.is_alive()
    assert raised[0].fired == 1
    for one in alive("ckptkit-lane"):
        one.join(LONG_SECONDS)
    assert alive("ckptkit-lane") == []


def test_lanes_can_be_used_again_after_they_have_finished():
    done = []
    with Lanes(2) as lanes:
        for _ in range(3):
            for number in range(5):
                lanes.submit(lambda number=number: done.append(number))
            lanes.finish()
    assert sorted(done) == sorted([*range(5)] * 3)


MANY = 3 * FEW


def lost(number):
    if number == FEW - 1:
        raise ValueError(number)


def squared(number):
    return number * number


def test_results_come_in_the_order_of_the_items():
    for count in (500, FEW, 0):
        assert each_of(range(count), squared) == [number * number for number in range(count)]
    assert alive("ckptkit-read") == []


def test_first_error_is_raised_and_the_rest_is_not_called():
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


def test_threads_take_the_items_themselves(monkeypatch):
    """Beside a training that computes in Python, handing one over takes longer than most calls."""
    handed = []
    submit = worker.Lanes.submit
    monkeypatch.setattr(worker.Lanes, "submit", lambda lanes, job: (handed.append(job), submit(lanes, job)))
    assert each_of(range(500), squared, threads=4) == [number * number for number in range(500)]
    assert len(handed) == 4


def test_error_keeps_nothing_until_the_collector_runs():
    class Memory:
        pass

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


def test_callers_thread_works_where_no_thread_can_be_started(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert each_of(range(MANY), squared) == [number * number for number in range(MANY)]


@pytest.mark.parametrize("runs", [True, False])
def test_ctrl_c_while_a_thread_starts_is_raised(runs, monkeypatch):
    ctrl_c = InterruptedStart(monkeypatch, "ckptkit-read", runs=runs)
    with pytest.raises(KeyboardInterrupt):
        each_of(range(MANY), squared)
    assert ctrl_c.fired == 1


@pytest.mark.parametrize("function", [squared, lost])
def test_no_ctrl_c_leaves_a_thread(function):
    def call(ctrl_c):
        with contextlib.suppress(KeyboardInterrupt, ValueError), ctrl_c:
            each_of(range(MANY), function)

    for nth in itertools.count(1):
        ctrl_c = InterruptedCall(nth, (worker, threading))
        caller = threading.Thread(target=call, args=(ctrl_c,), daemon=True)
        caller.start()
        caller.join(LONG_SECONDS)
        assert not caller.is_alive(), f"place {nth} never ends"
        for one in alive("ckptkit-read"):
            one.join(LONG_SECONDS)
        assert alive("ckptkit-read") == []
        if not ctrl_c.fired:
            assert nth > MANY
            return
