"""Provides `StorageContract`: the tests that every `ckptkit.storage.Storage` must pass.

Subclass it, define the fixture ``storage`` and the two ``raw_`` methods, and pytest collects the rest::

    class TestMyStorage(StorageContract):
        @pytest.fixture
        def storage(self, tmp_path):
            return MyStorage(tmp_path)

        def raw_get(self, storage, key): ...
        def raw_put(self, storage, key, data): ...

Guarantees: each promise in the docstrings of the protocol has its own test. Tests prepare and check files without the
storage under test, so that two of its errors cannot hide each other. Does not test what a power loss leaves behind:
such a test must know the backend. Needs pytest, which ckptkit itself does not.
"""

# ruff: noqa: S101
# A contract consists of assertions.

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import pytest

from ckptkit.errors import StorageError
from ckptkit.storage import Storage
from ckptkit.testing.reading_contract import ReadingContract

_T = TypeVar("_T")
_MIB = 1 << 20
# Zero, one, around a block, around the buffers and parts of backends, and sizes that fill these only in part.
_SIZES = [0, 1, 4095, 4096, 4097, _MIB - 1, _MIB, _MIB + 1]
_SIZES += [4 * _MIB - 1, 4 * _MIB, 4 * _MIB + 1, 8 * _MIB, 12 * _MIB + 7, 17 * _MIB + 4099]


class StorageContract(ReadingContract):
    """Checks a storage; the base of a test class, see the module.

    Attributes:
        many_files: A number of files larger than the backend lists in one answer or deletes in one request.
    """

    def test_it_is_a_storage(self, storage: Storage) -> None:
        """The storage has the protocol's methods and a URL."""
        assert isinstance(storage, Storage)
        assert storage.url

    # write

    @pytest.mark.parametrize("size_bytes", _SIZES)
    def test_a_file_of_any_size_is_written_whole(self, storage: Storage, size_bytes: int) -> None:
        """A write makes missing folders and writes all bytes: none, about a block, and about a backend's buffers."""
        data = self.pattern(size_bytes)
        storage.write("a/b/c/1", io.BytesIO(data), size_bytes)
        assert self.raw_get(storage, "a/b/c/1") == data

    def test_files_written_one_after_another_do_not_mix(self, storage: Storage) -> None:
        """A file holds no bytes of an earlier file, shorter or longer, whose buffers the backend reuses."""
        files = {f"a/{number}": self.pattern(size, number) for number, size in enumerate(_SIZES + _SIZES[::-1])}
        for key, data in files.items():
            storage.write(key, io.BytesIO(data), len(data))
        assert all(self.raw_get(storage, key) == data for key, data in files.items())

    def test_the_stream_is_asked_from_the_calling_thread(self, storage: Storage) -> None:
        """A write reads each byte once, in the calling thread: the stream may read memory of this thread only."""
        stream = _Watched(self.pattern(17 * _MIB + 5))
        storage.write("a/1", stream, 17 * _MIB + 5)
        assert stream.threads == {threading.get_ident()}
        assert self.raw_get(storage, "a/1") == self.pattern(17 * _MIB + 5)

    def test_a_written_file_is_listed_and_read(self, storage: Storage) -> None:
        """A file is listed and readable as soon as it is written."""
        storage.write("a/1", io.BytesIO(b"12345"), 5)
        assert dict(storage.list("a").files) == {"1": 5}
        assert storage.read("a/1", 10) == b"12345"

    @pytest.mark.parametrize("size_bytes", [1, *_SIZES[1:]])
    def test_short_stream_is_storage_error(self, storage: Storage, size_bytes: int) -> None:
        """A stream that lacks one byte, or all bytes, is a StorageError."""
        for number, given in enumerate((size_bytes - 1, 0)):
            with pytest.raises(StorageError, match=f"{size_bytes} bytes announced"):
                storage.write(f"a/{number}", io.BytesIO(self.pattern(given)), size_bytes)

    @pytest.mark.parametrize("size_bytes", _SIZES)
    def test_overlong_stream_is_storage_error(self, storage: Storage, size_bytes: int) -> None:
        """A stream with one byte too many is a StorageError."""
        with pytest.raises(StorageError, match=f"{size_bytes} bytes announced"):
            storage.write("a/1", io.BytesIO(self.pattern(size_bytes + 1)), size_bytes)

    @pytest.mark.parametrize("size_bytes", [6, 6 * _MIB])
    def test_write_never_overwrites(self, storage: Storage, size_bytes: int) -> None:
        """A write to an existing key raises StorageError, and the existing file stays as it is."""
        self.raw_put(storage, "a/1", b"first")
        with pytest.raises(StorageError):
            storage.write("a/1", io.BytesIO(bytes(size_bytes)), size_bytes)
        assert self.raw_get(storage, "a/1") == b"first"

    @pytest.mark.parametrize("size_bytes", [1, 17 * _MIB])
    @pytest.mark.parametrize("error", [ValueError, OSError, FileNotFoundError, KeyboardInterrupt])
    def test_what_the_stream_raises_reaches_the_caller(
        self, storage: Storage, size_bytes: int, error: type[BaseException]
    ) -> None:
        """An exception of the stream reaches the caller unchanged, and the storage works as before afterwards."""
        raised = error("made by the source")
        stream = _Watched(self.pattern(size_bytes), raised, after_bytes=size_bytes // 2)
        with pytest.raises(error) as caught:
            storage.write("a/1", stream, size_bytes)
        assert caught.value is raised
        storage.write("a/2", io.BytesIO(self.pattern(size_bytes)), size_bytes)
        assert self.raw_get(storage, "a/2") == self.pattern(size_bytes)

    # create

    def test_create_publishes_the_bytes(self, storage: Storage) -> None:
        """A create makes missing folders and publishes the bytes; an empty file, too."""
        storage.create("a/b/c/1", b"abc")
        storage.create("a/empty", b"")
        assert self.raw_get(storage, "a/b/c/1") == b"abc"
        assert self.raw_get(storage, "a/empty") == b""

    @pytest.mark.parametrize("there", [b"", b"first", b"second"])
    def test_create_never_replaces(self, storage: Storage, there: bytes) -> None:
        """A create replaces no existing file, not even an empty or an equal one."""
        self.raw_put(storage, "a/1", there)
        with pytest.raises(FileExistsError) as raised:
            storage.create("a/1", b"second")
        assert not isinstance(raised.value, StorageError)
        assert self.raw_get(storage, "a/1") == there

    def test_a_file_that_was_written_cannot_be_created(self, storage: Storage) -> None:
        """A create and a write share one name space."""
        storage.write("a/1", io.BytesIO(b"first"), 5)
        with pytest.raises(FileExistsError):
            storage.create("a/1", b"second")
        assert self.raw_get(storage, "a/1") == b"first"

    def test_a_deleted_key_is_free_again(self, storage: Storage) -> None:
        """A create and a write succeed at a key that was deleted."""
        storage.create("a/1", b"first")
        storage.delete(["a/1"])
        storage.create("a/1", b"second")
        storage.delete(["a/1"])
        storage.write("a/1", io.BytesIO(b"third"), 5)
        assert self.raw_get(storage, "a/1") == b"third"

    def test_of_racing_creators_exactly_one_wins_each_key(self, storage: Storage) -> None:
        """Of eight threads that create fifteen keys, one wins each key, and the file holds the winner's bytes."""
        keys = [f"race/{number:02d}" for number in range(15)]
        barrier = threading.Barrier(8)

        def run(thread: int) -> list[str]:
            won = []
            for key in keys:
                barrier.wait(timeout=60)
                with suppress(FileExistsError):
                    storage.create(key, f"{thread}".encode() * 1000)
                    won.append(key)
            return won

        winners = _in_threads(8, run)
        assert sorted(key for won in winners for key in won) == keys
        for thread, won in enumerate(winners):
            for key in won:
                assert self.raw_get(storage, key) == f"{thread}".encode() * 1000

    def test_create_is_atomic_for_readers(self, storage: Storage) -> None:
        """A file that is being created is absent or whole for concurrent reads and listings."""
        data = self.pattern(64 * 1024)
        keys = [f"atomic/{number:02d}" for number in range(20)]
        done = threading.Event()

        def look(_: int) -> set[int]:
            sizes: set[int] = set()
            while not done.is_set():
                listed = storage.list("atomic").files
                sizes.update(size for name, size in listed.items() if f"atomic/{name}" in keys)
                for key in keys:
                    with suppress(FileNotFoundError):
                        sizes.add(len(storage.read(key, len(data))))
            return sizes

        with ThreadPoolExecutor(2) as pool:
            looking = [pool.submit(look, number) for number in range(2)]
            try:
                for key in keys:
                    storage.create(key, data)
            finally:
                done.set()
            seen = set().union(*(future.result(timeout=60) for future in looking))
        assert seen <= {len(data)}

    # delete

    def test_delete_removes_the_named_files_and_no_others(self, storage: Storage) -> None:
        """A delete removes only the named files, and none whose name only begins with a removed name."""
        for key in ("a/1", "a/2", "a/10", "b/1"):
            self.raw_put(storage, key, b"x")
        storage.delete(["a/1", "b/1"])
        assert [self.raw_get(storage, key) for key in ("a/1", "a/2", "a/10", "b/1")] == [None, b"x", b"x", None]

    @pytest.mark.parametrize("keys", [[], ["absent"], ["no/such/folder/1"], ["a/absent", "a/1"], ["a/1", "a/1"]])
    def test_deleting_what_is_absent_is_fine(self, storage: Storage, keys: list[str]) -> None:
        """A delete ignores absent and repeated keys, and removes the others."""
        self.raw_put(storage, "a/1", b"x")
        storage.delete(keys)
        assert (self.raw_get(storage, "a/1") is None) == ("a/1" in keys)

    def test_deleting_many_files_removes_all(self, storage: Storage) -> None:
        """A delete removes all files, even more than an object store takes in one request."""
        keys = [f"many/{number:04d}" for number in range(self.many_files)]
        for key in keys:
            self.raw_put(storage, key, b"")
        storage.delete(keys)
        assert not storage.list("many").files

    def test_delete_removes_emptied_folders_from_listing(self, storage: Storage) -> None:
        """A delete removes folders that become empty, also those that held only such folders; others stay."""
        for key in ("top/gone/rank/1", "top/gone/2", "top/stays/3", "top/stays/rank/4"):
            self.raw_put(storage, key, b"x")
        storage.delete(["top/gone/2", "top/gone/rank/1", "top/stays/rank/4"])
        assert storage.list("top").folders == {"stays"}
        assert storage.list("top/stays").folders == frozenset()
        assert self.raw_get(storage, "top/stays/3") == b"x"

    # the storage itself

    def test_probe_leaves_at_most_one_file(self, storage: Storage) -> None:
        """A probe leaves only the storage's own files, however often it is called."""
        storage.create("a/1", b"x")
        for _ in range(3):
            storage.probe()
        assert set(storage.walk("")) - {"probe", "lease.json"} == {"a/1"}
        assert storage.clear_unfinished("", lambda key: True) == 0

    def test_nothing_that_is_finished_is_cleared(self, storage: Storage) -> None:
        """A clear removes no finished file, even if its writer is dead."""
        storage.create("a/1", b"x")
        storage.write("b/2", io.BytesIO(self.pattern(17 * _MIB)), 17 * _MIB)
        assert storage.clear_unfinished("", lambda key: True) == 0
        assert set(storage.walk("")) - {"probe", "lease.json"} == {"a/1", "b/2"}

    # from several threads

    def test_many_threads_may_use_one_storage(self, storage: Storage) -> None:
        """Threads with separate files do not disturb each other while folders appear and disappear."""

        def run(thread: int) -> bool:
            same = True
            for number in range(10):
                key = f"top/t{thread}/{number}"
                data = f"{thread}-{number}".encode() * 100
                storage.write(key, io.BytesIO(data), len(data))
                buffer = bytearray(len(data))
                storage.read_into(key, [memoryview(buffer)])
                same = same and buffer == data and storage.read(key, len(data)) == data
                storage.delete([key])
            return same

        assert _in_threads(8, run) == [True] * 8
        assert storage.list("top").folders == frozenset()


def _in_threads(count: int, run: Callable[[int], _T]) -> list[_T]:
    with ThreadPoolExecutor(count) as pool:
        return [future.result(timeout=120) for future in [pool.submit(run, number) for number in range(count)]]


class _Watched:
    """Gives bytes, records the threads that ask, and may raise rather than give more than ``after_bytes``."""

    def __init__(self, data: bytes, error: BaseException | None = None, after_bytes: int = 0) -> None:
        self._data = io.BytesIO(data)
        self._error = error
        self._after_bytes = after_bytes
        self.threads: set[int] = set()

    def readinto(self, buffer: memoryview, /) -> int:
        self.threads.add(threading.get_ident())
        if self._error and self._data.tell() + len(buffer) > self._after_bytes:
            raise self._error
        return self._data.readinto(buffer)
