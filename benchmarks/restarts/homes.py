"""Measures how soon a killed training trains again, by where its state is read: memory, disk, neighbour or bucket.

    PYTHONPATH=tests python -m benchmarks.restarts.homes --folder /disk/restarts [--mib 256] [--times 3]     (as root)

A MindSpore training on a host of its own (a network namespace) is killed by SIGKILL once its checkpoint lies at that
home; for a mirror, its root is removed, as if the host were another one. It is started again at once. Prints the
medians of the seconds from the SIGKILL to the end of the next micro-step, by phase, and the load of the machine.
The files on the disk are dropped from the page cache before. Both servers are moto, whose speed is that of Python.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from multirank.hosts.homes import newest
from support.hosts.cluster import Cluster
from support.hosts.running import Running, until

from benchmarks.restarts.notes import JOB, drop_from_cache, lives, waits

PHASES = ("process and imports", "restore", "first micro-step", "in all")
HOMES = ("memory", "disk", "neighbour", "bucket")
UPLOADED = "is uploaded to the mirror"  # to ask the server again and again would slow it down
LIMIT = timedelta(minutes=10)


@dataclass(frozen=True)
class Times:
    """Seconds of one restart.

    Attributes:
        seconds: By phase.
        load: Of the machine, in the last minute.
    """

    seconds: tuple[float, ...]
    load: float


class Bench:
    """Restarts on one cluster.

    Args:
        cluster: Its first host trains, the second one is the neighbour.
        folder: For notes.
        mib: Size of the state.
    """

    def __init__(self, cluster: Cluster, folder: Path, mib: int) -> None:
        self._cluster = cluster
        self._folder = folder
        self._width = int((mib * (1 << 20) / 12) ** 0.5)  # a weight and two moments, of 4 bytes each
        self._number = 0
        self._host, self._neighbour = cluster.hosts
        self._neighbour.serve()
        self._neighbour.make_bucket("near")
        cluster.storage.make_bucket("runs")

    def restart(self, home: str) -> Times:
        """One restart, with the state at that home only, but for those behind it."""
        self._number += 1
        run = f"run-{self._number}"
        root = (self._host.disk if home == "disk" else self._host.memory) / run
        mirror = {"neighbour": f"{self._neighbour.endpoint}/near/{run}", "bucket": f"s3://runs/{run}"}.get(home)
        notes = self._folder / run
        first = self._start(root, mirror, notes)
        there = (
            functools.partial(newest, self._cluster, str(root)) if mirror is None else lambda: UPLOADED in first.text()
        )
        until(there, f"a checkpoint is at the {home}", alive=[first], limit=LIMIT)
        killed = time.time()
        first.kill()
        if mirror is not None:
            shutil.rmtree(root)
        elif home == "disk":
            drop_from_cache(root)
            killed = time.time()
        second = self._start(root, mirror, notes)
        until(lambda: waits(notes, 1), "it trains again", alive=[second], limit=LIMIT)
        second.kill()
        assert "resuming from" in second.text(), second.said()
        shutil.rmtree(root)
        times = lives(notes)[1]
        imports, restore = times["ckptkit"][0] - killed, times["in-restoring"][0]
        in_all = times["stepped"][0] - killed
        return Times((imports, restore, in_all - imports - restore, in_all), os.getloadavg()[0])

    def _start(self, root: Path, mirror: str | None, notes: Path) -> Running:
        argument = json.dumps([str(root), mirror, str(notes), self._width])
        log = notes.with_suffix(".second.log" if notes.exists() else ".first.log")
        return self._host.start(sys.executable, JOB, argument, log=log, environment=self._cluster.variables())


def rows(found: dict[str, list[Times]]) -> Iterator[str]:
    """The table, of medians."""
    yield " | ".join([f"{'state read from':<16}", *(f"{phase:>19}" for phase in PHASES), "load"])
    for home, times in found.items():
        medians = [statistics.median(each) for each in zip(*(one.seconds for one in times), strict=True)]
        loads = f"{min(one.load for one in times):.0f} to {max(one.load for one in times):.0f}"
        yield " | ".join([f"{home:<16}", *(f"{seconds:>17.2f} s" for seconds in medians), loads])


def measure(folder: Path, *, mib: int, times: int, homes: Sequence[str]) -> dict[str, list[Times]]:
    """Restarts with each home in turn, so many times."""
    found: dict[str, list[Times]] = {home: [] for home in homes}
    shutil.rmtree(folder, ignore_errors=True)
    with Cluster(2, folder / "hosts") as cluster:
        bench = Bench(cluster, folder / "notes", mib)
        for _ in range(times):
            for home, each in found.items():
                each.append(bench.restart(home))
                print(f"{home}: {each[-1]}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restarts.homes", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="on a disk; emptied first")
    parser.add_argument("--mib", type=int, default=256, help="size of the state")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--homes", default=",".join(HOMES))
    options = parser.parse_args()
    found = measure(options.folder, mib=options.mib, times=options.times, homes=options.homes.split(","))
    print(*rows(found), sep="\n")


if __name__ == "__main__":
    main()
