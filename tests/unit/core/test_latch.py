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


def opens_twice(one):
    one.open()
    one.open()


def opens_and_waits(one):
    one.open()
    one.wait(1.0)


@pytest.mark.parametrize("action", [opens_twice, opens_and_waits, lambda one: one.wait(0.001)])
def test_no_ctrl_c_keeps_others_waiting(action):
    for nth in itertools.count(1):
        one, ctrl_c = Latch(), InterruptedCall(nth, PLACES)
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            action(one)
        was_open = one.is_open
        others = [threading.Thread(target=one.wait, args=(LONG_SECONDS,), daemon=True) for _ in range(2)]
        for other in others:
            other.start()
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


def test_latch_survives_two_threads_that_open_at_once():
    """The second one releases the lock that the first, or a waiter, has just taken."""
    opened, waited = Latch(), Latch()

    class Lock:
        """Released by somebody else between the two calls."""

        def acquire(self, timeout):
            waited._is_open = True
            return True

        def release(self):
            raise RuntimeError("release unlocked lock")

    opened._closed = waited._closed = Lock()
    opened.open()
    assert opened.is_open
    assert waited.wait(1.0)


PYTHON_LOCKS = {"Event", "Semaphore", "BoundedSemaphore", "Barrier", "Queue", "LifoQueue", "PriorityQueue", "Future"}


def test_library_waits_for_nothing_that_ctrl_c_leaves_locked():
    package, found = Path(ckptkit.__file__).parent, []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package).as_posix()
        if where.startswith("testing/"):  # the contract is for tests
            continue
        for call in (one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            made_outside = name == "Thread" and where != "core/worker.py"
            if made_outside or name in PYTHON_LOCKS or "Executor" in name or (name == "Condition" and not call.args):
                found.append(f"{where}:{call.lineno} {name}()")
    assert found == []
