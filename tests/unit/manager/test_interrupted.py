"""Ctrl-C at any place where the training thread waits for a save or an upload: both end, and so does the process."""

from __future__ import annotations

import concurrent.futures._base
import contextlib
import itertools
import threading
import time
from datetime import timedelta

import pytest
from support.interrupted import InterruptedCall

from ckptkit import CheckpointManager, Mirror, Preemption, SaveEvery
from ckptkit.core import worker
from ckptkit.core.waiting import countdown
from ckptkit.core.worker import Latch
from ckptkit.manager import mirrors, writer
from ckptkit.manager import run as live_run
from ckptkit.manager.options import Saving
from ckptkit.storage.local import LocalStorage
from ckptkit.testing.state import NumpyRun

LONG_SECONDS = 20.0
LOCKS = (worker, threading, concurrent.futures._base)
OPTIONS = {
    "save": SaveEvery(optimizer_steps=10**9),
    "saving": Saving(events=False),
    "preemption": Preemption(then="off"),
}


class Waiting(LocalStorage):
    """Creates no COMMIT before ``go``, so that the save is under way while the training thread asks."""

    def __init__(self, root) -> None:
        super().__init__(root)
        self.go = Latch()
        self.go.open()

    def create(self, key, data) -> None:
        self.go.wait(LONG_SECONDS)
        super().create(key, data)


def ended(action) -> bool:
    """Whether an action ends in a thread of its own."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(LONG_SECONDS)
    return not thread.is_alive()


def asks(storage, handle):
    handle.done()
    storage.go.open()
    until = time.monotonic() + LONG_SECONDS
    while not handle.done() and time.monotonic() < until:
        pass


def waits(storage, handle):
    with contextlib.suppress(TimeoutError):
        handle.result(timedelta(seconds=0.001))
    storage.go.open()
    handle.result()


@pytest.mark.parametrize("action", [asks, waits])
def test_no_ctrl_c_while_a_save_is_asked_keeps_it_waiting(tmp_path, action):
    storage = Waiting(tmp_path)
    manager = CheckpointManager(storage, **OPTIONS)
    run = NumpyRun(accumulation_steps=1)
    manager.restore(run)
    for nth in itertools.count(1):
        for _ in run.train_until(nth):
            pass
        storage.go = Latch()
        handle = manager.save(run)
        ctrl_c = InterruptedCall(nth, (writer, *LOCKS))
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            action(storage, handle)
        storage.go.open()
        assert ended(handle.result), f"the save never ends after Ctrl-C at place {nth}"
        if ctrl_c.fired == 0 or nth == 60:  # `asks` has as many places as it has time
            assert nth > 10
            break
    manager.close()


def test_no_ctrl_c_while_a_failure_is_kept_makes_it_a_commit():
    """As where no thread can be started, so that the training thread itself ends the save."""
    for nth in itertools.count(1):
        handle = writer.SaveHandle(None)
        ctrl_c = InterruptedCall(nth, (writer, worker))
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            handle.end(OSError("refused"))
        assert not handle._ended.is_open or isinstance(handle._error, OSError), f"place {nth}"
        if not ctrl_c.fired:
            assert nth > 3
            break


def test_no_ctrl_c_while_a_commit_is_confirmed_keeps_the_manager_waiting(tmp_path):
    manager = CheckpointManager(tmp_path, **OPTIONS)
    run = NumpyRun(accumulation_steps=1)
    manager.restore(run)
    for _ in run.train_until(1):
        pass
    name = manager.save_final(run)
    for nth in itertools.count(1):
        ctrl_c = InterruptedCall(nth, (live_run, writer, worker))
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            manager.save_final(run)
        answers = []
        assert ended(lambda answers=answers: answers.append(manager.save_final(run))), f"place {nth}"
        assert answers == [name]
        if not ctrl_c.fired:
            assert nth > 10
            break
    manager.close()


def test_no_ctrl_c_while_uploads_are_waited_for_keeps_them_waiting(tmp_path):
    mirror = Waiting(tmp_path / "mirror")
    manager = CheckpointManager(tmp_path / "local", mirror=Mirror(mirror), **OPTIONS)
    run = NumpyRun(accumulation_steps=1)
    manager.restore(run)
    follower = manager._setup.mirrors._uploads[0]
    for nth in itertools.count(1):
        for _ in run.train_until(nth):
            pass
        mirror.go = Latch()
        manager.save(run).result()
        ctrl_c = InterruptedCall(nth, (mirrors, *LOCKS))
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            with contextlib.suppress(TimeoutError):
                follower.settle(countdown(timedelta(seconds=0.001)))
            mirror.go.open()
            follower.settle(countdown(timedelta(seconds=LONG_SECONDS)))
        mirror.go.open()
        assert ended(lambda: follower.settle(countdown(None))), f"place {nth}"
        if not ctrl_c.fired:
            assert nth > 5
            break
    assert follower.lag == 0
    manager.close()
