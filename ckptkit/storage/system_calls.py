"""Every call with which ckptkit changes a disk: the seam at which tests write down, and inject, what disks do.

`LocalStorage`, the direct writer under it and the files that commands write go through here, and through nothing else
(``tests/test_layering.py``); nothing is decided here. Any thread.
"""

from __future__ import annotations

import errno
import fcntl
import os

Place = str | os.PathLike[str]


class SystemCalls:
    """The operating system's own; all raise OSError, and any of them may be refused, broken off or done in part."""

    def open_new(self, path: Place) -> int:
        """Make the file ``path``, which must not exist, and open it for writing."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def set_direct(self, descriptor: int, direct: bool) -> None:
        """Change O_DIRECT of an open file, which Linux checks as it does at the open."""
        flag = getattr(os, "O_DIRECT", 0)
        if not flag:
            raise OSError(errno.EOPNOTSUPP, "this operating system has no O_DIRECT")
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag if direct else flags & ~flag)

    def pwrite(self, descriptor: int, data: memoryview, offset_bytes: int) -> int:
        """Write a first part of ``data`` and return its length."""
        return os.pwrite(descriptor, data, offset_bytes)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Cut an open file after ``size_bytes``."""
        os.ftruncate(descriptor, size_bytes)

    def fsync(self, descriptor: int) -> None:
        """Wait until the bytes of an open file, or the names in an open folder, are on the disk."""
        os.fsync(descriptor)

    def link(self, existing: Place, new: Place) -> None:
        """Give a file a second name, which must be free."""
        os.link(existing, new)

    def replace(self, old: Place, new: Place) -> None:
        """Give a file another name, and take that from the file which has it."""
        os.replace(old, new)

    def unlink(self, path: Place) -> None:
        """Take a name from a file."""
        os.unlink(path)

    def mkdir(self, path: Place) -> None:
        """Make a folder."""
        os.mkdir(path)

    def rmdir(self, path: Place) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def fsync_folder(self, folder: Place) -> None:
        """Open ``folder`` and fsync the names in it."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.fsync(descriptor)
        finally:
            os.close(descriptor)

    def write_all(self, descriptor: int, data: memoryview, offset_bytes: int = 0) -> None:
        """Write all of ``data``, in however many calls."""
        done = 0
        while done < len(data):
            count = self.pwrite(descriptor, data[done:], offset_bytes + done)
            if not count:
                raise OSError(errno.EIO, "the file system wrote nothing")
            done += count


SYSTEM = SystemCalls()
