"""Hosts for the tests of this folder, all of which fail on a machine that has none, and say why."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.hosts.cluster import Cluster
from support.hosts.namespace import missing

from multirank.hosts.job import Job
from multirank.hosts.life import Life

BUCKET = "runs"


@pytest.fixture(scope="session", autouse=True)
def _machine_has_hosts() -> None:
    """Not there is a failure, not a skip."""
    if reason := missing():
        pytest.fail(f"these tests need hosts of their own: {reason}", pytrace=False)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three hosts and a storage host with an empty bucket."""
    with Cluster(3, tmp_path / "hosts") as made:
        made.storage.make_bucket(BUCKET)
        yield made


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Job]:
    """Undisturbed lives without ckptkit's callback, of as many ranks as are asked for."""
    folder = tmp_path_factory.mktemp("undisturbed")

    @functools.cache
    def lived(ranks: int) -> Job:
        with Cluster(ranks, folder / f"{ranks}-hosts") as made:
            job = Job(made, made.hosts, folder / str(ranks), Life())
            job.reports()
        return job

    return lived
