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
from ckptkit.storage import Listing, Storage

_T = TypeVar("_T")
_MIB = 1 << 20
# Zero, one, around a block, around the buffers and parts of backends, and sizes that fill these only in part.
_SIZES = [0, 1, 4095, 4096, 4097, _MIB - 1, _MIB, _MIB + 1]
_SIZES += [4 * _MIB - 1, 4 * _MIB, 4 * _MIB + 1, 8 * _MIB, 12 * _MIB + 7, 17 * _MIB + 4099]


class StorageContract:
    """Checks a storage; the base of a test class, see the module.

    Attributes:
        many_files: A number of files larger than the backend lists in one answer or deletes in one request.
    """

    many_files = 1100

    @staticmethod
    def pattern(size_bytes: int, first: int = 0) -> bytes:
        """Return bytes that differ wherever a part could be misplaced: 251 is prime to every buffer size."""
        return (bytes(range(251)) * (size_bytes // 251 + 2))[first : first + size_bytes]

    @pytest.fixture
    def storage(self) -> Storage:
        """Return an empty run root of the backend under test; the subclass defines it."""
        raise NotImplementedError

    def raw_get(self, storage: Storage, key: str) -> bytes | None:
        """Return the bytes at ``key``, or None, without using ``storage``'s methods; the subclass defines it."""
        raise NotImplementedError

    def raw_put(self, storage: Storage, key: str, data: bytes) -> None:
        """Put ``data`` at ``key`` without using ``storage``'s methods; the subclass defines it."""
        raise NotImplementedError

    def test_it_is_a_storage(self, storage: Storage) -> None:
        assert isinstance(storage, Storage)
        assert storage.url

    # list

    @pytest.mark.parametrize("folder", ["a", "a/b/c", "runs"])
    def test_a_missing_folder_lists_empty(self, storage: Storage, folder: str) -> None:
        self.raw_put(storage, "runs-2/file", b"1")  # whose name begins with that of a missing one
        assert _entries(storage.list(folder)) == (set(), {})

    def test_a_listing_holds_what_lies_directly_below(self, storage: Storage) -> None:
        for key, data in {"a/1": b"x", "a/2": b"", "a/b/3": b"xyz", "a/b/c/4": b"", "a2/5": b"", "6": b""}.items():
            self.raw_put(storage, key, data)
        assert _entries(storage.list("a")) == ({"b"}, {"1": 1, "2": 0})

    def test_nothing_is_cached(self, storage: Storage) -> None:
        for data in (b"x", b"new"):
            assert not storage.list("a").files
            with pytest.raises(FileNotFoundError):
                storage.read("a/1", 10)
            self.raw_put(storage, "a/1", data)
            assert dict(storage.list("a").files) == {"1": len(data)}
            assert storage.read("a/1", 10) == data
            storage.delete(["a/1"])

    def test_a_long_listing_or_walk_is_whole(self, storage: Storage) -> None:
        """Even with more entries than one page of an object store's answer holds; and a delete removes them all."""
        keys = {f"many/{number:04d}" for number in range(self.many_files)}
        for key in keys:
            self.raw_put(storage, key, b"")
        assert len(storage.list("many").files) == self.many_files
        assert storage.walk("many/").keys() == keys
        storage.delete([*keys])
        assert not storage.list("many").files

    def test_list_filters_names_by_prefix(self, storage: Storage) -> None:
        for key in ("a/x1", "a/x2/y", "a/y1", "a/y2/x", "ax/1", "x3"):
            self.raw_put(storage, key, b"1")
        assert _entries(storage.list("a", "x")) == ({"x2"}, {"x1": 1})
        assert _entries(storage.list("a", "z")) == (set(), {})

    # walk

    @pytest.mark.parametrize(
        ("prefix", "expected"),
        [
            ("", {"a/1", "a/b/2", "a/b/c/3", "ab/4", "5"}),
            ("a/", {"a/1", "a/b/2", "a/b/c/3"}),
            ("a/b", {"a/b/2", "a/b/c/3"}),
            ("a/b/c/", {"a/b/c/3"}),
            ("a", {"a/1", "a/b/2", "a/b/c/3", "ab/4"}),
            ("a/1", {"a/1"}),
            ("no/such", set()),
        ],
    )
    def test_a_walk_finds_every_key_that_begins_so(self, storage: Storage, prefix: str, expected: set[str]) -> None:
        for number, key in enumerate(("a/1", "a/b/2", "a/b/c/3", "ab/4", "5")):
            self.raw_put(storage, key, b"x" * number)
        sizes = dict(storage.walk(prefix))
        assert set(sizes) == expected
        assert all(size == len(self.raw_get(storage, key) or b"") for key, size in sizes.items())

    # read

    @pytest.mark.parametrize(
        ("max_bytes", "data", "expected"),
        [
            (10, b"12345", b"12345"),
            (5, b"12345", b"12345"),
            (4, b"12345", b"12345"),
            (2, b"12345", b"123"),
            (9, b"", b""),
        ],
    )
    def test_read_returns_at_most_one_extra_byte(
        self, storage: Storage, max_bytes: int, data: bytes, expected: bytes
    ) -> None:
        self.raw_put(storage, "a/1", data)
        assert storage.read("a/1", max_bytes) == expected

    @pytest.mark.parametrize("key", ["a/absent", "b/c/absent"])
    def test_reading_an_absent_file_is_file_not_found(self, storage: Storage, key: str) -> None:
        """And not StorageError, which says nothing about the file."""
        self.raw_put(storage, "a/1", b"")
        for read in (storage.read, lambda key, size: storage.read_into(key, [memoryview(bytearray(size))])):
            with pytest.raises(FileNotFoundError) as raised:
                read(key, 10)
            assert not isinstance(raised.value, StorageError)

    # read_into

    @pytest.mark.parametrize(
        ("offset_bytes", "size_bytes", "expected"),
        [(0, 10, b"0123456789"), (0, 3, b"012"), (4, 3, b"456"), (8, 2, b"89"), (8, 5, b"89"), (9, 1, b"9")],
    )
    def test_read_into_is_short_only_at_end(
        self, storage: Storage, offset_bytes: int, size_bytes: int, expected: bytes
    ) -> None:
        self.raw_put(storage, "a/1", b"0123456789")
        buffer = bytearray(b"." * size_bytes)
        assert storage.read_into("a/1", [memoryview(buffer)], offset_bytes) == len(expected)
        assert buffer == expected + b"." * (size_bytes - len(expected))

    @pytest.mark.parametrize(
        ("data", "size_bytes", "offset_bytes"),
        [(10, 3, 10), (10, 3, 11), (10, 3, 1000), (10, 0, 0), (0, 0, 0), (0, 3, 0)],
    )
    def test_read_beyond_the_end_or_of_nothing_reads_nothing(
        self, storage: Storage, data: int, size_bytes: int, offset_bytes: int
    ) -> None:
        """The caller compares sizes; and object stores have no empty ranges, so the backend must handle them."""
        self.raw_put(storage, "a/1", self.pattern(data))
        assert storage.read_into("a/1", [memoryview(bytearray(size_bytes))], offset_bytes) == 0

    def test_read_into_fills_a_large_buffer(self, storage: Storage) -> None:
        data = self.pattern(5 * _MIB + 11)
        self.raw_put(storage, "a/1", data)
        buffer = bytearray(3 * _MIB + 7)
        assert storage.read_into("a/1", [memoryview(buffer)], 1234) == len(buffer)
        assert buffer == data[1234 : 1234 + len(buffer)]

    @pytest.mark.parametrize(
        ("sizes", "size_bytes"),
        [([], 10), ([3, 4], 10), ([0, 3, 0, 7, 0], 10), ([6, 6, 6], 10), ([10, 5], 10), ([1] * 3000, 2990)],
        ids=["none", "part", "empty-ones", "ends-within-one", "ends-between-two", "more-than-one-call-takes"],
    )
    def test_read_into_fills_one_buffer_after_the_other(
        self, storage: Storage, sizes: list[int], size_bytes: int
    ) -> None:
        data = self.pattern(size_bytes)
        self.raw_put(storage, "a/1", data)
        buffers = [bytearray(b"." * size) for size in sizes]
        read = storage.read_into("a/1", [memoryview(buffer) for buffer in buffers], 2)
        room = sum(sizes)
        assert read == min(room, size_bytes - 2)
        assert b"".join(buffers) == data[2 : 2 + read] + b"." * (room - read)

    # write

    def test_files_of_any_size_are_written_whole_one_after_another(self, storage: Storage) -> None:
        files = {f"a/b/c/{number}": self.pattern(size, number) for number, size in enumerate(_SIZES + _SIZES[::-1])}
        for key, data in files.items():
            storage.write(key, io.BytesIO(data), len(data))
        assert all(self.raw_get(storage, key) == data for key, data in files.items())

    def test_the_stream_is_asked_from_the_calling_thread(self, storage: Storage) -> None:
        stream = _Watched(self.pattern(17 * _MIB + 5))
        storage.write("a/1", stream, 17 * _MIB + 5)
        assert stream.threads == {threading.get_ident()}
        assert self.raw_get(storage, "a/1") == self.pattern(17 * _MIB + 5)

    @pytest.mark.parametrize("size_bytes", _SIZES)
    def test_short_or_overlong_stream_is_storage_error(self, storage: Storage, size_bytes: int) -> None:
        for given in {size_bytes - 1, 0, size_bytes + 1} - {size_bytes, -1}:
            with pytest.raises(StorageError, match=f"{size_bytes} bytes announced"):
                storage.write(f"a/{given}", io.BytesIO(self.pattern(given)), size_bytes)

    @pytest.mark.parametrize("size_bytes", [6, 6 * _MIB])
    def test_write_never_overwrites(self, storage: Storage, size_bytes: int) -> None:
        self.raw_put(storage, "a/1", b"first")
        with pytest.raises(StorageError):
            storage.write("a/1", io.BytesIO(bytes(size_bytes)), size_bytes)
        assert self.raw_get(storage, "a/1") == b"first"

    @pytest.mark.parametrize("size_bytes", [1, 17 * _MIB])
    @pytest.mark.parametrize("error", [ValueError, OSError, FileNotFoundError, KeyboardInterrupt])
    def test_what_the_stream_raises_reaches_the_caller(
        self, storage: Storage, size_bytes: int, error: type[BaseException]
    ) -> None:
        raised = error("made by the source")
        stream = _Watched(self.pattern(size_bytes), raised, after_bytes=size_bytes // 2)
        with pytest.raises(error) as caught:
            storage.write("a/1", stream, size_bytes)
        assert caught.value is raised
        storage.write("a/2", io.BytesIO(self.pattern(size_bytes)), size_bytes)
        assert self.raw_get(storage, "a/2") == self.pattern(size_bytes)

    # create

    def test_create_publishes_the_bytes(self, storage: Storage) -> None:
        for key, data in {"a/b/c/1": b"abc", "a/empty": b""}.items():
            storage.create(key, data)
            assert self.raw_get(storage, key) == data

    @pytest.mark.parametrize("there", [b"", b"first", b"second"])
    def test_create_never_replaces(self, storage: Storage, there: bytes) -> None:
        self.raw_put(storage, "a/1", there)
        with pytest.raises(FileExistsError) as raised:
            storage.create("a/1", b"second")
        assert not isinstance(raised.value, StorageError)
        assert self.raw_get(storage, "a/1") == there

    def test_a_key_is_free_until_a_file_is_there_and_after_its_delete(self, storage: Storage) -> None:
        storage.write("a/1", io.BytesIO(b"first"), 5)
        with pytest.raises(FileExistsError):
            storage.create("a/1", b"second")
        assert self.raw_get(storage, "a/1") == b"first"
        assert dict(storage.list("a").files) == {"1": 5}
        storage.delete(["a/1"])
        storage.create("a/1", b"second")
        assert self.raw_get(storage, "a/1") == b"second"
        storage.delete(["a/1"])
        storage.write("a/1", io.BytesIO(b"third"), 5)
        assert self.raw_get(storage, "a/1") == b"third"

    def test_of_racing_creators_exactly_one_wins_each_key(self, storage: Storage) -> None:
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
        data = self.pattern(64 * 1024)
        keys = [f"atomic/{number:02d}" for number in range(20)]
        done = threading.Event()

        def watch(_: int) -> set[int]:
            sizes: set[int] = set()
            while not done.is_set():
                listed = storage.list("atomic").files
                sizes.update(size for name, size in listed.items() if f"atomic/{name}" in keys)
                for key in keys:
                    with suppress(FileNotFoundError):
                        sizes.add(len(storage.read(key, len(data))))
            return sizes

        with ThreadPoolExecutor(2) as pool:
            watching = [pool.submit(watch, number) for number in range(2)]
            try:
                for key in keys:
                    storage.create(key, data)
            finally:
                done.set()
            seen = set().union(*(future.result(timeout=60) for future in watching))
        assert seen <= {len(data)}

    # delete

    def test_delete_removes_the_named_files_and_no_others(self, storage: Storage) -> None:
        for key in ("a/1", "a/2", "a/10", "b/1"):
            self.raw_put(storage, key, b"x")
        storage.delete(["a/1", "b/1"])
        assert [self.raw_get(storage, key) for key in ("a/1", "a/2", "a/10", "b/1")] == [None, b"x", b"x", None]

    @pytest.mark.parametrize("keys", [[], ["absent"], ["no/such/folder/1"], ["a/absent", "a/1"], ["a/1", "a/1"]])
    def test_deleting_what_is_absent_is_fine(self, storage: Storage, keys: list[str]) -> None:
        self.raw_put(storage, "a/1", b"x")
        storage.delete(keys)
        assert (self.raw_get(storage, "a/1") is None) == ("a/1" in keys)

    def test_delete_removes_emptied_folders_from_listing(self, storage: Storage) -> None:
        for key in ("top/gone/rank/1", "top/gone/2", "top/stays/3", "top/stays/rank/4"):
            self.raw_put(storage, key, b"x")
        storage.delete(["top/gone/2", "top/gone/rank/1", "top/stays/rank/4"])
        assert storage.list("top").folders == {"stays"}
        assert storage.list("top/stays").folders == frozenset()
        assert self.raw_get(storage, "top/stays/3") == b"x"

    # the storage itself

    def test_probing_and_clearing_leave_what_is_finished(self, storage: Storage) -> None:
        storage.create("a/1", b"x")
        storage.write("b/2", io.BytesIO(self.pattern(17 * _MIB)), 17 * _MIB)
        for _ in range(3):
            storage.probe()
        assert storage.clear_unfinished("", lambda key: True) == 0
        assert set(storage.walk("")) - {"probe", "lease.json"} == {"a/1", "b/2"}

    # from several threads

    def test_many_threads_may_use_one_storage(self, storage: Storage) -> None:

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


def _entries(listing: Listing) -> tuple[set[str], dict[str, int]]:
    return {*listing.folders}, {**listing.files}


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
