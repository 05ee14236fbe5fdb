"""A job of one rank that saves into its host's memory, with the bucket as mirror, while hosts and cables fail."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.hosts.cluster import Cluster, Host
from support.hosts.faults import HostLost, LinkDown, PacketLoss, SlowLink, StorageReboot
from support.hosts.running import until

from multirank.hosts.homes import newest
from multirank.hosts.job import Job, assert_continues
from multirank.hosts.life import Life

pytestmark = pytest.mark.extended

MIRROR = "s3://runs/run"
HOMES = ("{memory}/run", MIRROR)
END = Life().micro_steps
CUT = timedelta(seconds=10)

Undisturbed = Callable[[int], Job]


def start(
    cluster: Cluster, host: Host, notes: Path, *stand_still: int, retry_for: float = 60, mirror: str = MIRROR
) -> Job:
    life = Life(homes=(HOMES[0], mirror), stand_still=stand_still, retry_for=retry_for)
    return Job(cluster, [host], notes, life)


def wait_committed(cluster: Cluster, job: Job, at: int) -> None:
    """Wait until a job that stands still has committed that in its memory; it stands once the save has begun."""
    job.wait_standing(at)
    local = job.hosts[0].home(HOMES[0])
    until(lambda: place(newest(cluster, local)) == at, f"{at} is committed", alive=job.ranks)


def wait_mirrored(cluster: Cluster, job: Job, at: int) -> None:
    """Wait until a job that stands still has its newest commit at the mirror, too."""
    job.wait_standing(at)
    mirror = job.life.homes[1]
    until(lambda: place(newest(cluster, mirror)) == at, f"{at} is at the mirror", alive=job.ranks)


def place(found: tuple[str, int] | None) -> int | None:
    return found and found[1]


def assert_both_have_the_end(cluster: Cluster, host: Host, mirror: str = MIRROR) -> None:
    local, mirrored = newest(cluster, host.home(HOMES[0])), newest(cluster, mirror)
    assert local == mirrored
    assert place(local) == END


@pytest.mark.parametrize("where", ["bucket", "neighbour"])
def test_a_lost_host_goes_on_from_its_mirror(
    cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed, where: str
) -> None:
    """The mirror is the bucket, or in the memory of another host."""
    lost, neighbour = cluster.hosts[:2]
    mirror = MIRROR
    if where == "neighbour":
        neighbour.serve(neighbour.memory / "s3")
        neighbour.make_bucket("runs")
        mirror = f"{neighbour.endpoint}/runs/run"
    with start(cluster, lost, tmp_path / "first", 10, mirror=mirror) as first:
        wait_mirrored(cluster, first, 10)
        fault = HostLost(lost).begin()
        assert fault.fired >= 1
        assert not lost.memory.exists()
    other = cluster.replace(lost)
    with start(cluster, other, tmp_path / "second", mirror=mirror) as second:
        assert_continues(undisturbed(1), 10, second, first)
    assert_both_have_the_end(cluster, other, mirror)
    assert (newest(cluster, MIRROR) is None) == (where == "neighbour")


def test_a_lost_neighbour_is_told_at_the_end(cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Training goes on without it; the next start gets another neighbour."""
    host, lost, other = cluster.hosts
    for one in (lost, other):
        one.serve(one.memory / "s3")
        one.make_bucket("runs")
    with start(cluster, host, tmp_path / "first", 10, retry_for=3, mirror=f"{lost.endpoint}/runs/run") as first:
        wait_mirrored(cluster, first, 10)
        assert HostLost(lost).begin().fired >= 1  # its server
        first.go_on(10)
        first.ranks[0].expect(1)
    assert "SaveFailedError" in first.said()
    assert place(newest(cluster, host.home(HOMES[0]))) == END
    mirror = f"{other.endpoint}/runs/run"
    with start(cluster, host, tmp_path / "second", mirror=mirror) as second:
        assert_continues(undisturbed(1), END, second, first)
    assert_both_have_the_end(cluster, host, mirror)


def test_a_lost_host_takes_what_was_not_uploaded(cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    lost = cluster.hosts[0]
    with start(cluster, lost, tmp_path / "first", 10, 15) as first:
        wait_mirrored(cluster, first, 10)
        with LinkDown(lost) as cut:
            first.go_on(10)
            wait_committed(cluster, first, 15)
            assert HostLost(lost).begin().fired >= 1
            assert cut.fired == 1
    assert place(newest(cluster, MIRROR)) == 10
    other = cluster.replace(lost)
    with start(cluster, other, tmp_path / "second") as second:
        assert_continues(undisturbed(1), 10, second, first)
    assert_both_have_the_end(cluster, other)


def test_training_goes_on_without_the_cable(cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    host = cluster.hosts[0]
    with start(cluster, host, tmp_path / "life", 10, 20) as job:
        wait_mirrored(cluster, job, 10)
        with LinkDown(host) as fault:
            job.go_on(10)
            wait_committed(cluster, job, 20)
            assert place(newest(cluster, MIRROR)) == 10
            assert job.ranks[0].lasts(CUT)
            assert fault.fired == 1
        wait_mirrored(cluster, job, 20)
        job.go_on(20)
        assert_continues(undisturbed(1), 0, job)
    assert_both_have_the_end(cluster, host)


def test_a_cable_cut_for_good_is_told_at_the_end(cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    host = cluster.hosts[0]
    with start(cluster, host, tmp_path / "first", 10, retry_for=3) as first:
        wait_mirrored(cluster, first, 10)
        fault = LinkDown(host).begin()
        first.go_on(10)
        first.ranks[0].expect(1)
        assert fault.fired == 1
    assert "SaveFailedError" in first.said()
    assert place(newest(cluster, host.home(HOMES[0]))) == END
    assert place(newest(cluster, MIRROR)) == 10
    fault.end()
    with start(cluster, host, tmp_path / "second") as second:
        assert_continues(undisturbed(1), END, second, first)
    assert_both_have_the_end(cluster, host)


@pytest.mark.parametrize("what", ["slow", "lossy"])
def test_a_bad_cable_delays_only_the_mirror(
    cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed, what: str
) -> None:
    host = cluster.hosts[0]
    with start(cluster, host, tmp_path / "life", 10, 20) as job:
        wait_mirrored(cluster, job, 10)
        with SlowLink(host, kilobits=128) if what == "slow" else PacketLoss(cluster, host, 0.2) as fault:
            job.go_on(10)
            wait_committed(cluster, job, 20)
            job.go_on(20)
            assert_continues(undisturbed(1), 0, job)
            assert fault.fired > 10
    assert_both_have_the_end(cluster, host)


def test_storage_that_boots_gets_the_rest(cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    host = cluster.hosts[0]
    with start(cluster, host, tmp_path / "life", 10, 20) as job:
        wait_mirrored(cluster, job, 10)
        with StorageReboot(cluster.storage) as fault:
            job.go_on(10)
            wait_committed(cluster, job, 20)
            assert fault.fired == 1
        wait_mirrored(cluster, job, 20)
        job.go_on(20)
        assert_continues(undisturbed(1), 0, job)
    assert_both_have_the_end(cluster, host)
