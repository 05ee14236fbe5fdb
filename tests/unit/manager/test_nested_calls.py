"""A signal handler that calls the manager while it is at work is refused, and what is at work is not disturbed."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from support.options import grouped
from support.runs.grown import ON_REQUEST

from ckptkit.core.save_policy import SaveEvery
from ckptkit.errors import ResumeError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.recorder import Recorder
from ckptkit.snapshot import Window
from ckptkit.snapshot.staging import StagingArea
from ckptkit.storage.local import LocalStorage
from ckptkit.testing.state import NumpyRun

CALLS = {
    "step": lambda manager, run: manager.step(run),
    "save": lambda manager, run: manager.save(run),
    "save_final": lambda manager, run: manager.save_final(run),
    "wait": lambda manager, run: manager.wait(),
    "fence": lambda manager, run: manager.fence(),
    "close": lambda manager, run: manager.close(),
}
PLACES = {"before the capture": (NumpyRun, "capture"), "before the window": (StagingArea, "open")}


@pytest.fixture
def signalled(monkeypatch):
    """Sends a signal to this process once, at the place that is given; returns what its handler raised."""
    found = []

    def at(place, act, *, escapes=False):
        owner, name = place
        original = getattr(owner, name)

        def sending(*given, **named):
            monkeypatch.setattr(owner, name, original)
            os.kill(os.getpid(), signal.SIGUSR2)
            return original(*given, **named)

        def handler(*_):
            try:
                act()
            except ResumeError as error:
                found.append(str(error))
                if escapes:
                    raise

        monkeypatch.setattr(owner, name, sending)
        before.append(signal.signal(signal.SIGUSR2, handler))
        return found

    before = []
    yield at
    signal.signal(signal.SIGUSR2, before[0])


def check_restores(root, stored):
    run = NumpyRun(accumulation_steps=4)
    with CheckpointManager(root) as manager:
        assert manager.restore(run).batches_delivered == 3
    assert run.digest() == stored


def begun(storage, **options):
    """A manager, its run after three micro-steps, and the digest of that."""
    run, manager = NumpyRun(accumulation_steps=4), CheckpointManager(storage, **options)
    manager.restore(run)
    for _ in run.train_until(3):
        pass
    return manager, run, run.digest()


@pytest.mark.parametrize("outer", ["save", "save_final", "step"])
def test_call_within_a_call_is_refused(tmp_path, signalled, outer):
    for number, inner in enumerate(CALLS):
        root, place = tmp_path / inner, [*PLACES.values()][number % 2]
        manager, run, stored = begun(root, save=SaveEvery(micro_steps=3))
        found = signalled(place, lambda inner=inner, manager=manager, run=run: CALLS[inner](manager, run))
        CALLS[outer](manager, run)
        manager.wait()
        assert len(found) == number + 1, f"the signal came at no such place: {inner}"
        assert "was in progress in the same thread" in found[-1]
        for _ in run.train_until(9):
            pass
        manager.close()
        check_restores(root, stored)


@pytest.mark.parametrize("place", [(Recorder, "_add"), (threading.Thread, "start")], ids=["events", "thread"])
def test_refusal_comes_out_of_the_call(root, signalled, place):
    """Nothing in between takes it for a failure of its own, such as a thread that could not be started."""
    manager, run, stored = begun(root, save=SaveEvery(micro_steps=3))
    found = signalled(place, lambda: manager.save_final(run), escapes=True)
    with pytest.raises(ResumeError, match="was in progress in the same thread"):
        manager.step(run, {"loss": 1.0})
    assert len(found) == 1
    manager.save_final(run)
    manager.close()
    check_restores(root, stored)


class Stalled(LocalStorage):
    """Writes nothing before it may, so that the window stays open."""

    def __init__(self, root):
        super().__init__(root)
        self.go = threading.Event()

    def write(self, key, stream, size_bytes):
        if key.endswith(".safetensors"):
            self.go.wait()
        super().write(key, stream, size_bytes)


def test_handle_is_not_waited_for_within_the_fence(root, signalled):
    """The writer may need the very lock that the interrupted fence has."""
    storage = Stalled(root)
    manager, run, stored = begun(storage, save=ON_REQUEST)
    handle = manager.save(run)
    found = signalled((Window, "_copy_some"), lambda: (handle.done(), handle.result()))
    manager.fence()
    assert len(found) == 1
    assert "cannot be waited for here" in found[0]
    storage.go.set()
    manager.close()
    check_restores(root, stored)


def test_on_save_may_call_the_manager(root):
    """It is called when the save is settled."""
    saved = []
    run = NumpyRun()

    def on_save(report):
        saved.append(report.checkpoint)
        if len(saved) == 1:
            run.train_step()
            manager.save(run).result()

    manager = CheckpointManager(root, save=ON_REQUEST, **grouped(on_save=on_save))
    manager.restore(run)
    run.train_step()
    manager.save(run).result()
    manager.wait()
    manager.close()
    assert len(saved) == 2
