"""A job of a rank on each of three hosts, with a root in their memories, each file in two of them, while hosts fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from support.hosts.cluster import Cluster, Host
from support.hosts.faults import HostLost
from support.hosts.running import until

from multirank.hosts.homes import newest
from multirank.hosts.job import Job, assert_continues, dealt
from multirank.hosts.life import MICRO_BATCH, Life

pytestmark = pytest.mark.extended

DEATH = timedelta(minutes=3)  # MindSpore notices after about half a minute that a rank is gone

Undisturbed = Callable[[int], Job]


def serve(host: Host) -> None:
    """Its memory, as any S3 server does."""
    host.serve(host.memory / "s3")
    host.make_bucket("runs")


def ring(hosts: Sequence[Host]) -> str:
    return ",".join(host.endpoint for host in hosts) + "/runs/run"


def start(cluster: Cluster, hosts: Sequence[Host], notes: Path, *stand_still: int, elastic: bool = False) -> Job:
    life = Life(homes=(ring(hosts),), stand_still=stand_still, elastic=elastic, settle=True)
    return Job(cluster, hosts, notes, life)


def lose(cluster: Cluster, job: Job, rank: int, at: int) -> Host:
    """The host of a rank is gone, with its memory, when all have saved; ends when the other ranks ended."""
    job.wait_standing(at)
    until(lambda: place(cluster, job.hosts) == at, f"{at} is committed", alive=job.ranks)
    lost = job.hosts[rank]
    fault = HostLost(lost).begin()
    assert fault.fired >= 2  # a rank and a server
    assert not lost.memory.exists()
    job.go_on(at)
    assert 0 not in job.end(DEATH)
    return lost


def place(cluster: Cluster, hosts: Sequence[Host]) -> int:
    """The micro-steps of the newest checkpoint in the ring."""
    found = newest(cluster, ring(hosts))
    return found[1] if found else 0


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_newest_checkpoint_outlives_any_host(
    cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed, rank: int
) -> None:
    for host in cluster.hosts:
        serve(host)
    with start(cluster, cluster.hosts, tmp_path / "first", 5) as first:
        lost = lose(cluster, first, rank, 5)
    serve(cluster.replace(lost))
    assert place(cluster, cluster.hosts) == 5
    with start(cluster, cluster.hosts, tmp_path / "second") as second:
        assert_continues(undisturbed(3), 5, second, first)
    assert place(cluster, cluster.hosts) == second.life.micro_steps


def test_ring_goes_on_with_a_host_less(cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    at = 6  # a boundary within an epoch: three ranks have K = 2, two have K = 3
    for host in cluster.hosts:
        serve(host)
    with start(cluster, cluster.hosts, tmp_path / "first", at) as first:
        lost = lose(cluster, first, 1, at)
    left = [host for host in cluster.hosts if host is not lost]
    assert place(cluster, left) == at
    with start(cluster, left, tmp_path / "second", elastic=True) as second:
        reports = second.reports()
    assert [one["began"] for one in reports] == [at * 3 // 2] * 2
    assert dealt(second.traces()) == dealt(undisturbed(3).traces())[at * 3 * MICRO_BATCH :]
    assert reports[0]["weights"] == reports[1]["weights"]
    np.testing.assert_allclose(reports[0]["weights"], undisturbed(3).reports()[0]["weights"], rtol=2e-5, atol=1e-6)
    assert place(cluster, left) == second.life.micro_steps
