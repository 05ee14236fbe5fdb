"""Files of checkpoints: found, warmed, made durable, removed, damaged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .options import MIB


def files_of(path: Path) -> list[Path]:
    """A file itself, or every file below a folder."""
    return [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())


def size_bytes(path: Path) -> int:
    """Of all its files."""
    return sum(one.stat().st_size for one in files_of(path))


def fsync_all(path: Path) -> None:
    """Every file and every folder that names one."""
    files = files_of(path)
    for one in [*files, *sorted({file.parent for file in [*files, path]})]:
        descriptor = os.open(one, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def warm(path: Path) -> None:
    """Read everything into the page cache."""
    for one in files_of(path):
        with open(one, "rb", buffering=0) as file:
            while file.read(8 * MIB):
                pass


def drop(path: Path) -> None:
    """Write everything to the disk, and have the page cache forget it."""
    fsync_all(path)
    for one in files_of(path):
        descriptor = os.open(one, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def remove(path: Path) -> None:
    """A file or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def flip_a_bit(path: Path) -> None:
    """In the middle of the largest file."""
    largest = max(files_of(path), key=lambda one: one.stat().st_size)
    with open(largest, "r+b") as file:
        middle = largest.stat().st_size // 2
        file.seek(middle)
        byte = file.read(1)
        file.seek(middle)
        file.write(bytes([byte[0] ^ 1]))
        os.fsync(file.fileno())
