"""Ranks on several hosts whose root is an S3 server in one host's memory, with the bucket as mirror; hosts are lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from support.hosts.cluster import Cluster, Host
from support.hosts.faults import HostLost
from support.hosts.running import until

from multirank.hosts.homes import checkpoints, newest
from multirank.hosts.job import Job, assert_continues, dealt
from multirank.hosts.life import MICRO_BATCH, Life

pytestmark = pytest.mark.extended

BUCKET = "s3://runs/run"
DEATH = timedelta(minutes=3)  # MindSpore notices after about half a minute that a rank is gone
STOP = {2: 3, 3: 6}  # by ranks: a boundary within an epoch

Undisturbed = Callable[[int], Job]


def serve(host: Host) -> str:
    """Let a host keep an empty bucket in its memory; returns the root in it."""
    host.serve(host.memory / "s3")
    host.make_bucket("near")
    return f"{host.endpoint}/near/run"


def start(
    cluster: Cluster, root: str, hosts: Sequence[Host], notes: Path, *, stop: int = 0, elastic: bool = False
) -> Job:
    """A life that saves seldom: a commit is uploaded only if every rank is free for it."""
    life = Life(
        homes=(root, BUCKET),
        save_every=STOP[len(hosts)],
        settle=True,
        stand_still=(stop - 1, stop) if stop else (),
        elastic=elastic,
    )
    return Job(cluster, hosts, notes, life)


def places(cluster: Cluster, root: str) -> list[int]:
    """The micro-steps of the newest checkpoint in memory and in the bucket."""
    return [found[1] if (found := newest(cluster, home)) else 0 for home in (root, BUCKET)]


def wait_mirrored(cluster: Cluster, root: str, job: Job) -> None:
    """Wait until a job stands still after its first save, which is at both."""
    before, stop = job.life.stand_still
    job.wait_standing(before)  # all ranks are free
    job.go_on(before)
    job.wait_standing(stop)
    until(lambda: places(cluster, root) == [stop, stop], f"{stop} is at both", alive=job.ranks)


def lose(job: Job, *lost: Host) -> None:
    """Hosts are gone while all ranks stand still; ends when the others ended."""
    for host in lost:
        assert HostLost(host).begin().fired >= 1
        assert not host.memory.exists()
    for at in job.life.stand_still:
        job.go_on(at)
    assert 0 not in job.end(DEATH)


def assert_each_uploaded_its_own(cluster: Cluster, job: Job, attempt: int) -> None:
    """In the bucket, what belongs to a rank came from its host; and each rank has something there."""
    storage = cluster.storage
    sent = storage.senders(storage.disk, "runs")
    parts = [
        (int(found[1]), who)
        for key, who in sent.items()
        if (found := re.match(rf"run/checkpoints/a{attempt:06d}-[^/]*/rank-(\d+)", key))
    ]
    addresses = {rank: host.address for rank, host in enumerate(job.hosts)}
    assert {rank for rank, _ in parts} == {*addresses}
    assert all(who == addresses[rank] for rank, who in parts)
    commits = [who for key, who in sent.items() if re.match(rf"run/checkpoints/a{attempt:06d}-[^/]*/COMMIT", key)]
    assert {*commits} == {addresses[0]}


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_training_host_is_replaced(cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed, ranks: int) -> None:
    stop = STOP[ranks]
    root = serve(cluster.add())
    with start(cluster, root, cluster.hosts[:ranks], tmp_path / "first", stop=stop) as first:
        wait_mirrored(cluster, root, first)
        assert_each_uploaded_its_own(cluster, first, 1)
        lose(first, cluster.hosts[1])
    assert places(cluster, root) == [stop, stop]  # the part of the lost rank is missing in later ones
    cluster.replace(cluster.hosts[1])
    with start(cluster, root, cluster.hosts[:ranks], tmp_path / "second") as second:
        assert_continues(undisturbed(ranks), stop, second, first)
    assert places(cluster, root) == [second.life.micro_steps] * 2
    assert_each_uploaded_its_own(cluster, second, 2)


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_host_with_the_root_is_lost_and_trains_too(
    cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed, ranks: int
) -> None:
    """They go on from the bucket, with a new, empty root, which gets the checkpoint."""
    stop = STOP[ranks]
    root = serve(cluster.hosts[1])
    with start(cluster, root, cluster.hosts[:ranks], tmp_path / "first", stop=stop) as first:
        wait_mirrored(cluster, root, first)
        lose(first, cluster.hosts[1])
    newest_name, at = newest(cluster, BUCKET)
    assert at == stop
    root = serve(cluster.replace(cluster.hosts[1]))
    with start(cluster, root, cluster.hosts[:ranks], tmp_path / "second") as second:
        assert_continues(undisturbed(ranks), stop, second, first)
    assert places(cluster, root) == [second.life.micro_steps] * 2
    assert newest_name in [name for name, _ in checkpoints(cluster, root)]
    assert_each_uploaded_its_own(cluster, second, 2)


@pytest.mark.parametrize("root_lost", [False, True])
def test_ranks_go_on_with_a_host_less(
    cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed, root_lost: bool
) -> None:
    lost, keeping = cluster.hosts[1], cluster.hosts[1 if root_lost else 0]
    stop = STOP[3]
    root = serve(keeping)
    with start(cluster, root, cluster.hosts, tmp_path / "first", stop=stop) as first:
        wait_mirrored(cluster, root, first)
        lose(first, lost)
    left = [cluster.hosts[0], cluster.hosts[2]]
    if root_lost:
        root = serve(left[0])
    with start(cluster, root, left, tmp_path / "second", elastic=True) as second:
        reports = second.reports()
    assert [one["began"] for one in reports] == [stop * 3 // 2] * 2
    assert dealt(second.traces()) == dealt(undisturbed(3).traces())[stop * 3 * MICRO_BATCH :]
    assert reports[0]["weights"] == reports[1]["weights"]
    expected = undisturbed(3).reports()[0]["weights"]
    np.testing.assert_allclose(reports[0]["weights"], expected, rtol=2e-5, atol=1e-6)
    assert places(cluster, root) == [second.life.micro_steps] * 2
    assert_each_uploaded_its_own(cluster, second, 2)
