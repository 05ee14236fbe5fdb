"""Ctrl-C at any place of a thread that opens a latch, or waits for it, keeps no other thread waiting."""

from __future__ import annotations

import ast
import contextlib
import itertools
import threading
from pathlib import Path

import pytest
from support.interrupted import InterruptedCall

import ckptkit
from ckptkit.core import worker
from ckptkit.core.worker import Latch

LONG_SECONDS = 10.0
PLACES = (worker, contextlib, threading)


def waiter_for(one):
    """A thread that waits for the latch for a long time."""
    thread = threading.Thread(target=one.wait, args=(LONG_SECONDS,), daemon=True)
    thread.start()
    return thread


def opens(one):
    one.open()
    one.open()


def waits(one):
    one.wait(0.001)


def waits_for_an_open_one(one):
    one.open()
    one.wait(1.0)


@pytest.mark.parametrize("action", [opens, waits, waits_for_an_open_one])
def test_no_ctrl_c_keeps_others_waiting(action):
    for nth in itertools.count(1):
        one, ctrl_c = Latch(), InterruptedCall(nth, PLACES)
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            action(one)
        was_open = one.is_open
        others = [waiter_for(one) for _ in range(2)]
        one.open()
        for other in others:
            other.join(LONG_SECONDS / 2 if not was_open else 2 * LONG_SECONDS)
            assert not other.is_alive()
        assert one.wait(0.0)
        if not ctrl_c.fired:
            assert nth > 3
            return


def test_latch_that_stays_closed_waits_no_longer_than_it_was_told():
    one = Latch()
    assert [one.wait(0.001), one.wait(0.0), one.wait(-1.0), one.is_open] == [False] * 4


def test_threads_that_open_it_at_once_do_no_harm():
    for _ in range(200):
        one, gate = Latch(), threading.Barrier(4)
        threads = [threading.Thread(target=lambda one=one, gate=gate: (gate.wait(), one.open())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert one.wait(0.0)


def test_waiter_survives_two_threads_that_open_at_once():
    """The second one releases the lock that the waiter has just taken."""
    one = Latch()

    class Lock:
        """Released by somebody else between the waiter's two calls."""

        def acquire(self, timeout):
            one._is_open = True
            return True

        def release(self):
            raise RuntimeError("release unlocked lock")

    one._closed = Lock()
    assert one.wait(1.0)


PYTHON_LOCKS = {"Event", "Semaphore", "BoundedSemaphore", "Barrier", "Queue", "LifoQueue", "PriorityQueue", "Future"}
# The contract is for tests.
EXCEPTIONS = ("testing/",)


def test_library_waits_for_nothing_that_ctrl_c_leaves_locked():
    package, found = Path(ckptkit.__file__).parent, []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package).as_posix()
        if where.startswith(EXCEPTIONS):
            continue
        for call in (one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            made_outside = name == "Thread" and where != "core/worker.py"
            if made_outside or name in PYTHON_LOCKS or "Executor" in name or (name == "Condition" and not call.args):
                found.append(f"{where}:{call.lineno} {name}()")
    assert found == []
