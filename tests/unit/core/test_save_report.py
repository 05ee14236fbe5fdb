"""What a save cost is told to a callback, stands in its manifest, and is summed up."""

import threading
from datetime import timedelta

import pytest
from support.runs.grown import opened

import ckptkit as ck
from ckptkit.core.save_report import SaveCost
from ckptkit.storage import LocalStorage
from ckptkit.testing.state import NumpyRun

SIZE = 100_000  # floats per tensor


class Held(LocalStorage):
    """Its writes go on once they may; each takes 10 s by the clock."""

    def __init__(self, root) -> None:
        super().__init__(root)
        self.seconds, self.may, self.keys = 0.0, threading.Event(), []

    def write(self, key, stream, size_bytes) -> None:
        assert self.may.wait(60)
        self.seconds += 10
        self.keys.append(key)
        super().write(key, stream, size_bytes)


def test_waiting_for_the_save_before_is_told(tmp_path):
    storage, reports, asked = Held(tmp_path), [], []

    def monotonic():
        now = storage.seconds
        if asked and threading.current_thread() is threading.main_thread():
            storage.may.set()  # first the second save looks at the clock, and then it waits
        return now

    system, saving = ck.System(monotonic=monotonic), ck.Saving(on_save=reports.append)
    with ck.CheckpointManager(storage, system=system, saving=saving) as manager:
        manager.restore(run := NumpyRun())
        manager.save(run)
        run.train_step()
        asked.append("a second save")
        name = manager.save(run).result()
        manager.wait()
    first, second = (report.cost for report in reports)
    assert first.queue_seconds == 0
    assert second.stall_seconds >= second.queue_seconds == 10 * sum(name not in key for key in storage.keys)


def test_bytes_are_counted_where_they_are_copied_and_written(tmp_path):
    """A boundary copies nothing of the model, mid-cycle the accumulators; frozen weights count where written."""
    names, reports, run = [], [], NumpyRun(size=SIZE)
    with ck.CheckpointManager(tmp_path, saving=ck.Saving(on_save=reports.append)) as manager:
        manager.restore(run)
        assert str(manager.totals) == "no save"
        for batches in (4, 8, 10):
            list(run.train_until(batches))
            names.append(manager.save(run).result())
            manager.wait()
        mid_cycle = run.progress()
    first, second, third = reports
    assert first.cost.copied_bytes < 4096  # the generator
    assert 4 * SIZE <= third.cost.copied_bytes < 4 * SIZE + 4096
    assert first.cost.in_place_bytes == 3 * 4 * SIZE  # weights, moments, and the embedding, for the first time
    assert first.cost.fenced_bytes == 0
    assert first.size_bytes - second.size_bytes == pytest.approx(4 * SIZE, abs=4096)
    assert third.progress == mid_cycle
    assert first.stall == timedelta(seconds=first.cost.stall_seconds) > timedelta(0)
    cost = opened(LocalStorage(tmp_path), names[0]).manifest.cost
    assert (cost.copied_bytes, cost.in_place_bytes) == (first.cost.copied_bytes, first.cost.in_place_bytes)
    assert cost.streamed_bytes == first.cost.streamed_bytes == first.size_bytes >= 3 * 4 * SIZE
    assert 0 < cost.digest_seconds < first.took.total_seconds()
    assert str(manager.totals).startswith("3 saves of ")
    assert manager.totals.stall_seconds > 0
    backwards = SaveCost(stall_seconds=-3.5, copied_bytes=7).as_numbers()  # by a clock; it could not be stored
    assert (backwards["stall_seconds"], backwards["copied_bytes"]) == (0, 7)


def test_on_save_that_raises_gets_its_report_once(tmp_path):
    reports = []

    def note(report):
        reports.append(report.checkpoint)
        raise ZeroDivisionError

    manager, run = ck.CheckpointManager(tmp_path, saving=ck.Saving(on_save=note)), NumpyRun()
    manager.restore(run)
    name = manager.save(run).result()
    with pytest.raises(ZeroDivisionError):
        manager.wait()
    manager.close()
    assert reports == [name]
