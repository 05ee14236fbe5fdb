"""What the machine allows: copying, writing and reading as many bytes as the state has, and nothing else."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import files
from .options import MIB, Options
from .systems.workload import timed
from .table import cell

CHUNK_BYTES = 8 * MIB
NEW = os.O_WRONLY | os.O_CREAT
KINDS = {
    "memcpy": "memcpy, one thread, into touched memory",
    "write_buffered": "buffered write + fsync",
    "write_direct": "O_DIRECT write + fsync",
    "read_warm": "read from the page cache into touched memory",
    "read_cold": "the same from the disk, buffered",
    "read_direct": "the same with O_DIRECT",
}


def aligned(size_bytes: int) -> np.ndarray:
    """Touched memory that O_DIRECT takes."""
    memory = np.frombuffer(mmap.mmap(-1, size_bytes), np.uint8)
    memory[:] = 1
    return memory


def limits(options: Options) -> dict[str, list[float]]:
    """MB/s by kind, ``options.pairs`` times."""
    options.scratch.mkdir(parents=True, exist_ok=True)
    path = options.scratch / "limits.bin"
    size = options.state_bytes
    source, target = aligned(size), aligned(size)
    source[:] = np.random.default_rng(0).integers(0, 255, MIB, np.uint8).repeat(size // MIB)
    calls: list[tuple[str, Callable[..., object], tuple[Any, ...]]] = [
        ("memcpy", np.copyto, (target, source)),
        ("write_direct", transfer, (path, NEW | os.O_DIRECT, os.writev, source)),
        ("write_buffered", transfer, (path, NEW, os.writev, source)),
        ("read_warm", transfer, (path, os.O_RDONLY, os.readv, target)),
        ("read_cold", transfer, (path, os.O_RDONLY, os.readv, target)),
        ("read_direct", transfer, (path, os.O_RDONLY | os.O_DIRECT, os.readv, target)),
    ]
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(options.pairs):
        for kind, call, arguments in calls:
            if kind.startswith("write"):
                path.unlink(missing_ok=True)
                os.sync()
            elif kind in ("read_cold", "read_direct"):
                files.drop(path)
            found[kind].append(size / timed(call, *arguments) / 1e6)
    path.unlink()
    return found


def transfer(path: os.PathLike[str], flags: int, call: Callable[[int, list[memoryview]], int], memory: Any) -> None:
    """All of ``memory`` to or from a file, in order, then fsync."""
    descriptor = os.open(path, flags, 0o600)
    for at in range(0, memory.size, CHUNK_BYTES):
        call(descriptor, [memory.data[at : at + CHUNK_BYTES]])
    os.fsync(descriptor)
    os.close(descriptor)


def write_limit(found: dict[str, list[float]]) -> float:
    """The better of the two ways to write, MB/s."""
    return max(float(np.median(found[kind])) for kind in ("write_buffered", "write_direct"))


def cold_limit(found: dict[str, list[float]]) -> float:
    """The better of the two ways to read from the disk, MB/s."""
    return max(float(np.median(found[kind])) for kind in ("read_cold", "read_direct"))


def merged(several: Sequence[dict[str, list[float]]]) -> dict[str, list[float]]:
    """What several processes measured, as one."""
    return {kind: [value for one in several for value in one[kind]] for kind in KINDS}


def line(found: dict[str, list[float]]) -> str:
    """For people."""
    return "Limits in this run, GB/s: " + "; ".join(
        f"{text} {cell([value / 1e3 for value in found[kind]])}" for kind, text in KINDS.items()
    )
