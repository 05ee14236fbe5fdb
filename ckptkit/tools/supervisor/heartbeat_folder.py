"""Makes the folder in which the processes of a life show themselves, in memory if that is possible.

Guarantees: the folder is private, and is removed at the end. What supervisors that were killed have left is removed,
too, as long as it is known that they have ended: each holds a lock on its folder, which no other host or PID namespace
can mistake. One thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
_PREFIX = "ckptkit-run-"


@contextlib.contextmanager
def heartbeat_folder(in_memory: Path = _IN_MEMORY) -> Iterator[Path]:
    """Yield a new, empty folder.

    Args:
        in_memory: Where it is made if that can be written; otherwise, it is where temporary files are.

    Raises:
        OSError: If no folder can be made.
    """
    for left in in_memory.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if any(left.iterdir()):  # an empty one may be so new that it is not locked yet
                with _locked(left):
                    shutil.rmtree(left, ignore_errors=True)
    folder = _made(in_memory)
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _made(in_memory: Path) -> Path:
    prefix = f"{_PREFIX}{os.getpid()}-"
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=in_memory))
    except OSError:  # there is none, or it cannot be written
        return Path(tempfile.mkdtemp(prefix=prefix))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder.

    Raises:
        OSError: If another process holds it, or the folder is another user's.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
