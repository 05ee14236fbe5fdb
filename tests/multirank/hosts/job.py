"""A life of a job on the hosts of a cluster: one rank on each, started by msrun on each if there are several."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from exactness.equivalence.comparison import Line, assert_equal, read_trace, steps
from support.hosts.cluster import Cluster, Host
from support.hosts.running import LIMIT, Running, until

from multirank.hosts import life as life_module
from multirank.hosts.life import Life

SCRIPT = Path(life_module.__file__)
PORT = 8118


class Job:
    """A life that was started; a context manager that kills what still runs."""

    def __init__(self, cluster: Cluster, hosts: Sequence[Host], notes: Path, life: Life) -> None:
        self.hosts = list(hosts)
        notes.mkdir(parents=True)
        self.life = replace(life, notes=str(notes), world_size=len(self.hosts))
        self.ranks: list[Running] = []
        for rank, host in enumerate(self.hosts):
            msrun = [
                *(str(Path(sys.executable).with_name("msrun")), f"--worker_num={len(self.hosts)}"),
                *("--local_worker_num=1", f"--node_rank={rank}", f"--master_addr={self.hosts[0].address}"),
                *(f"--master_port={PORT}", f"--log_dir={host.disk / notes.name}", "--join=True"),
                "--cluster_time_out=60",
            ]
            there = replace(self.life, homes=tuple(map(host.home, self.life.homes)))
            command = [*(msrun if len(self.hosts) > 1 else [sys.executable]), str(SCRIPT), there.dumps()]
            log = notes / f"rank-{rank}.log"
            self.ranks.append(host.start(*command, log=log, environment=cluster.variables()))

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.kill()

    def wait_standing(self, at: int) -> None:
        """Return when every rank stands still after the micro-step."""
        files = [self.life.standing(at, rank) for rank in range(self.life.world_size)]
        until(lambda: all(file.exists() for file in files), f"all stand still after {at}", alive=self.ranks)

    def go_on(self, at: int) -> None:
        """Let them go on."""
        self.life.go(at).touch()

    def end(self, limit: timedelta = LIMIT) -> list[int]:
        """Wait for the end of every rank; returns the exit codes."""
        return [one.end(limit) for one in self.ranks]

    def reports(self) -> list[dict[str, Any]]:
        """What each rank found at the end; AssertionError if one failed."""
        for one in self.ranks:
            one.expect(0)
        return [json.loads(self.life.report(rank).read_text()) for rank in range(self.life.world_size)]

    def traces(self) -> list[list[Line]]:
        """What each rank traced, of those that came to that."""
        paths = [self.life.trace(rank) for rank in range(self.life.world_size)]
        return [read_trace(path) if path.exists() else [] for path in paths]


def assert_continues(reference: Job, began: int, last: Job, *before: Job) -> None:
    """See that lives make up the undisturbed one, in every bit of every rank; the last one came to the end."""
    reports = last.reports()
    assert [one["began"] for one in reports] == [began] * len(reports)
    for rank, expected in enumerate(reference.traces()):
        found = last.traces()[rank]
        assert steps(found) == list(range(began + 1, reference.life.micro_steps + 1))
        for life in (last, *before):
            assert_equal(expected, life.traces()[rank])
    assert [one["weights"] for one in reports] == [one["weights"] for one in reference.reports()]
