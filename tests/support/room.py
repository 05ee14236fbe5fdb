"""A run root in a small memory: a tmpfs that is only counted, and one that is mounted, where this user may."""

import errno
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptkit.manager import run as live_run
from ckptkit.storage.capacity import Limit, in_pages


class CountedRoom:
    """Has ``total_bytes`` for the files below ``root``, as a tmpfs of this size counts them."""

    def __init__(self, root: Path, total_bytes: int) -> None:
        self.root = root
        self.total_bytes = total_bytes
        self.needed: list[int] = []  # by saves

    @property
    def used_bytes(self) -> int:
        files = (path for path in self.root.rglob("*") if path.is_file() and path.parent.name != ".reserve")
        return sum(in_pages(path.stat().st_size) for path in files)

    def __call__(self) -> Limit:
        free = self.total_bytes - self.used_bytes
        return Limit(free, self.total_bytes, "the size of the file system (a test)", errno.ENOSPC)


def install(monkeypatch: pytest.MonkeyPatch, room: Callable[[], Limit]) -> None:
    """Let managers take ``room()`` for the limit at their run root."""
    monkeypatch.setattr(live_run, "limit_at", lambda storage, folder: room())


@contextmanager
def small_tmpfs(folder: Path, size: str) -> Iterator[bool]:
    """Mount a tmpfs at ``folder``, which is made; gives whether this user may. It is gone afterwards."""
    folder.mkdir()
    mount = shutil.which("mount") or "/bin/mount"
    command = [mount, "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run([shutil.which("umount") or "/bin/umount", "--lazy", str(folder)], check=True)
