"""Many small calls at once give their results in order, or the first error, and leave no thread."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import weakref

import pytest
from support.interrupted import InterruptedCall, InterruptedStart

from ckptkit.core import worker
from ckptkit.core.worker import FEW, each_of

MANY = 3 * FEW


def lost(number):
    if number == FEW - 1:
        raise ValueError(number)


def left():
    """The threads that run; Python also lists one whose start was interrupted before it ran."""
    return [one for one in threading.enumerate() if one.name == "ckptkit-read" and one.is_alive()]


def squared(number):
    return number * number


def test_results_come_in_the_order_of_the_items():
    for count in (500, FEW, 0):
        assert each_of(range(count), squared) == [number * number for number in range(count)]
    assert left() == []


def test_first_error_is_raised_and_the_rest_is_not_called():
    called = []

    def fails(number):
        called.append(number)
        if number in (3, 5):
            raise ValueError(number)

    with pytest.raises(ValueError, match=r"3|5"):
        each_of(range(10_000), fails)
    assert len(called) < 10_000
    assert left() == []


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
    for nth in itertools.count(1):
        ctrl_c = InterruptedCall(nth, (worker, threading))
        caller = threading.Thread(target=_call, args=(ctrl_c, function), daemon=True)
        caller.start()
        caller.join(10.0)
        assert not caller.is_alive(), f"place {nth} never ends"
        for one in left():
            one.join(10.0)
        assert left() == []
        if not ctrl_c.fired:
            assert nth > MANY
            return


def _call(ctrl_c, function):
    with contextlib.suppress(KeyboardInterrupt, ValueError), ctrl_c:
        each_of(range(MANY), function)
