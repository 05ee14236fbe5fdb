"""A signal handler that calls the manager while it is at work is refused, and what is at work is not disturbed."""

import os
import signal
import threading
from functools import partial

import pytest
from support.live import Stall
from support.runs.grown import started, train

from ckptkit.core.save_policy import SaveEvery
from ckptkit.errors import ResumeError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.recorder import Recorder
from ckptkit.snapshot import Window
from ckptkit.snapshot.staging import StagingArea
from ckptkit.storage.local import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

TAKES_STATE = {"step": True, "save": True, "save_final": True, "wait": False, "fence": False, "close": False}
PLACES = ((NumpyRun, "capture"), (StagingArea, "open"))


def call(verb, manager, run):
    return getattr(manager, verb)(*([run] if TAKES_STATE[verb] else []))


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
    manager, run = started(storage, NumpyRun(accumulation_steps=4), **options)
    train(run, 3)
    return manager, run, run.digest()


@pytest.mark.parametrize("outer", ["save", "save_final", "step"])
def test_call_within_a_call_is_refused(tmp_path, signalled, outer):
    for number, inner in enumerate(TAKES_STATE):
        root = tmp_path / inner
        manager, run, stored = begun(root, save=SaveEvery(micro_steps=3))
        found = signalled(PLACES[number % 2], partial(call, inner, manager, run))
        call(outer, manager, run)
        manager.wait()
        assert len(found) == number + 1, f"the signal came at no such place: {inner}"
        assert "was in progress in the same thread" in found[-1]
        train(run, 9)
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


def test_handle_is_not_waited_for_within_the_fence(root, signalled):
    """The writer may need the very lock that the interrupted fence has."""
    stall = Stall()  # so that the window stays open
    fault = Fault(stall, operations={"write"}, key="*.safetensors")
    manager, run, stored = begun(FaultyStorage(LocalStorage(root), [fault]))
    handle = manager.save(run)
    found = signalled((Window, "_copy_some"), lambda: (handle.done(), handle.result()))
    manager.fence()
    assert len(found) == 1
    assert "cannot be waited for here" in found[0]
    stall.let_go()
    manager.close()
    check_restores(root, stored)


def test_on_save_may_call_the_manager(root):
    """It is called when the save is settled."""
    saved = []

    def on_save(report):
        saved.append(report.checkpoint)
        if len(saved) == 1:
            run.train_step()
            manager.save(run).result()

    manager, run = started(root, on_save=on_save)
    run.train_step()
    manager.save(run).result()
    manager.wait()
    manager.close()
    assert len(saved) == 2
