"""Links, pipes, sockets and devices in a run: nothing waits for them, follows them, or is spoilt by them."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

import pytest
from support.bad_disk import BadDisk
from support.runs.grown import grow
from support.runs.scenario import tree
from unit.storage.test_unreadable import FILES, restored
from unit.tools.test_verify import Watch

from ckptkit.checkpoint.commit import remove_checkpoint
from ckptkit.errors import CorruptCheckpointError, StorageError
from ckptkit.format.layout import CheckpointName
from ckptkit.run.catalog import list_rows
from ckptkit.run.event_log import read_events
from ckptkit.run.index import Documents
from ckptkit.storage import LocalStorage
from ckptkit.storage.protocol import Listing, walk_folders
from ckptkit.tools.verify import audit

NEWEST = "a000001-c0000000002-m0001"  # after nine micro-steps, four of which make a cycle
NO_LINKS = "is a link to .* links inside of a run are not followed"
# Not written to by anybody: opening it for reading waits for ever, unless the test holds the other end.
MADE = {
    "pipe": lambda path, _: os.mkfifo(path),
    "socket": lambda path, _: os.mknod(path, stat.S_IFSOCK | 0o600),
    "link out": lambda path, outside: path.symlink_to(outside),
    "link to itself": lambda path, _: path.symlink_to("."),
    "dangling link": lambda path, _: path.symlink_to("nowhere"),
}


@pytest.fixture
def root(tmp_path):
    names = grow(tmp_path / "run", 3, 6, 9)
    assert names[-1] == NEWEST
    return tmp_path / "run"


@pytest.fixture
def outside(tmp_path):
    (tmp_path / "outside/rank-00000").mkdir(parents=True)
    for name in ("thesis.txt", "rank-00000/thesis.txt", ".COMMIT.0123456789abcdef.tmp"):
        (tmp_path / "outside" / name).write_bytes(b"precious")
    return tmp_path / "outside"


@pytest.fixture
def scanned(monkeypatch):
    """The folders whose entries were read."""
    folders, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: folders.append(os.path.realpath(path)) or scandir(path))
    return folders


def pipe_at(path: Path) -> int:
    """Put a pipe there; returns its other end: while that is open, code that does not look fails instead of waiting."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


@pytest.mark.parametrize("kind", MADE)
def test_stray_entries_leave_run_usable(root, outside, scanned, kind):
    newest = f"checkpoints/{NEWEST}"
    for folder in ("", "checkpoints", "attempts", "events", newest, f"{newest}/rank-00000"):
        MADE[kind](root / folder / "stray", outside)
    storage = LocalStorage(root)
    rows = list_rows(storage, None)
    assert (rows.latest, [row.problem for row in rows.shown]) == (NEWEST, [None] * 3)
    assert audit(storage, Watch()).is_fine
    assert not read_events(storage, Documents(storage)).problems
    assert restored(root)[1] == NEWEST
    remove_checkpoint(storage, CheckpointName.parse(NEWEST))
    assert NEWEST not in os.listdir(root / "checkpoints")
    assert [item for item in scanned if item.startswith(str(outside))] == []
    assert len(tree(outside)) == 3  # a link goes with its checkpoint, and what it leads to stays


def test_pipe_in_place_of_file_is_passed_over(root, caplog):
    for file in FILES.values():
        path = root / file.format(NEWEST)
        data, end = path.read_bytes(), pipe_at(path)
        assert restored(root)[1] != NEWEST
        os.close(end)
        path.unlink()
        path.write_bytes(data)
        assert f"{path.relative_to(root)} is a folder, a pipe or a device, not a file" in caplog.text


def test_other_documents_may_be_pipes(root):
    ends = [pipe_at(root / key) for key in ("run.json", "events/a000001-0001.jsonl")]
    storage = LocalStorage(root)
    assert "a pipe" in read_events(storage, Documents(storage)).problems["events/a000001-0001.jsonl"]
    assert [item.file for item in audit(storage, Watch()).problems] == ["run.json"]
    assert restored(root)[1] == NEWEST
    for end in ends:
        os.close(end)


def test_only_regular_files_are_read(tmp_path):
    MADE["socket"](tmp_path / "socket", None)
    (tmp_path / "folder").mkdir()
    if os.geteuid() == 0:
        os.mknod(tmp_path / "device", stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero, which never ends
    storage, end = LocalStorage(tmp_path), pipe_at(tmp_path / "pipe")
    for key in os.listdir(tmp_path):
        for read in (storage.read, lambda key, size: storage.read_into(key, [memoryview(bytearray(size))])):
            with pytest.raises(CorruptCheckpointError, match=f"{key} is a folder, a pipe or a device"):
                read(key, 9)
    os.close(end)


def test_link_in_place_of_what_is_needed_is_named(root, tmp_path):
    """It is neither followed nor passed over: a person has put the newest checkpoint elsewhere."""
    disk = tmp_path / "disk"
    for key in (
        *(FILES[file].format(NEWEST) for file in ("commit", "manifest", "rank", "weights")),
        *(f"checkpoints/{NEWEST}/rank-00000", f"checkpoints/{NEWEST}", "checkpoints"),
        *("attempts", "attempts/000001.json", "run.json"),
    ):
        (root / key).rename(disk)
        (root / key).symlink_to(disk)
        before = tree(root), tree(tmp_path)
        with pytest.raises(StorageError, match=f"{key} {NO_LINKS}"):
            restored(root)
        assert (tree(root), tree(tmp_path)) == before, key
        (root / key).unlink()
        disk.rename(root / key)
    assert restored(root)[1] == NEWEST


@pytest.mark.parametrize("link", ["checkpoints", "checkpoints/a/rank-00000"])
def test_nothing_behind_a_link_is_touched(tmp_path, outside, scanned, link):
    (tmp_path / "run" / link).parent.mkdir(parents=True)
    (tmp_path / "run" / link).symlink_to(outside)
    storage, before, key = LocalStorage(tmp_path / "run"), tree(outside), f"{link}/thesis.txt"
    scanned.clear()
    for act in (
        lambda: storage.list(link),
        lambda: storage.walk(f"{link}/"),
        lambda: storage.read(key, 9),
        lambda: storage.read_into(key, [memoryview(bytearray(9))]),
        lambda: storage.write(f"{link}/b/new", io.BytesIO(b"x"), 1),
        lambda: storage.create(f"{link}/new", b"x"),
        lambda: storage.delete([key]),
        lambda: storage.clear_unfinished(f"{link}/", lambda key: True),
    ):
        with pytest.raises(StorageError, match=NO_LINKS):
            act()
    assert str(outside) not in scanned
    assert tree(outside) == before


def test_file_on_another_disk_proves_nothing(tmp_path, outside, monkeypatch):
    """That it can be read behind a link does not say that this disk works."""
    storage = LocalStorage(tmp_path / "run")
    storage.create("a", b"bytes")
    (tmp_path / "run/link").symlink_to(outside)
    (tmp_path / "run/file").symlink_to(outside / "thesis.txt")
    disk = BadDisk(str(tmp_path / "run"), number=errno.EIO).install(monkeypatch)
    with pytest.raises(StorageError, match="could not read"):
        storage.read("a", 9)
    assert disk.fired == 2


def test_walk_of_endless_folders_ends():
    """Some servers follow links, and a link may lead to a folder above it."""
    asked = []

    def endless(folder, prefix):
        asked.append(folder)
        assert len(asked) < 20
        return Listing(frozenset({"again"}), {"file": 1})

    assert len(walk_folders(endless, "")) == len(asked)
