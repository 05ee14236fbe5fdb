"""Ctrl-C at any place where the training thread waits for a save or an upload: both end, and so does the process."""

import concurrent.futures._base
import contextlib
import itertools
import threading
import time
from datetime import timedelta

import pytest
from support.interrupted import InterruptedCall
from support.runs.grown import started, train

from ckptkit import Mirror
from ckptkit.core import worker
from ckptkit.core.waiting import countdown
from ckptkit.core.worker import Latch
from ckptkit.manager import mirrors, writer
from ckptkit.manager import run as live_run
from ckptkit.storage.local import LocalStorage
from ckptkit.testing.state import NumpyRun

LONG_SECONDS = 20.0
LOCKS = (worker, threading, concurrent.futures._base)


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


def begun(root, **options):
    return started(root, NumpyRun(accumulation_steps=1), events=False, on_preempt="off", **options)


def at_each_place(least, *modules, most=10**6):
    """Ctrl-C that arrives at the first call in ``modules``, then at the second one, until none is left."""
    for nth in itertools.count(1):
        ctrl_c = InterruptedCall(nth, modules)
        yield nth, ctrl_c
        if not ctrl_c.fired or nth == most:
            assert nth > least
            return


@pytest.mark.parametrize("action", [asks, waits])
def test_no_ctrl_c_while_a_save_is_asked_keeps_it_waiting(tmp_path, action):
    storage = Waiting(tmp_path)
    manager, run = begun(storage)
    for nth, ctrl_c in at_each_place(10, writer, *LOCKS, most=60):  # `asks` has as many places as it has time
        train(run, nth)
        storage.go = Latch()
        handle = manager.save(run)
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            action(storage, handle)
        storage.go.open()
        assert ended(handle.result), f"the save never ends after Ctrl-C at place {nth}"
    manager.close()


def test_no_ctrl_c_while_a_commit_is_confirmed_keeps_the_manager_waiting(tmp_path):
    manager, run = begun(tmp_path)
    train(run, 1)
    name = manager.save_final(run)
    for nth, ctrl_c in at_each_place(10, live_run, writer, worker):
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            manager.save_final(run)
        answers = []
        assert ended(lambda answers=answers: answers.append(manager.save_final(run))), f"place {nth}"
        assert answers == [name]
    manager.close()


def test_no_ctrl_c_while_uploads_are_waited_for_keeps_them_waiting(tmp_path):
    mirror = Waiting(tmp_path / "mirror")
    manager, run = begun(tmp_path / "local", mirror=Mirror(mirror))
    uploads = manager._setup.mirrors._uploads[0]
    for nth, ctrl_c in at_each_place(5, mirrors, *LOCKS):
        train(run, nth)
        mirror.go = Latch()
        manager.save(run).result()
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            with contextlib.suppress(TimeoutError):
                uploads.settle(countdown(timedelta(seconds=0.001)))
            mirror.go.open()
            uploads.settle(countdown(timedelta(seconds=LONG_SECONDS)))
        mirror.go.open()
        assert ended(lambda: uploads.settle(countdown(None))), f"place {nth}"
    assert len(uploads.behind) == 0
    manager.close()
