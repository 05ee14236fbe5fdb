"""`LocalStorage` keeps the contract, and never takes an error for an answer.

That bytes and names are durable in the right order, `tests/crash/power` shows; here are the cases that it has not.
"""

import contextlib
import errno
import io
import itertools
import os
from functools import partial
from pathlib import Path

import pytest

from ckptkit.errors import StorageError
from ckptkit.storage import LocalStorage, Storage
from ckptkit.storage.local import LARGE_BYTES
from ckptkit.testing.contract import StorageContract


class TestLocalStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path) -> Storage:
        return LocalStorage(tmp_path / "root")

    def raw_get(self, storage, key):
        path = Path(storage.url, key)
        return path.read_bytes() if path.is_file() else None

    def raw_put(self, storage, key, data):
        path = Path(storage.url, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture
def local(tmp_path, monkeypatch):
    """Without a reserve, whose files `tests/crash/test_full_disk.py` is about."""
    monkeypatch.setattr("ckptkit.storage.local._RESERVED", "")
    return LocalStorage(tmp_path / "root")


def failing(number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


def put(storage, verb, key, data=b"1"):
    return storage.create(key, data) if verb == "create" else storage.write(key, io.BytesIO(data), len(data))


class Disk:
    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, str]] = []
        self._root = root
        for name in ("fsync", "pwrite", "mkdir", "unlink", "rmdir", "link"):
            patch.setattr(os, name, partial(self._call, name, getattr(os, name)))

    def _call(self, name, real, *given, **options):
        place = given[-1] if name == "link" else given[0]
        path = os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else place
        at = os.path.relpath(path, self._root)
        self.events.append((name, "TEMPORARY" if at.endswith(".tmp") else at))
        return real(*given, **options)

    def at(self, verb: str, name: str) -> int:
        return max(index for index, event in enumerate(self.events) if event == (verb, name))


@pytest.fixture
def disk(tmp_path, monkeypatch):
    (tmp_path / "root").mkdir()
    return Disk(tmp_path / "root", monkeypatch)


def test_names_behind_symbolic_links_are_synced(tmp_path, monkeypatch):
    (tmp_path / "large/ckpt").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home/runs").symlink_to(tmp_path / "large/ckpt")
    disk = Disk(tmp_path, monkeypatch)
    LocalStorage(tmp_path / "home/runs/one").create("a/1", b"1")
    write = disk.events.index(("mkdir", "home/runs/one/a"))
    assert {("fsync", "home"), ("fsync", "large"), ("fsync", ".")} <= set(disk.events[:write])


def test_a_deletion_is_durable_when_delete_returns(local, disk, tmp_path):
    for key in ("a/stays/1", "a/stays/2", "a/gone/3", "b/one/rank-00000/1"):
        put(local, "write", key)
    disk.events.clear()
    local.delete(["a/stays/1", "a/gone/3", "b/one/rank-00000/1"])
    assert disk.at("unlink", "a/stays/1") < disk.at("fsync", "a/stays")
    assert disk.at("rmdir", "a/gone") < disk.at("fsync", "a")
    assert sorted(path.name for path in (tmp_path / "root").rglob("*")) == ["2", "a", "b", "stays"]


def test_write_that_is_broken_off_leaves_nothing(local, monkeypatch):
    class Broken:
        def __init__(self, error):
            self.error, self.asked = error, 0

        def readinto(self, buffer):
            self.asked += 1
            assert self.asked == 1, "it is asked on and on"
            if isinstance(self.error, int):
                return len(buffer) + self.error
            raise self.error

    for size_bytes in (5, LARGE_BYTES + 5):
        for given, error in [(KeyboardInterrupt, KeyboardInterrupt), (ValueError, ValueError), (1, StorageError)]:
            with pytest.raises(error):
                local.write("a/1", Broken(given), size_bytes)
            assert not local.list("a").files
    real, numbers = os.pwrite, itertools.count()
    pwrite = lambda at, data, offset: real(at, data[:1], offset) if not next(numbers) else failing(28)()  # noqa: E731
    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(StorageError, match="No space left") as raised:
        put(local, "write", "a/1", b"12345")
    assert raised.value.__cause__.errno == errno.ENOSPC
    assert not local.list("a").files


@pytest.mark.parametrize("verb", ["write", "create"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_failed_fsync_leaves_neither_file_nor_folder(local, monkeypatch, verb, nth):
    """A second one may succeed without them; so they are made again. Of ``root``, ``a``, the file and its name."""
    real, numbers = os.fsync, itertools.count(1)
    Path(local.url).parent.mkdir(exist_ok=True)
    local._durable.add(Path(local.url).parent)
    monkeypatch.setattr(os, "fsync", lambda at: failing(errno.EIO)() if next(numbers) == nth else real(at))
    with pytest.raises(StorageError, match="Input/output"):
        put(local, verb, "a/1")
    assert [path.name for path in Path(local.url).parent.rglob("*")] == ["root", "a"][: nth - 1]
    put(local, verb, "a/1")
    assert local.read("a/1", 9) == b"1"
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(StorageError):
        local.create("a/1", b"2")
    assert local.read("a/1", 9) == b"1"  # what was there before stays


@pytest.mark.parametrize("above", [True, False])
def test_only_a_folder_above_root_may_be_unreadable(local, monkeypatch, above):
    """Its user can only pass through it, and what it names was made by others; those within must be durable."""
    (Path(local.url) / "a").mkdir(parents=True)
    place, real = Path(local.url).parent if above else Path(local.url), os.open
    refuse = lambda path, *given: failing(errno.EACCES)() if Path(path) == place else real(path, *given)  # noqa: E731
    monkeypatch.setattr(os, "open", refuse)
    with contextlib.nullcontext() if above else pytest.raises(StorageError, match="Permission denied"):
        local.create("a/1", b"1")
    assert os.listdir(Path(local.url, "a")) == (["1"] if above else [])


def test_short_calls_are_continued_and_empty_writes_errors(local, monkeypatch):
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:2], offset))
    put(local, "write", "a/1", b"0123456789")
    counts = []

    def short(descriptor, buffers, offset):
        first, *others = buffers
        cut = [first[:3]] if len(first) >= 3 or not others else [first, others[0][: 3 - len(first)]]
        counts.append(preadv(descriptor, cut, offset))
        return counts[-1]

    monkeypatch.setattr(os, "preadv", short)
    buffers = bytearray(4), bytearray(2), bytearray(6)
    assert local.read_into("a/1", list(map(memoryview, buffers)), 1) == 9
    assert b"".join(buffers) == b"123456789\0\0\0"
    assert counts == [3, 3, 3, 0]
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: 0)
    with pytest.raises(StorageError, match="the file system wrote nothing"):
        put(local, "write", "a/2", b"12345")


@pytest.mark.parametrize("vanishes", [4, 5])
def test_vanishing_folder_is_made_again_within_reason(local, monkeypatch, vanishes):
    """Another process removes it, empty, before the file is opened."""
    real, numbers = os.open, itertools.count(1)

    def open_late(path, flags, *args, **options):
        if flags & os.O_CREAT and next(numbers) <= vanishes:
            Path(path).parent.rmdir()
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", open_late)
    with pytest.raises(StorageError, match="No such file") if vanishes == 5 else contextlib.nullcontext():
        put(local, "write", "a/b/1")
    assert Path(local.url, "a/b/1").exists() == (vanishes < 5)


@pytest.mark.parametrize(
    ("call", "names", "hint"),
    [
        ("link", "EPERM EIO EXDEV ENOENT EINVAL", "publishes with hard links"),
        ("link", "ENOSPC", "See `df -h`"),
        ("fsync", "EOPNOTSUPP ENOSYS EINVAL", "cannot make files durable"),
        ("fsync", "EIO", r"\.$"),
        ("fsync", "ENOSPC EDQUOT", "See `df -h`"),
    ],
)
def test_failing_call_is_named_whatever_the_error(local, monkeypatch, call, names, hint):
    """File systems without hard links have no common error for that, and others use the same numbers."""
    for number in (getattr(errno, name) for name in names.split()):
        monkeypatch.setattr(os, call, failing(number))
        for verb in ("create", "write")[: 1 if call == "link" else 2]:
            with pytest.raises(StorageError, match=f"could not {verb} .*: {call}: {os.strerror(number)}.*{hint}"):
                put(local, verb, "a/1")
        assert not local.list("a").files


def test_failures_leave_no_descriptor_open(local, monkeypatch):
    local.create("a/1", b"1")
    before = sorted(os.listdir("/proc/self/fd"))
    for name in ("fsync", "preadv"):
        monkeypatch.setattr(os, name, failing(errno.EIO))
    calls = [lambda size=size: put(local, "write", "a/2", bytes(size)) for size in (1, LARGE_BYTES)]
    calls += [lambda: local.create("a/2", b"2"), lambda: local.read("a/1", 9), lambda: local.delete(["a/1"])]
    for call in calls:
        with pytest.raises(StorageError):
            call()
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.ENOTDIR])
def test_unlistable_folder_is_an_error_not_empty(local, monkeypatch, number):
    local.create("a/1", b"1")
    once = iter([failing(errno.ESTALE)])  # a server of files no longer knew the handle: it is asked for another
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda path, real=os.scandir: next(once, real)(path))
        assert local.list("a").files == {"1": 1}
    assert not [*once]
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", failing(number))
        for call in (lambda: local.list("a"), lambda: local.clear_unfinished("a/", lambda key: True)):
            with pytest.raises(StorageError, match=r"could not list .*/a: ") as raised:
                call()
            assert raised.value.__cause__.errno == number
    local.create("b", b"1")  # a file and a folder in each other's place
    for call in (lambda: local.list("b"), lambda: local.create("b/1", b"1"), lambda: local.delete(["a"])):
        with pytest.raises(StorageError):
            call()


def test_file_that_vanishes_during_listing_is_omitted(local, monkeypatch):
    for key in ("a/1", "a/2"):
        local.create(key, b"1")
    real = os.scandir

    class Entries(contextlib.nullcontext):
        def __iter__(self):
            return iter(self.enter_result)

    def vanish_after_the_scan(path):
        entries = Entries([*real(path)])
        os.unlink(os.path.join(path, "1"))
        return entries

    monkeypatch.setattr(os, "scandir", vanish_after_the_scan)
    assert dict(local.list("a").files) == {"2": 1}


def test_folder_that_another_process_empties_is_removed(local, monkeypatch):
    remove, numbers = os.rmdir, itertools.count(1)
    for number, times, match in [
        (errno.ENOTEMPTY, 2, None),
        (errno.ENOTEMPTY, 100, "could not delete .*not empty"),
        (errno.EBUSY, 100, "could not delete .*busy"),
    ]:
        local.create("a/b/1", b"1")
        last = next(numbers) + times
        monkeypatch.setattr(os, "rmdir", lambda path: failing(number)() if next(numbers) <= last else remove(path))  # noqa: B023
        with pytest.raises(StorageError, match=match) if match else contextlib.nullcontext():
            local.delete(["a/b/1"])
        assert (Path(local.url) / "a/b").exists() == bool(match)
        assert next(numbers) < last or not match, "it goes on for ever"


def test_files_of_killed_creates_are_cleared(local):
    root, end = Path(local.url), "0123456789abcdef.tmp"
    halves = [f"attempts/.00000{number}.json.{end}" for number in (1, 2)]
    halves += ["attempts/.mine.tmp", f"checkpoints/a000001-x/.COMMIT.{end}"]
    for key in halves:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(b"half")
    asked = []
    assert local.clear_unfinished("attempts/", lambda key: asked.append(key) or key == "attempts/000001.json") == 1
    assert sorted(asked) == ["attempts/000001.json", "attempts/000002.json"]
    assert local.clear_unfinished("checkpoints/a000001-x/manifest", lambda key: True) == 0
    assert [(root / key).exists() for key in halves] == [False, True, True, True]
    assert local.clear_unfinished("checkpoints/a000001-x/COM", lambda key: True) == 1
    assert not (root / halves[-1]).exists()
    assert local.clear_unfinished("frozen/", lambda key: True) == 0


def test_empty_folders_of_dead_writers_are_cleared(local):
    root = Path(local.url)
    for folder in ("a000001-x/rank-00000", "a000001-y", "a000002-x", "b000001-x"):
        (root / "checkpoints" / folder).mkdir(parents=True)
    local.create("checkpoints/a000001-z/COMMIT", b"1")
    (root / "attempts").mkdir()
    asked = []
    assert local.clear_unfinished("checkpoints/a", lambda key: asked.append(key) or "000001-" in key) == 2
    assert sorted(asked) == [f"checkpoints/{name}/" for name in ("a000001-x/rank-00000", "a000001-y", "a000002-x")]
    assert sorted(os.listdir(root / "checkpoints")) == ["a000001-z", "a000002-x", "b000001-x"]
    assert local.clear_unfinished("", lambda key: True) == 2
    assert (root / "attempts").is_dir()  # the first level stays


def test_inherited_folder_is_synced_once_before_use(local, disk):
    """Who made it may have died before its name was durable."""
    Path(local.url, "a/b").mkdir(parents=True)
    put(local, "write", "a/b/1")
    assert {("fsync", "."), ("fsync", "a")} <= set(disk.events[: disk.at("fsync", "a/b/1")])
    count = len(disk.events)
    put(local, "write", "a/b/2")
    assert ("fsync", "a") not in disk.events[count:]
