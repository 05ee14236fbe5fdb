"""Writes a local file that appears whole and durable, and only if its writer ends without an error.

Before that, an existing file stays. A file that does not appear leaves nothing behind, unless the process dies.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from ckptkit.errors import StorageError
from ckptkit.storage.system_calls import SYSTEM


class NewFile:
    """Takes the bytes of a file that `new_file` has begun."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self.size_bytes = 0

    def put(self, data: bytes | memoryview, offset_bytes: int | None = None) -> None:
        """Write ``data`` at ``offset_bytes``, or at the end."""
        at = self.size_bytes if offset_bytes is None else offset_bytes
        with _storage_errors(self._path):
            SYSTEM.write_all(self._descriptor, memoryview(data), at)
        self.size_bytes = max(self.size_bytes, at + len(data))


@contextlib.contextmanager
def new_file(path: Path, *, overwrite: bool) -> Iterator[NewFile]:
    """Begin ``path``; at the end make it durable and give it its name.

    Raises ValueError if a file exists, or has appeared meanwhile, and may not be replaced, ``path`` is not a regular
    file, or its folder is missing, and StorageError if it cannot be written, for example for lack of space.
    """
    if not overwrite:
        _refuse_existing(path)
    elif path.exists() and not path.is_file():
        raise ValueError(f"cannot overwrite {path}: it is a folder or a device; choose another path")
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} for {path.name} does not exist; create it first")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    with _storage_errors(path):
        descriptor = SYSTEM.open_new(temporary)
    try:
        try:
            yield NewFile(path, descriptor)
            with _storage_errors(path):
                SYSTEM.fsync(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):  # a network file system fails again here; the first error says more
                os.close(descriptor)
            raise
        with _storage_errors(path):
            os.close(descriptor)
            if overwrite:
                SYSTEM.replace(temporary, path)
            else:
                _link(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            SYSTEM.unlink(temporary)
    try:
        SYSTEM.fsync_folder(path.parent)
    except OSError as error:
        raise StorageError(
            f"{path} is written completely, but a power loss may undo that: {path.parent} could not be fsynced: "
            f"{error.strerror or error}. Write it again{'' if overwrite else ', with overwrite=True'}"
        ) from error


def _link(temporary: Path, path: Path) -> None:
    try:
        SYSTEM.link(temporary, path)
    except OSError as error:  # a file system without hard links; some of them say EIO or EXDEV
        _refuse_existing(path)
        if isinstance(error, FileExistsError):
            raise
        SYSTEM.replace(temporary, path)


def _refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise ValueError(f"{path} exists; name another file, or replace it with overwrite=True")


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"could not write {path}: {error.strerror or error}. No part of it was left there"
        ) from error
