"""Makes every system call with which ckptkit changes a disk; tests replace it to record calls and inject faults.

`LocalStorage`, its direct writer and the files that commands write go through here and nowhere else
(``tests/unit/test_layering.py``). It makes no decisions. Any thread may call it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator

Place = str | os.PathLike[str]
_CALL = "failed_call"  # attribute of an OSError


def failed_call(error: OSError) -> str | None:
    """Return whether ``error`` comes from "fsync" or "link", after which a number means something else."""
    return vars(error).get(_CALL)


@contextlib.contextmanager
def _named(call: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        vars(error)[_CALL] = call
        raise


class SystemCalls:
    """Calls the operating system; every call may raise OSError, be interrupted, or be done only in part."""

    def open_new(self, path: Place) -> int:
        """Create the file ``path``, which must not exist, and open it for writing."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def set_direct(self, descriptor: int, direct: bool) -> None:
        """Set or clear O_DIRECT of an open file; Linux checks it as in open()."""
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT)

    def pwrite(self, descriptor: int, data: memoryview, offset_bytes: int) -> int:
        """Write the beginning of ``data``, at most all of it; returns the number of bytes written."""
        return os.pwrite(descriptor, data, offset_bytes)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        os.ftruncate(descriptor, size_bytes)

    def fsync(self, descriptor: int) -> None:
        with _named("fsync"):
            os.fsync(descriptor)

    def link(self, existing: Place, new: Place) -> None:
        with _named("link"):
            os.link(existing, new)  # fails if ``new`` exists

    def replace(self, old: Place, new: Place) -> None:
        os.replace(old, new)

    def unlink(self, path: Place) -> None:
        os.unlink(path)

    def mkdir(self, path: Place) -> None:
        os.mkdir(path)

    def rmdir(self, path: Place) -> None:
        os.rmdir(path)

    def fsync_folder(self, folder: Place) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.fsync(descriptor)
        finally:
            os.close(descriptor)

    def write_all(self, descriptor: int, data: memoryview, offset_bytes: int = 0) -> None:
        """Write all of ``data``, in as many calls as needed."""
        done = 0
        while done < len(data):
            count = self.pwrite(descriptor, data[done:], offset_bytes + done)
            if not count:
                raise OSError(errno.EIO, "the file system wrote nothing")
            done += count


SYSTEM = SystemCalls()


# A data worker, which is forked, lives as long as training does. A file that it holds open takes disk space long after
# retention has deleted it, and keeps a network file system from removing the folder.
_HIDDEN: set[int] = set()


def hide(descriptor: int) -> int:
    """Close ``descriptor`` in every process forked from now on, before it runs anything; returns ``descriptor``."""
    _HIDDEN.add(descriptor)
    return descriptor


def show(descriptor: int) -> None:
    """Undo `hide`. Call it before closing ``descriptor``: right afterwards another file may get its number."""
    _HIDDEN.discard(descriptor)


def _close_in_child() -> None:
    for descriptor in _HIDDEN:
        with contextlib.suppress(OSError):  # a network file system may fail here; the parent gets the same error
            os.close(descriptor)
    _HIDDEN.clear()


os.register_at_fork(after_in_child=_close_in_child)
