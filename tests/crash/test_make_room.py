"""A process that dies, or a storage that fails, at any call of a save that makes room in memory before it."""

import shutil

import pytest
from support.room import CountedRoom, install
from support.runs.scenario import check_new_start, committed, name_at

from ckptkit.run.keep_policy import KeepLatest
from ckptkit.storage.capacity import in_pages
from ckptkit.testing.faults import MUTATING, Fault, Killed

from .lives import started

PLENTY = 1 << 30
OLD = [name_at(1, batches) for batches in (2, 4, 6, 8)]


@pytest.fixture
def room(tmp_path, monkeypatch):
    """Of a history of four checkpoints; it knows what the next save needs."""
    found = CountedRoom(tmp_path, PLENTY)
    install(monkeypatch, lambda: found)
    started(tmp_path / "history", 2, 4, 6, 8, keep=KeepLatest(100))
    life = restored(tmp_path / "probe")
    found.total_bytes = 0
    assert life.save_at(10).exception() is not None
    found.needed = found.needed[-1:]
    return found


def restored(root):
    """A life on a copy of the history, of which it wants two checkpoints."""
    shutil.copytree(root.parent / "history", root)
    return started(root)


def life_without_room(root, room):
    """For its next save, both of the two that it does not want have to go."""
    life = restored(root)
    folders = [root / "checkpoints" / name for name in OLD[:2]]
    freed = sum(in_pages(path.stat().st_size) for one in folders for path in one.rglob("*") if path.is_file())
    room.root = root
    room.total_bytes = room.used_bytes + room.needed[0] - freed
    return life


def test_fault_at_any_call_loses_nothing(tmp_path, room):
    """At those that change something a death before or after it; at the others an error."""
    life = life_without_room(tmp_path / "whole", room)
    calls = life.calls_of(lambda: life.saved_at(10))
    first_write = next(at for at, call in enumerate(calls) if call.operation == "write")
    assert committed(tmp_path / "whole") == [OLD[3], name_at(2, 10)]
    faults = [
        (nth, action, when)
        for nth, call in enumerate(calls[: first_write + 1], 1)
        for action, when in (
            [("kill", "before"), ("kill", "after")] if call.operation in MUTATING else [("error", "before")]
        )
    ]
    assert len(faults) >= 20
    for nth, action, when in faults:
        root = tmp_path / f"{nth}-{when}"
        life = life_without_room(root, room)
        fault = life.storage.inject(Fault(action, nth=nth, when=when))
        error = life.save_at(10).exception()
        assert fault.fired == 1
        assert isinstance(error, Killed) == (action == "kill")
        room.total_bytes = PLENTY
        there = committed(root)
        assert there[-2:] == OLD[-2:] if error is not None else there[-1] == name_at(2, 10)
        check_new_start(root, latest=there[-1])
