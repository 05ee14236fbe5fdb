"""What the first save copies into is made beside training, no more than that, and not after the end."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

import ckptkit as ck
from ckptkit.core.save_policy import AnySave, SaveAuto, SavePolicy, may_split_cycles
from ckptkit.core.worker import NoThreadError, Worker
from ckptkit.manager import copy_memory
from ckptkit.manager.copy_memory import CopyMemory
from ckptkit.snapshot import Handling
from ckptkit.testing.state import NumpyRun

BUFFER = 100


class Area:
    """Counts the buffers that are made, and may hold the thread that makes them."""

    def __init__(self, size_bytes):
        self.size_bytes, self.made, self.leaves = size_bytes, 0, []
        self.may_make = threading.Event()
        self.may_make.set()

    def copied_bytes(self, leaves, handling):
        self.leaves.append([one.name for one in leaves])
        return self.size_bytes

    def make_buffer(self, size_bytes):
        assert self.may_make.wait(60)
        if self.made * BUFFER >= size_bytes:
            return False
        self.made += 1
        return True


@pytest.fixture(autouse=True)
def _little_is_enough(monkeypatch):
    monkeypatch.setattr(copy_memory, "_FEW_BYTES", 3 * BUFFER)


def join():
    for one in threading.enumerate():
        if one.name == "ckptkit-memory":
            one.join()


@pytest.mark.parametrize("size_bytes", [3 * BUFFER, 1000 * BUFFER])
def test_buffers_for_one_save_are_made_once(size_bytes):
    area = Area(size_bytes)
    memory = CopyMemory(area, at_boundaries=True)
    for _ in range(3):
        memory.prepare(NumpyRun(), Handling)
    join()
    assert area.made * BUFFER == size_bytes
    assert len(area.leaves) == 1


@pytest.mark.parametrize("at_boundaries", [False, True])
def test_accumulators_need_memory_between_boundaries_only(at_boundaries):
    area = Area(0)
    CopyMemory(area, at_boundaries=at_boundaries).prepare(NumpyRun(), Handling)
    assert ("accumulators" in area.leaves[0]) != at_boundaries


def test_a_little_is_left_to_the_save():
    area = Area(3 * BUFFER - 1)
    CopyMemory(area, at_boundaries=True).prepare(NumpyRun(), Handling)
    join()
    assert area.made == 0


def test_nothing_is_made_after_the_end():
    area = Area(1000 * BUFFER)
    area.may_make.clear()
    memory = CopyMemory(area, at_boundaries=True)
    memory.prepare(NumpyRun(), Handling)
    memory.end()
    area.may_make.set()
    join()
    assert area.made <= 1


def test_without_a_thread_the_save_makes_its_own(monkeypatch):
    def start(worker):
        raise NoThreadError("can't start new thread")

    monkeypatch.setattr(Worker, "start", start)
    area = Area(1000 * BUFFER)
    CopyMemory(area, at_boundaries=True).prepare(NumpyRun(), Handling)
    assert area.made == 0


@pytest.mark.parametrize(("window", "copies"), [("auto", False), ("off", True)])
def test_first_save_finds_its_memory(tmp_path, monkeypatch, window, copies):
    """With a bound so low that the few bytes of this state are worth a thread."""
    monkeypatch.setattr(copy_memory, "_FEW_BYTES", 50)
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


@pytest.mark.parametrize(
    ("policy", "may_split"),
    [
        (ck.SaveEvery(optimizer_steps=2), False),
        (ck.SaveEvery(micro_steps=2), True),
        (ck.SaveEvery(interval=timedelta(hours=1)), True),
        (SaveAuto(0.01), False),
        (ck.SaveEvery(optimizer_steps=2) | SaveAuto(0.01), False),
        (AnySave((ck.SaveEvery(optimizer_steps=2), ck.SaveEvery(micro_steps=3))), True),
        (Sundays(), True),
    ],
)
def test_which_policies_may_split_cycles(policy: SavePolicy, may_split):
    assert may_split_cycles(policy) == may_split
