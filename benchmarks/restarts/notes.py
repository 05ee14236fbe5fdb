"""Reads what the job of the benchmark notes, and forgets its files, so that the next life reads them from the disk."""

from __future__ import annotations

import os
from pathlib import Path

JOB = Path(__file__).with_name("job.py")


def lives(notes: Path) -> list[dict[str, list[float]]]:
    """Return what each life has noted, by name."""
    found: list[dict[str, list[float]]] = []
    for line in notes.read_text().split("\n")[:-1] if notes.exists() else []:
        name, value = line.split()
        if name == "started":
            found.append({})
        found[-1].setdefault(name, []).append(float(value))
    return found


def waits(notes: Path, number: int) -> bool:
    """Return whether the life of this number, from 0, has got as far as it gets."""
    return any("waits" in times for times in lives(notes)[number:])


def drop_from_cache(folder: Path) -> None:
    """Write a folder's files to the disk, and forget them in memory."""
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
