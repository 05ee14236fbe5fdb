"""The thread that trains takes denormal numbers as zero while a run is open, and only then."""

import threading
import warnings

import numpy as np
import pytest

from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.process import DenormalsAsZero, takes_denormals_as_zero
from ckptkit.testing.state import NumpyRun

DENORMAL = np.array([1e-40], np.float32)


def are_zero() -> bool:
    found = not (DENORMAL * np.float32(0.5)).view(np.uint32).any()
    assert found == takes_denormals_as_zero()
    return found


def test_overlapping_ones_restore_when_the_last_ends():
    one, other = DenormalsAsZero(), DenormalsAsZero()
    assert not are_zero()
    one.begin()
    one.begin()  # again: no change
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.finfo(np.float32).eps > 0  # NumPy warns of the two bits where it computes it first
    other.begin()
    seen = []
    thread = threading.Thread(target=lambda: (one.end(), seen.append(are_zero())))  # inherited, and left
    thread.start()
    thread.join()
    assert seen == [True]
    one.end()
    one.end()
    assert are_zero()
    other.end()
    assert not are_zero()


def test_run_sets_it_until_it_is_closed(tmp_path, monkeypatch):
    """Also if the restore or the close fails."""
    manager = CheckpointManager(tmp_path / "run")
    with pytest.raises(Exception, match="there is no run"):
        manager.restore(NumpyRun(), checkpoint="nothing")
    assert not are_zero()
    manager.restore(NumpyRun())
    assert are_zero()
    monkeypatch.setattr(manager._run.recorder, "close", lambda *_, **__: pytest.fail("interrupted"))
    with pytest.raises(pytest.fail.Exception, match="interrupted"):
        manager.close()
    assert not are_zero()
