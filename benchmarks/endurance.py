"""Very many saves of one process: whether its memory and what a save costs stay as they are.

    python -m benchmarks.endurance --saves 100000 --folder /dev/shm/endurance

Prints a line per mark and a verdict. Guarantees: memory is that of the whole process (PSS), after a collection, while
no save is under way; seconds are those of the processors, of all its threads, so that other processes count little.
Events, retention and metrics are on. The folder is emptied first.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import ckptkit as ck
from ckptkit.testing.state import NumpyRun

MIB = 1 << 20
MOST_GROWTH_BYTES = 10 * MIB
CYCLE = 4


@dataclass(frozen=True)
class Mark:
    """What the process was after so many saves.

    Attributes:
        saves: Committed so far.
        memory_bytes: PSS.
        seconds_per_save: Of the processors, since the mark before.
        files: Below the root, without ``events/``.
        events: Files below ``events/``.
        descriptors: Open ones.
    """

    saves: int
    memory_bytes: int
    seconds_per_save: float
    files: int
    events: int
    descriptors: int

    def __str__(self) -> str:
        return (
            f"{self.saves:>9,} saves  {self.memory_bytes / MIB:7.2f} MiB  {1e3 * self.seconds_per_save:6.3f} ms of "
            f"processor per save  {self.files} files, {self.events} of events, {self.descriptors} descriptors"
        )


def endure(root: Path, saves: int, marks: int = 10) -> Iterator[Mark]:
    """Commit so many checkpoints, one after each cycle, and give a mark at equal distances; the first is at 0."""
    run = NumpyRun(accumulation_steps=CYCLE)
    policy = ck.SaveEvery(optimizer_steps=1)
    keep = ck.KeepLatest(3)
    with ck.CheckpointManager(
        root, save=policy, keep=keep, saving=ck.Saving(when_busy="wait"), preemption=ck.Preemption(then="off")
    ) as manager:
        manager.restore(run)
        for done in range(0, saves + 1, saves // marks):
            began, before = time.process_time(), run.batches
            for batches in run.train_until(CYCLE * done):
                manager.step(run, {"loss": 1 / batches})
            manager.wait()
            spent = time.process_time() - began
            yield _mark(root, done, spent / max(1, (run.batches - before) // CYCLE))
        assert manager.totals.saves == saves
    fresh = NumpyRun(accumulation_steps=CYCLE)
    with ck.CheckpointManager(root, preemption=ck.Preemption(then="off")) as manager:
        manager.restore(fresh)
    assert fresh.digest() == run.digest()


def _mark(root: Path, saves: int, seconds_per_save: float) -> Mark:
    gc.collect()
    pss = re.search(r"^Pss:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    assert pss is not None
    files = [path.relative_to(root).parts[0] for path in root.rglob("*") if path.is_file()]
    events = files.count("events")
    descriptors = len(os.listdir("/proc/self/fd"))
    return Mark(saves, 1024 * int(pss[1]), seconds_per_save, len(files) - events, events, descriptors)


def growth_bytes(marks: list[Mark]) -> int:
    """From the first mark at which the process had warmed up to the largest after it."""
    return max(mark.memory_bytes for mark in marks[2:]) - marks[1].memory_bytes


def slowdown(marks: list[Mark]) -> float:
    """What a save costs in the last fifth against the first; marks[0] is before any."""
    costs = [mark.seconds_per_save for mark in marks[1:]]
    fifth = max(1, len(costs) // 5)
    return median(costs[-fifth:]) / median(costs[:fifth])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance", description=__doc__)
    parser.add_argument("--saves", type=int, default=100_000)
    parser.add_argument("--marks", type=int, default=10)
    parser.add_argument("--folder", type=Path, required=True, help="on the disk, or the tmpfs, to save to")
    parser.add_argument("--slower", type=float, default=1.05, help="how many times as much a save may cost at the end")
    options = parser.parse_args()
    logging.getLogger("ckptkit").setLevel(logging.ERROR)
    shutil.rmtree(options.folder, ignore_errors=True)
    marks: list[Mark] = []
    for mark in endure(options.folder, options.saves, options.marks):
        marks.append(mark)
        print(mark, flush=True)
    shutil.rmtree(options.folder)
    grown, slower = growth_bytes(marks), slowdown(marks)
    print(f"memory grew by {grown / MIB:.2f} MiB, a save costs {100 * (slower - 1):+.1f} %")
    if grown > MOST_GROWTH_BYTES or slower > options.slower:
        raise SystemExit(f"more than {MOST_GROWTH_BYTES / MIB:.0f} MiB, or more than {options.slower} times as much")


if __name__ == "__main__":
    main()
