"""Provides `ReadingContract`: what `StorageContract` tests about listing and reading. Needs pytest."""

# ruff: noqa: S101
# A contract consists of assertions.

from __future__ import annotations

import pytest

from ckptkit.errors import StorageError
from ckptkit.storage import Storage

_MIB = 1 << 20


class ReadingContract:
    """Checks how a storage lists and reads.

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

    # list

    @pytest.mark.parametrize("folder", ["a", "a/b", "a/b/c"])
    def test_a_missing_folder_lists_empty(self, storage: Storage, folder: str) -> None:
        """A missing folder is listed as empty, also if its parents are missing."""
        listing = storage.list(folder)
        assert (listing.folders, dict(listing.files)) == (frozenset(), {})

    def test_a_missing_folder_beside_others_lists_empty(self, storage: Storage) -> None:
        """A missing folder is listed as empty, even if another folder's name begins with its name."""
        self.raw_put(storage, "runs-2/file", b"1")
        listing = storage.list("runs")
        assert (listing.folders, dict(listing.files)) == (frozenset(), {})

    def test_a_listing_holds_what_lies_directly_below(self, storage: Storage) -> None:
        """A listing holds the folder's own files with their sizes and its own folders, and nothing else."""
        for key, data in {"a/1": b"x", "a/2": b"", "a/b/3": b"xyz", "a/b/c/4": b"", "a2/5": b"", "6": b""}.items():
            self.raw_put(storage, key, data)
        listing = storage.list("a")
        assert listing.folders == {"b"}
        assert dict(listing.files) == {"1": 1, "2": 0}

    def test_a_listing_is_not_cached(self, storage: Storage) -> None:
        """A listing shows what was put or removed after the previous listing."""
        assert not storage.list("a").files
        self.raw_put(storage, "a/1", b"x")
        assert dict(storage.list("a").files) == {"1": 1}
        storage.delete(["a/1"])
        assert not storage.list("a").files

    def test_a_long_listing_is_whole(self, storage: Storage) -> None:
        """A listing is complete, even with more entries than one page of an object store's answer holds."""
        for number in range(self.many_files):
            self.raw_put(storage, f"many/{number:04d}", b"")
        assert len(storage.list("many").files) == self.many_files

    def test_list_filters_names_by_prefix(self, storage: Storage) -> None:
        """The prefix selects folders and files, and only those directly below the folder."""
        for key in ("a/x1", "a/x2/y", "a/y1", "a/y2/x", "ax/1", "x3"):
            self.raw_put(storage, key, b"1")
        listing = storage.list("a", "x")
        assert (listing.folders, dict(listing.files)) == (frozenset({"x2"}), {"x1": 1})
        listing = storage.list("a", "z")
        assert (listing.folders, dict(listing.files)) == (frozenset(), {})

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
        """A walk finds every file whose key begins with the prefix, at any depth, with its size."""
        for number, key in enumerate(("a/1", "a/b/2", "a/b/c/3", "ab/4", "5")):
            self.raw_put(storage, key, b"x" * number)
        sizes = dict(storage.walk(prefix))
        assert set(sizes) == expected
        assert all(size == len(self.raw_get(storage, key) or b"") for key, size in sizes.items())

    def test_a_long_walk_is_whole(self, storage: Storage) -> None:
        """A walk is complete, even with more files than one page of an object store's answer holds."""
        for number in range(self.many_files):
            self.raw_put(storage, f"many/{number % 7}/{number:04d}", b"")
        assert len(storage.walk("many/")) == self.many_files

    # read

    @pytest.mark.parametrize(("max_bytes", "expected"), [(10, b"12345"), (5, b"12345"), (4, b"12345"), (2, b"123")])
    def test_read_returns_at_most_one_extra_byte(self, storage: Storage, max_bytes: int, expected: bytes) -> None:
        """A read returns at most one byte more than asked for, which shows that the file is longer."""
        self.raw_put(storage, "a/1", b"12345")
        assert storage.read("a/1", max_bytes) == expected

    def test_read_gives_an_empty_file(self, storage: Storage) -> None:
        """A read of an empty file returns no bytes and is not an error."""
        self.raw_put(storage, "a/1", b"")
        assert storage.read("a/1", 10) == b""

    @pytest.mark.parametrize("key", ["a/absent", "b/c/absent"])
    def test_reading_an_absent_file_is_file_not_found(self, storage: Storage, key: str) -> None:
        """An absent file is FileNotFoundError and not StorageError, which says nothing about the file."""
        self.raw_put(storage, "a/1", b"")
        with pytest.raises(FileNotFoundError) as raised:
            storage.read(key, 10)
        assert not isinstance(raised.value, StorageError)
        with pytest.raises(FileNotFoundError) as raised:
            storage.read_into(key, [memoryview(bytearray(3))])
        assert not isinstance(raised.value, StorageError)

    def test_a_read_is_not_cached(self, storage: Storage) -> None:
        """A read finds a file that was created after a failed read."""
        with pytest.raises(FileNotFoundError):
            storage.read("a/1", 10)
        self.raw_put(storage, "a/1", b"new")
        assert storage.read("a/1", 10) == b"new"

    # read_into

    @pytest.mark.parametrize(
        ("offset_bytes", "size_bytes", "expected"),
        [(0, 10, b"0123456789"), (0, 3, b"012"), (4, 3, b"456"), (8, 2, b"89"), (8, 5, b"89"), (9, 1, b"9")],
    )
    def test_read_into_is_short_only_at_end(
        self, storage: Storage, offset_bytes: int, size_bytes: int, expected: bytes
    ) -> None:
        """A read is short only at the end of the file, and leaves the rest of the buffer unchanged."""
        self.raw_put(storage, "a/1", b"0123456789")
        buffer = bytearray(b"." * size_bytes)
        assert storage.read_into("a/1", [memoryview(buffer)], offset_bytes) == len(expected)
        assert buffer == expected + b"." * (size_bytes - len(expected))

    @pytest.mark.parametrize("offset_bytes", [10, 11, 1000])
    def test_read_into_beyond_the_end_reads_nothing(self, storage: Storage, offset_bytes: int) -> None:
        """A read beyond the end returns zero and is not an error: the caller compares sizes."""
        self.raw_put(storage, "a/1", b"0123456789")
        assert storage.read_into("a/1", [memoryview(bytearray(3))], offset_bytes) == 0

    @pytest.mark.parametrize("data", [b"", b"0123456789"])
    def test_a_read_of_zero_bytes_reads_nothing(self, storage: Storage, data: bytes) -> None:
        """A read into no memory returns zero; object stores have no empty ranges, so the backend must handle it."""
        self.raw_put(storage, "a/1", data)
        assert storage.read_into("a/1", [memoryview(bytearray())], 0) == 0

    def test_read_into_of_an_empty_file_reads_nothing(self, storage: Storage) -> None:
        """A read of an empty file returns zero and is not an error."""
        self.raw_put(storage, "a/1", b"")
        assert storage.read_into("a/1", [memoryview(bytearray(3))]) == 0

    def test_read_into_fills_a_large_buffer(self, storage: Storage) -> None:
        """A read fills a buffer of any size, however much the backend reads at a time."""
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
        """A read fills the buffers without a gap, and leaves memory beyond the end of the file unchanged."""
        data = self.pattern(size_bytes)
        self.raw_put(storage, "a/1", data)
        buffers = [bytearray(b"." * size) for size in sizes]
        read = storage.read_into("a/1", [memoryview(buffer) for buffer in buffers], 2)
        room = sum(sizes)
        assert read == min(room, size_bytes - 2)
        assert b"".join(buffers) == data[2 : 2 + read] + b"." * (room - read)
