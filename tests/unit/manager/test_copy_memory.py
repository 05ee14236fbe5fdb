"""What the first save copies into is made beside training."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

import ckptkit as ck
from ckptkit.core.save_policy import AnySave, SaveAuto, may_split_cycles
from ckptkit.testing.state import NumpyRun


def join():
    for one in threading.enumerate():
        if one.name == "ckptkit-memory":
            one.join()


@pytest.mark.parametrize(("window", "copies"), [("auto", False), ("off", True)])
def test_first_save_finds_its_memory(tmp_path, monkeypatch, window, copies):
    """With a bound so low that the few bytes of this state are worth a thread."""
    monkeypatch.setattr("ckptkit.snapshot.staging._FEW_BYTES", 50)
    run, reports = NumpyRun(accumulation_steps=4), []
    saving = ck.Saving(window=window, on_save=reports.append)
    with ck.CheckpointManager(tmp_path / "run", save=ck.SaveEvery(optimizer_steps=1), saving=saving) as manager:
        manager.restore(run)
        for _ in run.train_until(1):
            manager.step(run)
        join()
        made = manager._setup.area._pool.made_bytes
        for _ in run.train_until(4):
            manager.step(run)
        manager.wait()
        assert (made > 0) == copies
        assert not copies or manager._setup.area._pool.made_bytes == made
    assert (reports[0].cost.copied_bytes == 60) == copies


class Sundays:
    """A policy of the user's own."""

    def due(self, progress, since_last_save):
        return False


def test_which_policies_may_split_cycles():
    for policy, may_split in [
        (ck.SaveEvery(optimizer_steps=2), False),
        (ck.SaveEvery(micro_steps=2), True),
        (ck.SaveEvery(interval=timedelta(hours=1)), True),
        (ck.SaveEvery(optimizer_steps=2) | SaveAuto(0.01), False),
        (AnySave((ck.SaveEvery(optimizer_steps=2), ck.SaveEvery(micro_steps=3))), True),
        (Sundays(), True),
    ]:
        assert may_split_cycles(policy) == may_split, policy
