"""A job of a rank on each of two or three hosts, with the bucket as root, while hosts and cables fail.

MindSpore may end the job when a cable is cut: what is held is that nothing is lost, and that a restart is exact.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from exactness.equivalence.comparison import dealt
from support.hosts.cluster import Cluster, Host, LinkDown
from support.hosts.running import until

from multirank.hosts.homes import newest
from multirank.hosts.job import Job, assert_continues
from multirank.hosts.life import MICRO_BATCH, Life

pytestmark = pytest.mark.extended

ROOT = "s3://runs/run"
CUT = timedelta(seconds=10)
DEATH = timedelta(minutes=3)  # MindSpore notices after about half a minute that a rank is gone

Undisturbed = Callable[[int], Job]


def start(cluster: Cluster, hosts: Sequence[Host], notes: Path, *stand_still: int, elastic: bool = False) -> Job:
    return Job(cluster, hosts, notes, Life(homes=(ROOT,), stand_still=stand_still, elastic=elastic))


def place(cluster: Cluster) -> int:
    """The micro-steps of the newest checkpoint in the bucket."""
    found = newest(cluster, ROOT)
    return found[1] if found else 0


def wait_saved(cluster: Cluster, job: Job, at: int) -> None:
    """Wait until a job that stands still has its newest checkpoint in the bucket."""
    job.wait_standing(at)
    until(lambda: place(cluster) == at, f"{at} is in the bucket", alive=job.ranks)


def lose(cluster: Cluster, job: Job, rank: int) -> None:
    """The host of a rank is gone while all stand still; ends when the other ranks ended."""
    lost = job.hosts[rank]
    assert lost.kill() >= 1
    assert not lost.disk.exists()
    for at in job.life.stand_still:
        job.go_on(at)
    codes = job.end(DEATH)
    assert 0 not in codes
    assert job.ranks[rank].returncode == -9
    cluster.replace(lost)


def test_ranks_go_on_with_a_host_replaced(cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    with start(cluster, cluster.hosts[:2], tmp_path / "first", 5) as first:
        wait_saved(cluster, first, 5)
        lose(cluster, first, 1)
    began = place(cluster)
    assert began == 5  # the dead rank's part of later ones is missing, so nothing more is committed
    with start(cluster, cluster.hosts[:2], tmp_path / "second") as second:
        assert_continues(undisturbed(2), began, second, first)
    assert place(cluster) == second.life.micro_steps


def test_ranks_go_on_with_a_host_less(cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    at = 6  # a boundary within an epoch: three ranks have K = 2, two have K = 3
    with start(cluster, cluster.hosts, tmp_path / "first", at) as first:
        wait_saved(cluster, first, at)
        lose(cluster, first, 1)
    assert place(cluster) == at
    with start(cluster, [cluster.hosts[0], cluster.hosts[2]], tmp_path / "second", elastic=True) as second:
        reports = second.reports()
    seen = at * 3 * MICRO_BATCH
    assert [one["began"] for one in reports] == [at * 3 // 2] * 2
    assert dealt(second.traces()) == dealt(undisturbed(3).traces())[seen:]
    assert reports[0]["weights"] == reports[1]["weights"]
    expected = undisturbed(3).reports()[0]["weights"]
    np.testing.assert_allclose(reports[0]["weights"], expected, rtol=2e-5, atol=1e-6)
    assert place(cluster) == second.life.micro_steps


def test_a_cut_cable_leaves_what_is_exact(cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    with start(cluster, cluster.hosts[:2], tmp_path / "first", 5) as job:
        wait_saved(cluster, job, 5)
        with LinkDown(cluster.hosts[1]) as fault:
            job.go_on(5)
            job.ranks[1].lasts(CUT)
            assert fault.fired == 1
            assert place(cluster) == 5
        codes = job.end(DEATH)
        if set(codes) == {0}:
            assert_continues(undisturbed(2), 0, job)
        else:  # what was disturbed has ended it; a second life goes on, exactly
            began = place(cluster)
            assert began >= 5
            with start(cluster, cluster.hosts[:2], tmp_path / "again") as again:
                assert_continues(undisturbed(2), began, again, job)
        assert place(cluster) == job.life.micro_steps
