"""A process that dies, or a storage that fails, at any call of a save that makes room in memory before it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import pytest
from support.room import CountedRoom, install
from support.runs.scenario import Life, check_new_start, committed, name_at

from ckptkit.run.keep_policy import KeepLatest
from ckptkit.storage.capacity import in_pages
from ckptkit.testing.faults import EVERY, MUTATING, Fault, Killed, When

PLENTY = 1 << 30
OLD = [name_at(1, batches) for batches in (2, 4, 6, 8)]


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountedRoom:
    """Of a history of four checkpoints; it knows what the next save needs."""
    found = CountedRoom(tmp_path, PLENTY)
    install(monkeypatch, lambda: found)
    life = Life(tmp_path / "history", keep=KeepLatest(100))
    life.restore()
    for batches in (2, 4, 6, 8):
        life.saved_at(batches)
    life = restored(tmp_path / "probe")
    found.total_bytes = 0
    assert life.save_at(10).exception() is not None
    found.needed = found.needed[-1:]
    return found


def restored(root: Path) -> Life:
    """A life on a copy of the history, of which it wants two checkpoints."""
    shutil.copytree(root.parent / "history", root)
    life = Life(root)
    life.restore()
    return life


def life_without_room(root: Path, room: CountedRoom) -> Life:
    """For its next save, both of the two that it does not want have to go."""
    life = restored(root)
    folders = [root / "checkpoints" / name for name in OLD[:2]]
    freed = sum(in_pages(path.stat().st_size) for one in folders for path in one.rglob("*") if path.is_file())
    room.root = root
    room.total_bytes = room.used_bytes + room.needed[0] - freed
    return life


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("action", ["kill", pytest.param("error", marks=pytest.mark.extended)])
def test_fault_at_any_call_loses_nothing(
    tmp_path: Path, room: CountedRoom, action: Literal["kill", "error"], when: When
) -> None:
    operations = MUTATING if action == "kill" else EVERY
    life = life_without_room(tmp_path / "whole", room)
    calls = life.calls_of(lambda: life.saved_at(10))
    first_write = next(at for at, call in enumerate(calls) if call.operation == "write")
    assert committed(tmp_path / "whole") == [OLD[3], name_at(2, 10)]
    many = sum(call.operation in operations for call in calls[:first_write])
    assert many >= (4 if action == "kill" else 20)
    for nth in range(1, many + 1):
        root = tmp_path / str(nth)
        life = life_without_room(root, room)
        fault = life.storage.inject(Fault(action, operations=operations, nth=nth, when=when))
        error = life.save_at(10).exception()
        assert fault.fired == 1
        assert isinstance(error, Killed) == (action == "kill")
        room.total_bytes = PLENTY
        there = committed(root)
        assert there[-2:] == OLD[-2:] if error is not None else there[-1] == name_at(2, 10)
        check_new_start(root, latest=there[-1])
