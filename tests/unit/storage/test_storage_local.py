"""`LocalStorage` keeps the contract, is durable in the right order, and never takes an error for an answer."""

import contextlib
import errno
import io
import itertools
import os
from pathlib import Path

import pytest

from ckptkit.errors import CorruptCheckpointError, StorageError
from ckptkit.storage import LocalStorage, Storage
from ckptkit.storage.local import LARGE_BYTES
from ckptkit.testing.contract import StorageContract
from ckptkit.testing.faults import FaultyStorage


class InFiles(StorageContract):
    def raw_get(self, storage, key):
        path = Path(storage.url, key)
        return path.read_bytes() if path.is_file() else None

    def raw_put(self, storage, key, data):
        path = Path(storage.url, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class TestLocalStorage(InFiles):
    @pytest.fixture
    def storage(self, tmp_path) -> Storage:
        return LocalStorage(tmp_path / "root")


class TestFaultyStorageWithoutFaults(InFiles):
    @pytest.fixture
    def storage(self, tmp_path) -> Storage:
        return FaultyStorage(LocalStorage(tmp_path / "root"))


@pytest.fixture
def local(tmp_path, monkeypatch):
    """Without a reserve, whose files `tests/crash/test_full_disk.py` is about."""
    monkeypatch.setattr("ckptkit.storage.local._RESERVED", "")
    return LocalStorage(tmp_path / "root")


class Disk:
    """Records, in order, what makes names and bytes durable."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, str]] = []
        self._root = root
        self._open: dict[int, str] = {}
        self._real = {
            name: getattr(os, name) for name in ("open", "fsync", "link", "mkdir", "pwrite", "unlink", "rmdir")
        }
        patch.setattr(os, "open", self._opened)
        patch.setattr(os, "pwrite", self._written)
        patch.setattr(os, "fsync", self._synced)
        for name in ("mkdir", "unlink", "rmdir"):
            patch.setattr(os, name, self._on_path(name))
        patch.setattr(os, "link", self._linked)

    def _name(self, path) -> str:
        name = os.path.relpath(path, self._root)
        return "TEMPORARY" if name.endswith(".tmp") else name

    def _opened(self, path, *args, **kwargs):
        descriptor = self._real["open"](path, *args, **kwargs)
        self._open[descriptor] = self._name(path)
        return descriptor

    def _of(self, descriptor: int) -> str:
        return self._name(os.readlink(f"/proc/self/fd/{descriptor}"))

    def _written(self, descriptor, data, offset):
        self.events.append(("write", self._of(descriptor)))
        return self._real["pwrite"](descriptor, data, offset)

    def _synced(self, descriptor):
        self.events.append(("fsync", self._of(descriptor)))
        self._real["fsync"](descriptor)

    def _linked(self, source, target):
        self.events.append(("link", self._name(target)))
        self._real["link"](source, target)

    def _on_path(self, name):
        def call(path, *args, **kwargs):
            self.events.append((name, self._name(path)))
            return self._real[name](path, *args, **kwargs)

        return call

    def at(self, verb: str, name: str) -> int:
        """Where the last such event stands."""
        return max(index for index, event in enumerate(self.events) if event == (verb, name))


@pytest.fixture
def disk(tmp_path, monkeypatch):
    (tmp_path / "root").mkdir()
    return Disk(tmp_path / "root", monkeypatch)


def test_written_file_is_synced_before_its_folder(local, disk):
    local.write("a/b/1", io.BytesIO(b"1234"), 4)
    assert disk.at("write", "a/b/1") < disk.at("fsync", "a/b/1") < disk.at("fsync", "a/b")
    assert disk.events[-1] == ("fsync", "a/b")


def test_create_syncs_file_then_link(local, disk):
    """A created file is synced before its link, and the link before create returns."""
    local.create("a/b/COMMIT", b"1")
    assert disk.at("write", "TEMPORARY") < disk.at("fsync", "TEMPORARY") < disk.at("link", "a/b/COMMIT")
    assert disk.at("link", "a/b/COMMIT") < disk.at("fsync", "a/b")
    assert disk.events[-1] == ("fsync", "a/b")


@pytest.mark.parametrize("verb", ["write", "create"])
def test_new_folder_is_synced_before_its_contents(local, disk, verb):
    """A new folder is synced into its parent before anything is put below it."""
    if verb == "write":
        local.write("a/b/c/1", io.BytesIO(b"1"), 1)
    else:
        local.create("a/b/c/1", b"1")
    # Each mkdir is followed at once by the fsync of the folder that now names it.
    made = [index for index, (event, _) in enumerate(disk.events) if event == "mkdir"]
    assert [disk.events[index : index + 2] for index in made] == [
        [("mkdir", "a"), ("fsync", ".")],
        [("mkdir", "a/b"), ("fsync", "a")],
        [("mkdir", "a/b/c"), ("fsync", "a/b")],
    ]
    first_byte = min(index for index, (event, _) in enumerate(disk.events) if event == "write")
    assert max(made) + 1 < first_byte


def test_new_run_root_is_synced_into_its_parent(tmp_path, monkeypatch):
    disk = Disk(tmp_path, monkeypatch)
    LocalStorage(tmp_path / "new" / "root").create("run.json", b"{}")
    assert disk.at("mkdir", "new") < disk.at("fsync", ".")
    assert disk.at("mkdir", "new/root") < disk.at("fsync", "new")


def test_a_deletion_is_durable_when_delete_returns(local, disk):
    local.write("a/stays/1", io.BytesIO(b"1"), 1)
    local.write("a/stays/2", io.BytesIO(b"2"), 1)
    local.write("a/gone/3", io.BytesIO(b"3"), 1)
    disk.events.clear()
    local.delete(["a/stays/1", "a/gone/3"])
    assert disk.at("unlink", "a/stays/1") < disk.at("fsync", "a/stays")
    assert disk.at("rmdir", "a/gone") < disk.at("fsync", "a")


def test_empty_folders_go_except_at_first_level(local, tmp_path):
    local.write("checkpoints/one/rank-00000/1", io.BytesIO(b"1"), 1)
    local.delete(["checkpoints/one/rank-00000/1"])
    assert [path.name for path in (tmp_path / "root").rglob("*")] == ["checkpoints"]


def test_interrupted_write_is_storage_error_and_leaves_nothing(local, monkeypatch):
    real = os.pwrite
    written = iter([b"1"])

    def full_after_one_byte(descriptor, data, offset):
        if next(written, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:1], offset)

    monkeypatch.setattr(os, "pwrite", full_after_one_byte)
    with pytest.raises(StorageError, match="No space left") as raised:
        local.write("a/1", io.BytesIO(b"12345"), 5)
    assert isinstance(raised.value.__cause__, OSError)
    assert not local.list("a").files


@pytest.mark.parametrize("size_bytes", [5, LARGE_BYTES + 5])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_write_that_is_broken_off_leaves_nothing(local, error, size_bytes):
    class Broken:
        def readinto(self, buffer):
            raise error

    with pytest.raises(error):
        local.write("a/1", Broken(), size_bytes)
    assert not local.list("a").files
    local.write("a/1", io.BytesIO(bytes(size_bytes)), size_bytes)
    assert local.list("a").files == {"1": size_bytes}


class Miscounting:
    """Says that it gave more than it was asked for."""

    asked = 0

    def readinto(self, buffer):
        self.asked += 1
        assert self.asked == 1, "it is asked on and on"
        return len(buffer) + 1


@pytest.mark.parametrize("size_bytes", [5, LARGE_BYTES])
def test_stream_that_miscounts_is_a_storage_error(local, size_bytes):
    with pytest.raises(StorageError, match=f"returned {size_bytes + 1} after"):
        local.write("a/1", Miscounting(), size_bytes)
    assert not local.list("a").files


@pytest.mark.parametrize("verb", ["write", "create"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_failed_fsync_leaves_neither_file_nor_folder(local, monkeypatch, verb, nth):
    """A second one may succeed without them; so they are made again. Of ``root``, ``a``, the file and its name."""
    real, numbers = os.fsync, itertools.count(1)
    Path(local.url).parent.mkdir(exist_ok=True)
    local._durable.add(Path(local.url).parent)

    def fail_once(descriptor):
        if next(numbers) == nth:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    def put():
        return local.create("a/1", b"1") if verb == "create" else local.write("a/1", io.BytesIO(b"1"), 1)

    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(StorageError, match="Input/output"):
        put()
    left = [path.name for path in Path(local.url).parent.rglob("*")]
    assert left == ["root", "a"][: nth - 1]
    put()
    assert local.read("a/1", 9) == b"1"


def test_failed_create_leaves_the_name_of_another(local, monkeypatch):
    local.create("a/1", b"other")

    def fail(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError):
        local.create("a/1", b"own")
    assert local.read("a/1", 9) == b"other"


def test_folder_above_root_may_be_unreadable(local, disk, monkeypatch):
    """Its user can only pass through it, and what it names was made by others."""
    above = Path(local.url).parent
    real = os.open

    def refuse(path, *args, **options):
        if Path(path) == above:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    local.create("a/1", b"1")
    assert local.read("a/1", 9) == b"1"


def test_folder_within_root_must_be_readable(local, monkeypatch):
    """Its names could not be made durable."""
    (Path(local.url) / "a").mkdir(parents=True)
    real = os.open

    def refuse(path, *args, **options):
        if Path(path) == Path(local.url):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match="Permission denied"):
        local.create("a/1", b"1")
    assert list((Path(local.url) / "a").iterdir()) == []


def test_names_behind_symbolic_links_are_synced(tmp_path, monkeypatch):
    (tmp_path / "large/ckpt").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home/runs").symlink_to(tmp_path / "large/ckpt")
    disk = Disk(tmp_path, monkeypatch)
    LocalStorage(tmp_path / "home/runs/one").create("a/1", b"1")
    write = disk.events.index(("mkdir", "home/runs/one/a"))
    assert {("fsync", "home"), ("fsync", "large"), ("fsync", ".")} <= set(disk.events[:write])


def test_a_short_write_of_the_system_is_continued(local, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: real(descriptor, data[:2], offset))
    local.write("a/1", io.BytesIO(b"12345"), 5)
    assert local.read("a/1", 100) == b"12345"


def test_a_disk_that_takes_nothing_is_an_error(local, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: 0)
    with pytest.raises(StorageError, match="the file system wrote nothing"):
        local.write("a/1", io.BytesIO(b"12345"), 5)


@pytest.mark.parametrize("vanishes", [4, 5])
def test_vanishing_folder_is_made_again_within_reason(local, monkeypatch, vanishes):
    """Another process removes it, empty, before the file is opened."""
    real, numbers = os.open, itertools.count(1)

    def open_late(path, flags, *args, **options):
        if flags & os.O_CREAT and next(numbers) <= vanishes:
            Path(path).parent.rmdir()
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", open_late)
    if vanishes < 5:
        local.write("a/b/1", io.BytesIO(b"12345"), 5)
        assert local.read("a/b/1", 9) == b"12345"
    else:
        with pytest.raises(StorageError, match="No such file"):
            local.write("a/b/1", io.BytesIO(b"12345"), 5)


def test_a_short_read_of_the_system_is_continued(local, monkeypatch):
    real = os.preadv
    counts = []

    def short(descriptor, buffers, offset):
        first, *others = buffers
        cut = [first[:3]] if len(first) >= 3 or not others else [first, others[0][: 3 - len(first)]]
        counts.append(real(descriptor, cut, offset))
        return counts[-1]

    local.create("a/1", b"0123456789")
    monkeypatch.setattr(os, "preadv", short)
    one, two, three = bytearray(4), bytearray(2), bytearray(6)
    assert local.read_into("a/1", [memoryview(one), memoryview(two), memoryview(three)], 1) == 9
    assert one + two + three == b"123456789\0\0\0"
    assert counts == [3, 3, 3, 0]


def test_nothing_lies_at_the_key_before_the_link(local, tmp_path, monkeypatch):
    real = os.link
    seen = []

    def look(source, target):
        seen.append((os.path.exists(target), Path(source).read_bytes()))
        real(source, target)

    monkeypatch.setattr(os, "link", look)
    local.create("a/COMMIT", b"whole")
    assert seen == [(False, b"whole")]
    assert [path.name for path in (tmp_path / "root" / "a").iterdir()] == ["COMMIT"]


@pytest.mark.parametrize(
    ("call", "names", "hint"),
    [
        ("link", "EPERM EOPNOTSUPP ENOSYS EIO EXDEV ENOENT EMLINK EINVAL", "publishes with hard links"),
        ("link", "ENOSPC EDQUOT", "See `df -h`"),
        ("fsync", "EOPNOTSUPP ENOSYS EINVAL", "cannot make files durable"),
        ("fsync", "EIO EPERM", r"\.$"),
        ("fsync", "ENOSPC EDQUOT", "See `df -h`"),
    ],
)
def test_failing_call_is_named_whatever_the_error(local, monkeypatch, call, names, hint):
    """File systems without hard links have no common error for that, and others use the same numbers."""
    for number in (getattr(errno, name) for name in names.split()):

        def refuse(*_, number=number):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, call, refuse)
        writes = {
            "create": lambda: local.create("a/COMMIT", b"1"),
            "write": lambda: local.write("a/1", io.BytesIO(b"1"), 1),
        }
        for verb in ("create", "write")[: 1 if call == "link" else 2]:
            with pytest.raises(
                StorageError, match=f"could not {verb} .*: {call}: {os.strerror(number)}.*{hint}"
            ) as raised:
                writes[verb]()
            assert ("hard links" in str(raised.value)) is ("hard links" in hint)
        assert not local.list("a").files


def test_failures_leave_no_descriptor_open(local, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    local.create("a/1", b"1")
    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(os, "preadv", fail)
    for size_bytes in (1, LARGE_BYTES):
        with pytest.raises(StorageError):
            local.write("a/2", io.BytesIO(bytes(size_bytes)), size_bytes)
    for call in (lambda: local.create("a/2", b"2"), lambda: local.read("a/1", 9), lambda: local.delete(["a/1"])):
        with pytest.raises(StorageError):
            call()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_create_with_failed_folder_sync_is_an_error(local, monkeypatch):
    """A create whose folder cannot be synced is in doubt, and does not count as won."""

    def fail_on_folders(descriptor):
        if os.path.isdir(os.readlink(f"/proc/self/fd/{descriptor}")):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    (Path(local.url) / "a").mkdir(parents=True)
    monkeypatch.setattr(os, "fsync", fail_on_folders)
    with pytest.raises(StorageError, match="could not create"):
        local.create("a/COMMIT", b"1")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOTDIR])
def test_unlistable_folder_is_an_error_not_empty(local, monkeypatch, number):
    local.create("a/1", b"1")

    def refuse(path):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageError, match="could not list") as raised:
        local.list("a")
    assert raised.value.__cause__.errno == number


def test_file_in_place_of_folder_is_an_error(local):
    local.create("a", b"1")
    with pytest.raises(StorageError):
        local.list("a")
    with pytest.raises(StorageError):
        local.create("a/1", b"1")


def test_folder_in_place_of_file_is_an_error(local):
    local.create("a/1", b"1")
    with pytest.raises(CorruptCheckpointError, match="a is a folder"):
        local.read("a", 10)
    with pytest.raises(CorruptCheckpointError, match="a is a folder"):
        local.read_into("a", [memoryview(bytearray(1))])
    with pytest.raises(StorageError):
        local.delete(["a"])


def test_file_that_vanishes_during_listing_is_omitted(local, monkeypatch):
    local.create("a/1", b"1")
    local.create("a/2", b"2")
    real = os.scandir

    def vanish_after_the_scan(path):
        entries = list(real(path))
        os.unlink(os.path.join(path, "1"))
        return _Entries(entries)

    monkeypatch.setattr(os, "scandir", vanish_after_the_scan)
    assert dict(local.list("a").files) == {"2": 1}


class _Entries(list):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_root_may_begin_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert LocalStorage("~/runs").url == str(tmp_path / "runs")


def test_inherited_folder_is_synced_once_before_use(local, disk):
    """A folder that a dead process left is synced once before anything is put into it."""
    (Path(local.url) / "a" / "b").mkdir(parents=True)
    local.write("a/b/1", io.BytesIO(b"1"), 1)
    write = disk.events.index(("fsync", "a/b/1"))
    assert ("fsync", ".") in disk.events[:write]
    assert ("fsync", "a") in disk.events[:write]
    before = len(disk.events)
    local.write("a/b/2", io.BytesIO(b"2"), 1)
    assert ("fsync", "a") not in disk.events[before:]


def test_files_of_killed_creates_are_cleared(local):
    """Only files whose writer is dead are cleared."""
    root = Path(local.url)
    for key in (
        "attempts/.000001.json.0123456789abcdef.tmp",
        "attempts/.000002.json.0123456789abcdef.tmp",
        "attempts/.mine.tmp",
    ):
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(b"half")
    asked = []
    assert local.clear_unfinished("attempts/", lambda key: asked.append(key) or key == "attempts/000001.json") == 1
    assert sorted(asked) == ["attempts/000001.json", "attempts/000002.json"]
    assert sorted(path.name for path in (root / "attempts").iterdir()) == [
        ".000002.json.0123456789abcdef.tmp",
        ".mine.tmp",
    ]
    assert local.clear_unfinished("checkpoints/", lambda key: True) == 0


def test_clearing_an_unlistable_folder_is_an_error(local, monkeypatch):
    local.create("attempts/1", b"1")

    def refuse(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageError, match=r"could not list .*attempts: Input/output"):
        local.clear_unfinished("attempts/", lambda key: True)


def test_empty_folder_that_stays_is_an_error(local, monkeypatch):
    local.create("a/b/1", b"1")

    def refuse(path):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(StorageError, match=r"could not delete .*busy"):
        local.delete(["a/b/1"])


@pytest.mark.parametrize(("times", "fails"), [(2, False), (100, True)])
def test_folder_that_another_process_empties_is_removed(local, monkeypatch, times, fails):
    local.create("a/b/1", b"1")
    remove, refused = os.rmdir, []

    def not_empty_yet(path):
        if len(refused) < times:
            refused.append(path)
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        remove(path)

    monkeypatch.setattr(os, "rmdir", not_empty_yet)
    with pytest.raises(StorageError, match=r"not empty") if fails else contextlib.nullcontext():
        local.delete(["a/b/1"])
    assert len(refused) >= 2
    assert (Path(local.url) / "a/b").exists() == fails


def test_empty_folders_of_dead_writers_are_cleared(local):
    root = Path(local.url)
    for folder in ("a000001-x/rank-00000", "a000001-y", "a000002-x", "b000001-x"):
        (root / "checkpoints" / folder).mkdir(parents=True)
    local.create("checkpoints/a000001-z/COMMIT", b"1")
    (root / "attempts").mkdir()
    asked = []

    def is_dead(key):
        asked.append(key)
        return "000001-" in key

    assert local.clear_unfinished("checkpoints/a", is_dead) == 2
    assert sorted(asked) == [f"checkpoints/{one}/" for one in ("a000001-x/rank-00000", "a000001-y", "a000002-x")]
    left = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_dir())
    kept = ("a000001-z", "a000002-x", "b000001-x")
    assert left == ["attempts", "checkpoints", *(f"checkpoints/{one}" for one in kept)]
    assert local.clear_unfinished("", lambda key: True) == 2
    assert (root / "attempts").is_dir()  # the first level stays


def test_half_files_under_another_prefix_stay(local):
    half = Path(local.url) / "checkpoints/a000001-x/.COMMIT.0123456789abcdef.tmp"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    assert local.clear_unfinished("checkpoints/a000001-x/manifest", lambda key: True) == 0
    assert half.exists()
    assert local.clear_unfinished("checkpoints/a000001-x/COM", lambda key: True) == 1
    assert not half.exists()
