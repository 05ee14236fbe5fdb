"""Writes a local file that appears whole or not at all.

Guarantees: before `NewFile.publish`, nothing new is under the file's name and an existing file stays; afterwards, all
of the new file is there, durably. A file that is not published leaves nothing behind, unless the process dies. One
thread.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from ckptkit.errors import StorageError
from ckptkit.storage.system_calls import SYSTEM

_OVER_IT = ", with --force (overwrite=True)"


class NewFile:
    """Manages the writing of ``path``, as a context manager.

    Args:
        path: Path of the file.
        size_bytes: Size of the whole file.
        overwrite: Whether it may replace a file.

    Raises:
        ValueError: If a file exists and may not be replaced, ``path`` is not a regular file, or its folder is missing.
        StorageError: If it cannot be created, for example for lack of space.
    """

    def __init__(self, path: Path, size_bytes: int, *, overwrite: bool) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._overwrite = overwrite
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        self._descriptor = -1

    def __enter__(self) -> Self:
        if not self._overwrite:
            self._refuse_existing()
        elif self._path.exists() and not self._path.is_file():
            raise ValueError(f"cannot overwrite {self._path}: it is a folder or a device; choose another path")
        if not self._path.parent.is_dir():
            raise ValueError(f"the folder {self._path.parent} for {self._path.name} does not exist; create it first")
        with self._as_ours():
            self._descriptor = SYSTEM.open_new(self._temporary)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        with contextlib.suppress(FileNotFoundError):
            SYSTEM.unlink(self._temporary)

    def put(self, data: memoryview, offset_bytes: int) -> None:
        """Write ``data`` at ``offset_bytes``.

        Raises:
            StorageError: If there is no space, or the disk fails.
        """
        with self._as_ours():
            SYSTEM.write_all(self._descriptor, data, offset_bytes)

    def publish(self) -> None:
        """Make the file durable and give it its name.

        Raises:
            ValueError: If a file of that name has appeared meanwhile.
            StorageError: If it is not durable.
        """
        self._name()
        try:
            SYSTEM.fsync_folder(self._path.parent)
        except OSError as error:
            raise StorageError(
                f"{self._path} is written completely, but a power loss may undo that: {self._path.parent} could not "
                f"be fsynced: {error.strerror or error}. Write it again{'' if self._overwrite else _OVER_IT}"
            ) from error

    def _name(self) -> None:
        with self._as_ours():
            found = os.fstat(self._descriptor).st_size
            if found != self._size_bytes:
                raise StorageError(
                    f"{self._temporary} has {found} bytes, expected {self._size_bytes}: another process wrote to it"
                )
            SYSTEM.fsync(self._descriptor)
            if self._overwrite:
                SYSTEM.replace(self._temporary, self._path)
            else:
                self._link()

    def _link(self) -> None:
        try:
            SYSTEM.link(self._temporary, self._path)
        except FileExistsError:
            self._refuse_existing()
            raise
        except OSError:  # a file system without hard links; some of them say EIO or EXDEV
            self._refuse_existing()
            SYSTEM.replace(self._temporary, self._path)

    def _refuse_existing(self) -> None:
        if os.path.lexists(self._path):
            raise ValueError(f"{self._path} exists; name another file, or replace it with --force (overwrite=True)")

    @contextlib.contextmanager
    def _as_ours(self) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(
                f"could not write {self._path}: {error.strerror or error}. No part of it was left there"
            ) from error
