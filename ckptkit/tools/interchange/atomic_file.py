"""Writes a local file that appears whole, durable and only when `NewFile.publish` is called.

Before that, an existing file stays. A file that is not published leaves nothing behind, unless the process dies.
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

_OVER_IT = ", with overwrite=True"


class NewFile:
    """Manages the writing of ``path``, as a context manager.

    Raises ValueError if a file exists and may not be replaced, ``path`` is not a regular file, or its folder is
    missing, and StorageError if it cannot be created or written, for example for lack of space.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._path = path
        self._overwrite = overwrite
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        self._descriptor = -1
        self.size_bytes = 0

    def __enter__(self) -> Self:
        if not self._overwrite:
            self._refuse_existing()
        elif self._path.exists() and not self._path.is_file():
            raise ValueError(f"cannot overwrite {self._path}: it is a folder or a device; choose another path")
        if not self._path.parent.is_dir():
            raise ValueError(f"the folder {self._path.parent} for {self._path.name} does not exist; create it first")
        with self._storage_errors():
            self._descriptor = SYSTEM.open_new(self._temporary)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        with contextlib.suppress(FileNotFoundError):
            SYSTEM.unlink(self._temporary)

    def put(self, data: bytes | memoryview, offset_bytes: int | None = None) -> None:
        """Write ``data`` at ``offset_bytes``, or at the end."""
        at = self.size_bytes if offset_bytes is None else offset_bytes
        with self._storage_errors():
            SYSTEM.write_all(self._descriptor, memoryview(data), at)
        self.size_bytes = max(self.size_bytes, at + len(data))

    def publish(self) -> None:
        """Make the file durable and give it its name; raises ValueError if a file has that name meanwhile."""
        with self._storage_errors():
            SYSTEM.fsync(self._descriptor)
            if self._overwrite:
                SYSTEM.replace(self._temporary, self._path)
            else:
                self._link()
        try:
            SYSTEM.fsync_folder(self._path.parent)
        except OSError as error:
            raise StorageError(
                f"{self._path} is written completely, but a power loss may undo that: {self._path.parent} could not "
                f"be fsynced: {error.strerror or error}. Write it again{'' if self._overwrite else _OVER_IT}"
            ) from error

    def _link(self) -> None:
        try:
            SYSTEM.link(self._temporary, self._path)
        except OSError as error:  # a file system without hard links; some of them say EIO or EXDEV
            self._refuse_existing()
            if isinstance(error, FileExistsError):
                raise
            SYSTEM.replace(self._temporary, self._path)

    def _refuse_existing(self) -> None:
        if os.path.lexists(self._path):
            raise ValueError(f"{self._path} exists; name another file, or replace it with overwrite=True")

    @contextlib.contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"could not write {self._path}: {error.strerror or error}. No part of it was left there"
            ) from error
