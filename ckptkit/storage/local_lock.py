"""Keeps two programs of one machine from uploading from the same local root at once.

A training holds the root's lock together with other trainings, which fence each other (`ckptkit.run.fence`); a program
that uploads in its place holds it alone. The kernel releases the lock with the last process that has it, also after
SIGKILL (flock(2)). It keeps no other machine away. Any thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os

from ckptkit.errors import StorageError
from ckptkit.storage.protocol import Storage

_log = logging.getLogger("ckptkit")


class RootLock:
    """Locks the folder of a local root; other roots have no lock, and nothing happens."""

    def __init__(self, storage: Storage) -> None:
        self._path = None if storage.is_remote or not os.path.isabs(storage.url) else storage.url
        self._descriptor: int | None = None

    def share(self) -> None:
        """Hold the lock together with other trainings; waits for a program that holds it alone, until it has ended."""
        descriptor = self._open()
        if descriptor is None:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError as error:  # a file system without locks: nobody can hold it alone there
            _log.info("the folder %s cannot be locked: %s", self._path, error)

    def take_alone(self) -> bool:
        """Hold the lock alone, if nobody else holds it; returns whether it is held now."""
        descriptor = self._open()
        if descriptor is None:
            raise StorageError("only a local folder can be locked")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise StorageError(f"could not lock the folder {self._path}: {error}") from error
        return True

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process has the same descriptor, and keeps it open
            os.close(descriptor)

    def __del__(self) -> None:
        self.release()

    def _open(self) -> int | None:
        if self._descriptor is None and self._path is not None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise StorageError(f"could not open the folder {self._path}: {error}") from error
        return self._descriptor
