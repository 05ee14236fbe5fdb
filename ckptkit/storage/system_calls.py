"""What direct writes ask of the operating system: the seam at which tests inject what disks do. Any thread."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Protocol


class SystemCalls(Protocol):
    """The calls that a file system may refuse, break off or do in part; all raise OSError."""

    def set_direct(self, descriptor: int, direct: bool) -> None:
        """Switch writes around the page cache on or off for an open file."""
        ...

    def pwrite(self, descriptor: int, data: memoryview, offset_bytes: int) -> int:
        """Write a first part of ``data`` and return its length."""
        ...


class RealCalls:
    """The operating system's own."""

    def set_direct(self, descriptor: int, direct: bool) -> None:
        """Change O_DIRECT of an open file, which Linux checks as it does at the open."""
        flag = getattr(os, "O_DIRECT", 0)
        if not flag:
            raise OSError(errno.EOPNOTSUPP, "this operating system has no O_DIRECT")
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag if direct else flags & ~flag)

    def pwrite(self, descriptor: int, data: memoryview, offset_bytes: int) -> int:
        """One pwrite."""
        return os.pwrite(descriptor, data, offset_bytes)
