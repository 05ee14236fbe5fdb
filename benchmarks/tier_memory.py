"""Measures what a root in memory takes: the peak of a process and its root, beside the same with a root on a disk.

    python -m benchmarks.tier_memory --disk /disk/run [--memory /dev/shm/run] [--mib 256]

A NumPy training saves after every update and keeps two checkpoints, without a mirror. A thread looks every few
milliseconds at the resident memory of the process and at the files of the root. Each root has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

CYCLE, UPDATES = 4, 12
LOOK_EVERY_SECONDS = 0.003


def files_bytes(folder: Path) -> int:
    """All files below it; those that are removed meanwhile do not count."""
    found = 0
    for path in folder.rglob("*"):
        try:
            found += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return found


class Peak:
    """Looks in a thread; a context manager."""

    def __init__(self, root: Path, *, in_memory: bool) -> None:
        self._root, self._in_memory = root, in_memory
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.process_bytes = self.root_bytes = self.both_bytes = 0

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_EVERY_SECONDS):
            process = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
            root = files_bytes(self._root)
            self.process_bytes = max(self.process_bytes, process)
            self.root_bytes = max(self.root_bytes, root)
            self.both_bytes = max(self.both_bytes, process + (root if self._in_memory else 0))


def measure(root: Path, mib: int, *, in_memory: bool) -> dict[str, float]:
    """The peaks of one training, in MiB, and the size of a checkpoint of it."""
    import ckptkit as ck
    from ckptkit.testing.state import NumpyRun

    run = NumpyRun(accumulation_steps=CYCLE, size=mib * (1 << 20) // 8)  # weights and moments, of 4 bytes each
    with (
        ck.CheckpointManager(root, save=ck.SaveEvery(optimizer_steps=1), keep=ck.KeepLatest(2)) as manager,
        Peak(root, in_memory=in_memory) as peak,
    ):
        manager.restore(run)
        for _ in run.train_until(CYCLE * UPDATES):
            manager.step(run)
        name = manager.save_final(run)
    one = files_bytes(root / "checkpoints" / name) + files_bytes(root / "frozen")
    mib_of = {"process": peak.process_bytes, "root": peak.root_bytes, "both": peak.both_bytes, "checkpoint": one}
    return {name: size / (1 << 20) for name, size in mib_of.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tier_memory", description=__doc__)
    parser.add_argument("--disk", type=Path, required=True)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm/tier-memory"))  # noqa: S108 - memory is meant
    parser.add_argument("--mib", type=int, default=256, help="weights and moments")
    parser.add_argument("--only", choices=["disk", "memory"])
    options = parser.parse_args()
    if options.only is not None:
        root = options.disk if options.only == "disk" else options.memory
        shutil.rmtree(root, ignore_errors=True)
        print(json.dumps(measure(root, options.mib, in_memory=options.only == "memory")))
        shutil.rmtree(root)
        return
    for only in ("disk", "memory"):
        command = [sys.executable, "-m", "benchmarks.tier_memory", *sys.argv[1:], "--only", only]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{only}: " + ", ".join(f"{name} {size:,.0f} MiB" for name, size in found.items()))


if __name__ == "__main__":
    main()
