"""What a save cost is told to a callback, stands in its manifest, and is summed up."""

import contextlib
import itertools
import threading
from datetime import timedelta

import pytest
from support.runs.grown import opened

import ckptkit as ck
from ckptkit.core.save_report import SaveCost, SaveReport, SaveTotals
from ckptkit.format.documents import Cost
from ckptkit.storage import LocalStorage
from ckptkit.testing.state import NumpyRun

SIZE = 100_000  # floats per tensor


@pytest.fixture
def saved(tmp_path):
    """A manager, its run, and the reports, which come in the main thread."""
    reports, threads = [], []

    def note(report):
        reports.append(report)
        threads.append(threading.current_thread())

    manager = ck.CheckpointManager(tmp_path, save=ck.SaveEvery(micro_steps=10**6), saving=ck.Saving(on_save=note))
    run = NumpyRun(size=SIZE)
    manager.restore(run)
    yield manager, run, reports
    manager.close()
    assert set(threads) <= {threading.main_thread()}


def test_fast_writer_stores_what_training_waited(tmp_path):
    """At this clock, the training thread looks again only after the writer has ended."""
    seconds = itertools.count()

    def monotonic():
        if threading.current_thread() is threading.main_thread():
            for thread in [one for one in threading.enumerate() if one.name == "ckptkit-writer"]:
                thread.join(60)
        return float(next(seconds))

    with ck.CheckpointManager(tmp_path, system=ck.System(monotonic=monotonic)) as manager:
        manager.restore(run := NumpyRun())
        name = manager.save(run).result()
    assert opened(LocalStorage(tmp_path), name).manifest.cost.stall_seconds > 0


class Held(LocalStorage):
    """Its writes go on once they may; each takes 10 s by the clock."""

    def __init__(self, root) -> None:
        super().__init__(root)
        self.seconds, self.may = 0.0, threading.Event()
        self.keys: list[str] = []

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
        run = NumpyRun()
        manager.restore(run)
        manager.save(run)
        run.train_step()
        asked.append("a second save")
        name = manager.save(run).result()
        manager.wait()
    first, second = (report.cost for report in reports)
    before = sum(name not in key for key in storage.keys)
    assert (first.queue_seconds, second.queue_seconds) == (0, 10 * before)
    assert second.stall_seconds >= second.queue_seconds


def test_a_report_counts_the_saves_left_out(tmp_path):
    storage, reports = Held(tmp_path), []
    saving = ck.Saving(on_save=reports.append)
    with ck.CheckpointManager(storage, save=ck.SaveEvery(micro_steps=1), saving=saving) as manager:
        manager.restore(run := NumpyRun())
        first, *others = [manager.step(run) for _ in run.train_until(4)]
        assert others == [None] * 3  # the first is still being written
        storage.may.set()
        first.result()
        run.train_step()
        assert manager.step(run).result()
    assert [report.cost.skipped_saves for report in reports] == [0, 1]


@pytest.mark.parametrize("outcome", ["raises", "waits"])
def test_what_on_save_does_repeats_no_report(tmp_path, outcome):
    reports = []

    def note(report):
        reports.append(report.checkpoint)
        if outcome == "raises":
            raise ZeroDivisionError
        if len(reports) < 3:
            manager.wait()  # which tells what is new

    manager, run = ck.CheckpointManager(tmp_path, saving=ck.Saving(on_save=note)), NumpyRun()
    manager.restore(run)
    name = manager.save(run).result()
    with contextlib.suppress(ZeroDivisionError):
        manager.wait()
    manager.close()
    assert reports == [name]


def test_bytes_are_counted_where_they_are_copied_and_written(saved, tmp_path):
    """A boundary copies nothing of the model, mid-cycle the accumulators; frozen weights count where written."""
    manager, run, reports = saved
    assert str(manager.totals) == "no save"
    names = []
    for batches in (4, 8, 10):
        list(run.train_until(batches))
        names.append(manager.save(run).result())
        manager.wait()
    first, second, mid_cycle = reports
    assert first.cost.copied_bytes < 4096  # the generator
    assert 4 * SIZE <= mid_cycle.cost.copied_bytes < 4 * SIZE + 4096
    assert first.cost.in_place_bytes == 3 * 4 * SIZE  # weights, moments, and the embedding, for the first time
    assert first.cost.fenced_bytes == 0
    assert first.size_bytes >= 3 * 4 * SIZE
    assert first.size_bytes - second.size_bytes == pytest.approx(4 * SIZE, abs=4096)
    assert mid_cycle.progress == run.progress()
    assert first.stall == timedelta(seconds=first.cost.stall_seconds) > timedelta(0)
    assert first.took > timedelta(0)
    cost = opened(LocalStorage(tmp_path), names[0]).manifest.cost
    assert isinstance(cost, Cost)
    assert cost.copied_bytes == first.cost.copied_bytes
    assert cost.in_place_bytes == first.cost.in_place_bytes
    assert cost.streamed_bytes == first.cost.streamed_bytes == first.size_bytes
    assert 0 < cost.digest_seconds < first.took.total_seconds()
    assert manager.totals.saves == 3
    assert str(manager.totals).startswith("3 saves of ")
    assert manager.totals.stall_seconds > 0


def test_totals_add_up():
    totals = SaveTotals()
    progress = NumpyRun().progress()
    for stall, size, buffers in ((0.5, 1 << 20, 8 << 20), (0.25, 3 << 20, 4 << 20)):
        cost = SaveCost(stall_seconds=stall, buffer_bytes=buffers)
        totals.add(SaveReport("a", progress, timedelta(seconds=2), size, cost))
        totals.stall_seconds += stall
    assert str(totals) == (
        "2 saves of 2.0 MiB took 2.00 s each and kept training waiting for 375 ms each, with 8 MiB of buffers"
    )
    backwards = SaveCost(stall_seconds=-3.5, copied_bytes=7).as_numbers()  # by a clock; it could not be stored
    assert (backwards["stall_seconds"], backwards["copied_bytes"]) == (0, 7)
