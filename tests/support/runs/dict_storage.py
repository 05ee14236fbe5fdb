"""A storage in memory, flat as an object store is: large synthetic runs are made and copied in no time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence

from ckptkit.errors import StorageError
from ckptkit.storage import ByteStream, Listing
from ckptkit.storage.written_stream import SizedStream
from ckptkit.testing.faults import FaultyStorage

PAGE = 1000  # entries of one list request of an object store


class DictStorage:
    url = "dict://run"
    is_remote = True
    window_bytes = 1 << 20

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        self.files = dict(files or {})
        self.unfinished: list[str] = []
        self._lock = threading.Lock()

    def copy(self) -> DictStorage:
        return DictStorage(self.files)

    def probe(self) -> None:
        pass

    def list(self, folder: str, prefix: str = "") -> Listing:
        start = f"{folder}/"
        folders, files = set(), {}
        for key, size_bytes in self.walk(start + prefix).items():
            name, below, _ = key[len(start) :].partition("/")
            if below:
                folders.add(name)
            else:
                files[name] = size_bytes
        return Listing(frozenset(folders), files)

    def walk(self, prefix: str) -> Mapping[str, int]:
        with self._lock:
            return {key: len(data) for key, data in self.files.items() if key.startswith(prefix)}

    def read(self, key: str, max_bytes: int) -> bytes:
        if key not in self.files:
            raise FileNotFoundError(key)
        return self.files[key][: max_bytes + 1]

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        rest = self.read(key, 1 << 60)[offset_bytes:]
        done = 0
        for buffer in buffers:
            part = rest[done : done + len(buffer)]
            buffer[: len(part)] = part
            done += len(part)
        return done

    def write(self, key: str, stream: ByteStream, size_bytes: int) -> None:
        source = SizedStream(stream, size_bytes, key)
        data = bytearray(size_bytes)
        source.fill(memoryview(data))
        source.expect_end()
        with self._lock:
            if key in self.files:
                raise StorageError(f"{key} exists")
            self.files[key] = bytes(data)

    def create(self, key: str, data: bytes) -> None:
        with self._lock:
            if key in self.files:
                raise FileExistsError(key)
            self.files[key] = bytes(data)

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self.files.pop(key, None)

    def clear_unfinished(self, prefix: str, is_dead: Callable[[str], bool]) -> int:
        dead = [key for key in self.unfinished if key.startswith(prefix) and is_dead(key)]
        self.unfinished = [key for key in self.unfinished if key not in dead]
        return len(dead)


class Counted(FaultyStorage):
    """Counts what an object store would be asked: a request per call, and per page of a listing."""

    def __init__(self, inner, faults=()) -> None:
        super().__init__(inner, faults)
        self.pages = 0

    def list(self, folder: str, prefix: str = "") -> Listing:
        listing = super().list(folder, prefix)
        self.pages += pages_of(len(listing.folders) + len(listing.files))
        return listing

    def walk(self, prefix: str) -> Mapping[str, int]:
        found = super().walk(prefix)
        self.pages += pages_of(len(found))
        return found

    def reset(self) -> None:
        self.calls.clear()
        self.pages = 0

    def keys(self, *operations: str) -> list[str]:
        """The keys that calls of the given operations named, in order."""
        return [key for call in self.calls if call.operation in operations for key in call.keys]


def pages_of(entries: int) -> int:
    return max(1, math.ceil(entries / PAGE))
