"""A save fills the disk and its process dies or gives up: what nobody needs is removed, and the run goes on."""

import errno
import os
from pathlib import Path

import pytest
from support.runs.scenario import check_new_start, committed, folders, name_at, tree

from ckptkit.errors import StaleAttemptError
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.storage import LocalStorage
from ckptkit.storage.system_calls import SYSTEM
from ckptkit.testing.faults import Fault, Killed
from ckptkit.tools.prune import Rule, plan_prune, prune

from .lives import started

BLOCK_BYTES = 4096


class SmallDisk:
    """The disk or quota of everything below ``root``, counted in blocks and in names, as a tmpfs counts hard links."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> None:
        self.root = root
        self.blocks: int | None = None
        self.names: int | None = None
        self.refused = 0
        self._number = number
        self._real = {name: getattr(SYSTEM, name) for name in ("open_new", "link", "mkdir", "pwrite")}
        for name in self._real:
            monkeypatch.setattr(SYSTEM, name, getattr(self, name))

    def fill(self, kind: str, room: int = 0) -> None:
        """Leave ``room`` blocks or names free."""
        setattr(self, kind, self._used()[kind] + room)

    def open_new(self, path: Path) -> int:
        self._expect(path, names=1)
        return self._real["open_new"](path)

    def link(self, existing: Path, new: Path) -> None:
        self._expect(new, names=1)
        self._real["link"](existing, new)

    def mkdir(self, path: Path) -> None:
        self._expect(path, names=1)
        self._real["mkdir"](path)

    def pwrite(self, descriptor: int, data: memoryview, offset: int) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        grown = -(-(offset + len(data)) // BLOCK_BYTES) + -os.fstat(descriptor).st_size // BLOCK_BYTES
        self._expect(path, blocks=grown)
        return self._real["pwrite"](descriptor, data, offset)

    def _expect(self, path: str | Path, **more: int) -> None:
        used = self._used()
        for kind, count in more.items():
            room = getattr(self, kind)
            if room is not None and Path(path).is_relative_to(self.root) and used[kind] + count > room:
                self.refused += 1
                raise OSError(self._number, os.strerror(self._number), str(path))

    def _used(self) -> dict[str, int]:
        below = list(self.root.rglob("*"))
        inodes = {(status := path.stat()).st_ino: status.st_size for path in below if path.is_file()}
        return {"names": len(below), "blocks": sum(-(-size // BLOCK_BYTES) for size in inodes.values())}


def saved(root, *batches):
    return started(root, *batches, keep=KeepLatest(100))


def reserve(root):
    return sorted(path.name for path in (root / ".reserve").iterdir())


def killed_on_full_disk(root, disk, kind, key):
    """Attempt 1 has committed at 2 and 4; its save at 6 fills the disk and dies."""
    life = saved(root, 2, 4)
    life.storage.inject(Fault(lambda: disk.fill(kind), operations={"write", "create"}, key=key))
    life.storage.inject(Fault("kill", operations={"write", "create"}, key=key))
    assert isinstance(life.save_at(6).exception(), Killed)
    assert folders(tree(root)).uncommitted == [name_at(1, 6)]


def test_start_removes_what_filled_the_disk(tmp_path):
    rows = [("blocks", errno.ENOSPC, "*/manifest.json"), ("names", errno.EDQUOT, "*/COMMIT")]
    for number, (kind, code, key) in enumerate(rows):
        root = tmp_path / f"{number}"
        with pytest.MonkeyPatch.context() as patch:
            disk = SmallDisk(root, patch, code)
            killed_on_full_disk(root, disk, kind, key)
            before = committed(root)
            life = saved(root)
            assert disk.refused
            state = folders(tree(root))
            assert (state.committed, state.void, state.uncommitted) == (before, [name_at(1, 6)], []), key
            assert life.run.batches == 4
            disk.fill(kind, 100)
            check_new_start(root, latest=name_at(1, 4))
            assert reserve(root) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_start_beside_a_job_that_still_writes_is_safe(root, monkeypatch, when):
    """The job sends its COMMIT after, or right before, a start on the full disk has voided its folder."""
    disk = SmallDisk(root, monkeypatch)
    life, later = saved(root, 2, 4), []

    def take_over():
        disk.fill("blocks")
        later.append(saved(root))
        disk.fill("blocks", 100)

    fault = life.storage.inject(Fault(take_over, operations={"create"}, key="*/COMMIT", when=when))
    assert isinstance(life.save_at(6).exception(), StaleAttemptError)
    assert fault.fired == 1
    assert disk.refused
    assert later[0].run.batches == (4 if when == "before" else 6)
    assert folders(tree(root)).void == ([name_at(1, 6)] if when == "before" else [])
    check_new_start(root, latest=committed(root)[-1])


def test_save_whose_commit_has_no_room_is_emptied_first(root, monkeypatch):
    """Its void marker has no room before."""
    disk = SmallDisk(root, monkeypatch)
    life = saved(root, 2, 4)
    life.storage.inject(Fault(lambda: disk.fill("blocks"), operations={"create"}, key="*/COMMIT"))
    assert "could not create" in str(life.save_at(6).exception())
    assert disk.refused
    state = folders(tree(root))
    assert (state.void, state.uncommitted) == ([name_at(1, 6)], [])
    assert [key for key in tree(root) if name_at(1, 6) in key] == [f"checkpoints/{name_at(1, 6)}/COMMIT"]
    disk.fill("blocks", 100)
    life.saved_at(7)
    check_new_start(root, latest=name_at(1, 7))


def test_prune_empties_unfinished_saves_where_asked(root, monkeypatch):
    disk = SmallDisk(root, monkeypatch)
    killed_on_full_disk(root, disk, "blocks", "*/manifest.json")
    rules = (Rule("latest:2", KeepLatest(2)),)
    size_bytes = sum(len(data) for key, data in tree(root).items() if name_at(1, 6) in key)
    for unfinished in (False, True):
        plan = plan_prune(LocalStorage(root), rules, branches=False, unfinished=unfinished)
        assert (plan.freed_bytes, plan.unfinished_bytes) == ((size_bytes, 0) if unfinished else (0, size_bytes))
        done = prune(LocalStorage(root), plan, token="e" * 32)
        assert done.emptied == ([name_at(1, 6)] if unfinished else [])
        assert committed(root) == [name_at(1, 2), name_at(1, 4)]
    assert not disk.refused, "the data go before the void marker is created"
    disk.blocks = None
    check_new_start(root, latest=name_at(1, 4))
