"""A file that a disk cannot give, or that is no file: passed over where that is proven of it alone, else named.

Nothing waits for links, pipes, sockets and devices in a run, follows them, or is spoilt by them.
"""

import errno
import io
import json
import logging
import os
import stat

import pytest
from support.runs.grown import WatchedRun, grow, run_at
from support.runs.scenario import tree
from support.told_watch import ToldWatch
from unit.tools.test_copy import copy

from ckptkit.checkpoint.commit import remove_checkpoint
from ckptkit.errors import CorruptCheckpointError, StorageError
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Preemption
from ckptkit.run.catalog import list_rows
from ckptkit.run.event_log import read_events
from ckptkit.run.index import Documents
from ckptkit.storage import LocalStorage
from ckptkit.storage.protocol import Listing, walk_folders
from ckptkit.tools.verify import audit


class BadDisk:
    """Reads of files whose paths hold one of ``parts`` fail, below whatever root."""

    def __init__(self, patch: pytest.MonkeyPatch, *parts: str, number=errno.EIO, times: int | None = None) -> None:
        self._parts, self._number, self._times = parts, number, times
        self._preadv = os.preadv
        self.fired = 0
        patch.setattr(os, "preadv", self.preadv)

    def preadv(self, descriptor, buffers, offset):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self.fired != self._times and any(part in path for part in self._parts):
            self.fired += 1
            raise OSError(self._number, os.strerror(self._number))
        return self._preadv(descriptor, buffers, offset)


# Saves at 3 and 6 by attempt 1, at 9 and 14 by attempt 2.
FILES = {
    "weights": "checkpoints/{}/rank-00000/weights-000.safetensors",
    "optimizer": "checkpoints/{}/rank-00000/optimizer-000.safetensors",
    "rank": "checkpoints/{}/rank-00000.json",
    "manifest": "checkpoints/{}/manifest.json",
    "commit": "checkpoints/{}/COMMIT",
}
OF_A_DISK = [errno.EIO, errno.ENODATA, errno.EBADMSG, errno.EUCLEAN]


@pytest.fixture
def names(root):
    return (*grow(root, 3, 6), *grow(root, 9, 14))


def restored(root, **options):
    run = WatchedRun()
    point = CheckpointManager(root, preemption=Preemption(then="off")).restore(run, **options)
    return run, point.checkpoint


def attempts(root):
    return sorted(os.listdir(root / "attempts"))


@pytest.mark.covering(1)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("number", OF_A_DISK)
def test_an_unreadable_file_is_named_and_passed_over(root, names, monkeypatch, caplog, file, number):  # noqa: PLR0917
    newest, previous = names[-1], names[-2]
    key = FILES[file].format(newest)
    disk = BadDisk(monkeypatch, key, number=number)
    run, taken = restored(root)
    assert disk.fired >= 2
    assert run.applied == [taken] == [previous]
    assert run.digest() == run_at(9).digest()
    assert "CORRUPT CHECKPOINT" in caplog.text
    assert f"{key} cannot be read ({os.strerror(number)}, twice)" in caplog.text
    document = json.loads((root / "attempts/000003.json").read_bytes())
    assert [passed["checkpoint"] for passed in document["passed_over"]] == [newest]
    assert document["parent"] == previous


def test_a_disk_that_reads_nothing_proves_nothing(root, names, monkeypatch, caplog):
    """Documents of the run that cannot be read stop nobody."""
    with monkeypatch.context() as patch:
        disk = BadDisk(patch, str(root))
        with pytest.raises(StorageError, match="could not read"):
            restored(root)
    assert disk.fired > 2
    assert attempts(root) == ["000001.json", "000002.json"]
    BadDisk(monkeypatch, "attempts/000002.json", "run.json")
    assert restored(root)[1] == names[1]
    for file in ("attempts/000002.json", "run.json"):
        assert f"{file} cannot be read" in caplog.text


def test_a_read_that_works_again_passes_nothing_over(root, names, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "ckptkit")
    for number in (*OF_A_DISK, errno.ESTALE):
        with monkeypatch.context() as patch:
            disk = BadDisk(patch, FILES["weights"].format(names[-1]), number=number, times=1)
            run, taken = restored(root)
        assert (disk.fired, taken, run.digest()) == (1, names[-1], run_at(14).digest()), number
    assert "passed over" not in caplog.text


def test_a_file_proves_nothing_of_itself_nor_of_another_disk(root, tmp_path, monkeypatch):
    """Nor does an empty one, or one behind a link; and a part that can be read says no more than one that cannot."""
    storage = LocalStorage(root)
    storage.create("a", b"bytes")
    storage.create("empty", b"")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_bytes(b"readable")
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "file").symlink_to(tmp_path / "outside/file")
    disk = BadDisk(monkeypatch, str(root), times=2)
    with pytest.raises(StorageError, match="could not read"):
        storage.read("a", 9)
    assert disk.fired == 2


def test_unreadable_target_is_not_taken_for_corrupt_source(root, names, tmp_path, monkeypatch):
    copy(root, tmp_path / "copy")
    (tmp_path / "copy" / FILES["commit"].format(names[-1])).unlink()
    BadDisk(monkeypatch, f"/copy/{FILES['weights'].format(names[-1])}")
    with pytest.raises(StorageError, match="could not compare"):
        copy(root, tmp_path / "copy")


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE])
def test_a_failure_without_proof_names_the_way_on(root, names, monkeypatch, number):
    """No conclusion is drawn; the user may draw it, and the named option does as the message says."""
    newest, previous = names[-1], names[-2]
    disk = BadDisk(monkeypatch, FILES["weights"].format(newest), number=number)
    way = f'checkpoint="{previous}" continues from the one before {newest}, which stays unchanged.'
    with pytest.raises(StorageError, match=way):
        restored(root)
    assert disk.fired == (2 if number == errno.ESTALE else 1)  # a stale handle is opened once more
    assert attempts(root) == ["000001.json", "000002.json"]
    with pytest.raises(StorageError, match=r"(?s)^(?!.*continues from)"):  # the only one that was asked for
        restored(root, checkpoint=newest)
    assert restored(root, checkpoint=previous)[1] == previous
    assert (root / FILES["weights"].format(newest)).exists()


# Links, pipes, sockets and devices

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
def run_root(tmp_path):
    assert grow(tmp_path / "run", 3, 6, 9)[-1] == NEWEST
    return tmp_path / "run"


@pytest.fixture
def outside(tmp_path):
    (tmp_path / "outside/rank-00000").mkdir(parents=True)
    for name in ("thesis.txt", "rank-00000/thesis.txt", ".COMMIT.0123456789abcdef.tmp"):
        (tmp_path / "outside" / name).write_bytes(b"precious")
    return tmp_path / "outside"


@pytest.fixture
def scanned(monkeypatch):
    folders, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: folders.append(os.path.realpath(path)) or scandir(path))
    return folders


@pytest.mark.parametrize("kind", MADE)
def test_stray_entries_leave_run_usable(run_root, outside, scanned, kind):
    newest = f"checkpoints/{NEWEST}"
    for folder in ("", "checkpoints", "attempts", "events", newest, f"{newest}/rank-00000"):
        MADE[kind](run_root / folder / "stray", outside)
    storage = LocalStorage(run_root)
    rows = list_rows(storage, None)
    assert (rows.latest, [row.problem for row in rows.shown]) == (NEWEST, [None] * 3)
    assert audit(storage, ToldWatch()).is_fine
    assert not read_events(storage, Documents(storage)).problems
    assert restored(run_root)[1] == NEWEST
    remove_checkpoint(storage, CheckpointName.parse(NEWEST))
    assert NEWEST not in os.listdir(run_root / "checkpoints")
    assert [item for item in scanned if item.startswith(str(outside))] == []
    assert len(tree(outside)) == 3  # a link goes with its checkpoint, and what it leads to stays


def test_only_regular_files_are_read(tmp_path):
    MADE["socket"](tmp_path / "socket", None)
    (tmp_path / "folder").mkdir()
    if os.geteuid() == 0:
        os.mknod(tmp_path / "device", stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero, which never ends
    os.mkfifo(tmp_path / "pipe")  # while its other end is open, code that does not look fails instead of waiting
    storage, end = LocalStorage(tmp_path), os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)
    for key in os.listdir(tmp_path):
        for read in (storage.read, lambda key, size: storage.read_into(key, [memoryview(bytearray(size))])):
            with pytest.raises(CorruptCheckpointError, match=f"{key} is a folder, a pipe or a device"):
                read(key, 9)
    os.close(end)


def test_link_in_place_of_what_is_needed_is_named(run_root, tmp_path):
    """It is neither followed nor passed over: a person has put the newest checkpoint elsewhere."""
    disk = tmp_path / "disk"
    for key in (
        *(FILES[file].format(NEWEST) for file in ("commit", "manifest", "rank", "weights")),
        *(f"checkpoints/{NEWEST}/rank-00000", f"checkpoints/{NEWEST}", "checkpoints"),
        *("attempts", "attempts/000001.json", "run.json"),
    ):
        (run_root / key).rename(disk)
        (run_root / key).symlink_to(disk)
        before = tree(run_root), tree(tmp_path)
        with pytest.raises(StorageError, match=f"{key} {NO_LINKS}"):
            restored(run_root)
        assert (tree(run_root), tree(tmp_path)) == before, key
        (run_root / key).unlink()
        disk.rename(run_root / key)
    assert restored(run_root)[1] == NEWEST


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


def test_walk_of_endless_folders_ends():
    """Some servers follow links, and a link may lead to a folder above it."""
    asked = []
    endless = lambda folder, prefix: asked.append(folder) or Listing(frozenset({"down"}), {"file": 1})  # noqa: E731
    assert len(walk_folders(endless, "")) == len(asked) < 20
