"""A disk with little room: what does not fit fails as on a real one, and is counted."""

import errno
import os
from pathlib import Path

import pytest

from ckptkit.storage.system_calls import SYSTEM

_BLOCK_BYTES = 4096


class SmallDisk:
    """The disk or quota of everything below ``root``, counted in blocks and in names, as a tmpfs counts hard links."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> None:
        self.root = root
        self.blocks: int | None = None
        self.names: int | None = None
        self.refused = 0
        self._number = number
        self._real = {name: getattr(SYSTEM, name) for name in ("open_new", "link", "mkdir", "pwrite")}
        for name in self._real:
            monkeypatch.setattr(SYSTEM, name, getattr(self, name))

    def fill(self, kind: str, room: int = 0) -> None:
        """Leave ``room`` blocks or names free."""
        setattr(self, kind, self._used()[kind] + room)

    def open_new(self, path: Path) -> int:
        self._expect(path, names=1)
        return self._real["open_new"](path)

    def link(self, existing: Path, new: Path) -> None:
        self._expect(new, names=1)
        self._real["link"](existing, new)

    def mkdir(self, path: Path) -> None:
        self._expect(path, names=1)
        self._real["mkdir"](path)

    def pwrite(self, descriptor: int, data: memoryview, offset: int) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        grown = -(-(offset + len(data)) // _BLOCK_BYTES) + -os.fstat(descriptor).st_size // _BLOCK_BYTES
        self._expect(path, blocks=grown)
        return self._real["pwrite"](descriptor, data, offset)

    def _expect(self, path: str | Path, **more: int) -> None:
        used = self._used()
        for kind, count in more.items():
            room = getattr(self, kind)
            if room is not None and Path(path).is_relative_to(self.root) and used[kind] + count > room:
                self.refused += 1
                raise OSError(self._number, os.strerror(self._number), str(path))

    def _used(self) -> dict[str, int]:
        below = list(self.root.rglob("*"))
        inodes = {(status := path.stat()).st_ino: status.st_size for path in below if path.is_file()}
        return {"names": len(below), "blocks": sum(-(-size // _BLOCK_BYTES) for size in inodes.values())}
