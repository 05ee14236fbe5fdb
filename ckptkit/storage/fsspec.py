"""Stores a run root through fsspec: the backend for every URL that has no backend of its own.

It keeps the promises of the `Storage` protocol as far as the file system keeps those of fsspec, takes nothing from a
listing cache, and treats no failure as an answer. Create-only files take a lease, since few fsspec file systems honour
``mode="create"``. Deadlines and retries are the file system's, durability ends with its ``close``. Any thread may call
it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import fsspec

from ckptkit.errors import StorageError
from ckptkit.scrubber import clean_url, scrubbed
from ckptkit.storage.lease import PROBE, SETTLE, Lease
from ckptkit.storage.protocol import Listing, walk_folders
from ckptkit.storage.written_stream import ByteStream, SizedStream

_log = logging.getLogger("ckptkit")
_PIECE_BYTES = 8 << 20


def open_generic(url: str, storage_options: Mapping[str, Any]) -> FsspecStorage:
    """Open a run root with fsspec; ``settle`` in ``storage_options`` goes to the lease, the rest to the file system."""
    options = dict(storage_options)
    settle = options.pop("settle", SETTLE)
    if not isinstance(settle, timedelta):
        raise StorageError(f"settle must be a timedelta, got {settle!r}")
    try:
        system, path = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
    except Exception as error:  # some connect at once, and every fsspec file system has its own errors
        is_unknown = "Protocol not known" in str(error)
        hint = ". Write a path, s3://bucket/folder, obs://bucket/folder, or a URL that fsspec knows" * is_unknown
        raise StorageError(f"could not open {clean_url(url)}: {error}{hint}") from error
    return FsspecStorage(clean_url(url), system, path, settle=settle)


class FsspecStorage:
    """Stores files below ``path`` of ``system``, an `fsspec.AbstractFileSystem`."""

    is_remote = True  # ckptkit cannot tell, so it assumes a network
    window_bytes = 32 << 20

    def __init__(self, url: str, system: Any, path: str, *, settle: timedelta = SETTLE) -> None:
        self.url = url
        self._system = system
        self._path = path.rstrip("/")
        self._settle = settle
        self._lease = Lease(self, settle=settle)
        self._warned = False

    def probe(self) -> None:
        """Check that files can be written here; leaves an empty file."""
        self.put(PROBE, b"")
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s has no create-only files known to ckptkit. A lease replaces them, and each save waits for it. If a "
                "request takes longer than %s, two jobs may both continue: run only one job on this root",
                self.url,
                self._settle,
            )

    def list(self, folder: str, prefix: str = "") -> Listing:
        entries = {name: size for name, size in self._entries(folder) if name.startswith(prefix)}
        files = {name: size for name, size in entries.items() if size is not None}
        return Listing(frozenset(entries.keys() - files.keys()), files)

    def walk(self, prefix: str) -> Mapping[str, int]:
        return walk_folders(self.list, prefix)

    def exists(self, key: str) -> bool:
        try:
            self._size_bytes(key)  # not isfile(), which treats any error as absence
        except FileNotFoundError:
            return False
        return True

    def read(self, key: str, max_bytes: int) -> bytes:
        return self._range(key, 0, min(self._size_bytes(key), max_bytes + 1))

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        size_bytes = self._size_bytes(key)
        begin = offset_bytes
        for buffer in buffers:
            at = 0
            while at < len(buffer) and offset_bytes < size_bytes:
                stop = min(offset_bytes + min(_PIECE_BYTES, len(buffer) - at), size_bytes)
                data = self._range(key, offset_bytes, stop)
                buffer[at : at + len(data)] = data
                at += len(data)
                offset_bytes += len(data)
        return max(0, offset_bytes - begin)

    def write(self, key: str, stream: ByteStream, size_bytes: int) -> None:
        """Write a new file; a failure may leave a part of it, which is not taken for the whole file."""
        source = SizedStream(stream, size_bytes, f"{self.url}/{key}")
        if self.exists(key):
            raise StorageError(f"could not write {self.url}/{key}: it exists, and nothing is ever overwritten")
        memory = memoryview(bytearray(min(_PIECE_BYTES, size_bytes)))
        with self._errors("write", key):
            self._make_folder(key)
            file = self._system.open(self._at(key), "wb")
        try:
            while source.left_bytes:
                piece = memory[: source.fill(memory)]
                with self._errors("write", key):
                    file.write(bytes(piece))  # not every file system accepts a view, or releases it
            source.expect_end()
            with self._errors("write", key):
                file.close()
        except BaseException:
            # Remove what closing a failed write may publish; the error on its way says what is wrong.
            for act in (file.close, partial(self._system.rm_file, self._at(key))):
                with contextlib.suppress(Exception):
                    act()
            raise
        self._forget()

    def put(self, key: str, data: bytes) -> None:
        """Write a file, replacing an existing one; for the lease."""
        with self._errors("write", key):
            self._make_folder(key)
            self._system.pipe_file(self._at(key), data)
            self._forget()

    def create(self, key: str, data: bytes) -> None:
        self._lease.create(key, data)

    def delete(self, keys: Sequence[str]) -> None:
        for key in dict.fromkeys(keys):
            with contextlib.suppress(FileNotFoundError), self._errors("delete", key):
                self._system.rm_file(self._at(key))
        self._forget()
        for folder in sorted({key.rpartition("/")[0] for key in keys}, key=len, reverse=True):
            self._remove_if_empty(folder)

    def clear_unfinished(self, prefix: str, is_dead: Callable[[str], bool]) -> int:
        """Return 0: fsspec cannot find what its file systems leave behind."""
        return 0

    def _at(self, key: str) -> str:
        return f"{self._path}/{key}" if key else self._path

    def _size_bytes(self, key: str) -> int:
        with self._errors("read", key):
            self._forget()
            entry = self._system.info(self._at(key))
            if entry["type"] == "directory":
                raise FileNotFoundError(f"{self.url}/{key} is a folder")
            return int(entry["size"])

    def _range(self, key: str, start: int, stop: int) -> bytes:
        # Not through an open file: some file systems share its position between threads.
        if start >= stop:
            return b""
        with self._errors("read", key):
            data = bytes(self._system.cat_file(self._at(key), start=start, end=stop))
        if len(data) != stop - start:
            raise StorageError(f"could not read {self.url}/{key}: {len(data)} bytes arrived, expected {stop - start}")
        return data

    def _forget(self) -> None:
        self._system.invalidate_cache()

    def _make_folder(self, key: str) -> None:
        self._system.makedirs(self._at(key.rpartition("/")[0]), exist_ok=True)

    def _entries(self, folder: str) -> Iterator[tuple[str, int | None]]:
        """Yield name and size of the entries of ``folder``; the size of a folder is None."""
        where = self._at(folder)
        try:
            with self._errors("list", folder):
                self._forget()
                entries = self._system.ls(where, detail=True)
        except FileNotFoundError:
            return
        for entry in entries:
            path = str(entry["name"]).rstrip("/")
            if path.lstrip("/") == where.lstrip("/"):
                continue  # some file systems list the folder itself, or a file of that name
            if path.rpartition("/")[0].lstrip("/") != where.lstrip("/"):
                raise StorageError(f"could not list {self.url}/{folder}: the file system lists {path!r} in it")
            name = path.rpartition("/")[2]
            yield name, None if entry["type"] == "directory" else int(entry["size"])

    def _remove_if_empty(self, folder: str) -> None:
        while folder.count("/") >= 1 and not any(self._entries(folder)):
            with self._errors("delete", folder):
                try:
                    self._system.rmdir(self._at(folder))
                except FileNotFoundError:
                    return  # this file system has no folders, only keys with slashes
            folder = folder.rpartition("/")[0]

    @contextmanager
    def _errors(self, verb: str, key: str) -> Iterator[None]:
        with scrubbed():
            try:
                yield
            except StorageError:
                raise
            except Exception as error:  # every fsspec file system has its own errors
                if isinstance(error, FileNotFoundError) and verb in ("read", "list", "delete"):
                    raise
                raise StorageError(f"could not {verb} {self.url}/{key}: {error}") from error
