"""A job of one rank with all tiers: its host's memory, another host's memory, and the bucket, while each may fail."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hosts.cluster import Cluster, Host, LinkDown
from support.hosts.running import until

from multirank.hosts.homes import checkpoints, newest
from multirank.hosts.job import Job, assert_continues
from multirank.hosts.life import Life

pytestmark = pytest.mark.extended

ROOT = "{memory}/run"
BUCKET = "s3://runs/run"
END = Life().micro_steps
SELDOM = 3600  # the first commit of a life is uploaded at once, and then only the last one

Undisturbed = Callable[[int], Job]


class Tiers:
    """A job whose chain is memory, neighbour and bucket; the first host trains, the second one is the neighbour."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self._lives: list[Job] = []
        self.open_neighbour()

    def open_neighbour(self) -> None:
        """Let the second host keep an empty bucket in its memory."""
        self.neighbour.serve()
        self.neighbour.make_bucket("near")

    @property
    def host(self) -> Host:
        return self.cluster.hosts[0]

    @property
    def neighbour(self) -> Host:
        return self.cluster.hosts[1]

    @property
    def homes(self) -> tuple[str, str, str]:
        return ROOT, f"{self.neighbour.endpoint}/near/run", BUCKET

    def start(self, *stand_still: int, far: dict[str, Any] | None = None, retry_for: float = 3) -> Job:
        """Start the next life; ``far`` has options of the bucket, the others are of `Life`."""
        mirrors = ({"required": False}, far or {})
        life = Life(homes=self.homes, mirrors=mirrors, stand_still=stand_still, retry_for=retry_for)
        self._lives.append(Job(self.cluster, [self.host], self._folder / f"life-{len(self._lives)}", life))
        return self._lives[-1]

    def end(self) -> None:
        """Kill what runs."""
        for life in self._lives:
            life.__exit__()

    def newest(self) -> list[int | None]:
        """The micro-steps of the newest checkpoint in memory, at the neighbour, and in the bucket."""
        found = [newest(self.cluster, self.host.home(home)) for home in self.homes]
        return [one and one[1] for one in found]

    def wait(self, job: Job, *expected: int | None) -> None:
        """Wait until a life that stands still has that at its homes."""
        until(lambda: self.newest() == [*expected], f"{expected} lie there", alive=job.ranks)

    def names(self, place: int) -> list[str]:
        """What lies at the home of that number."""
        return [name for name, _ in checkpoints(self.cluster, self.host.home(self.homes[place]))]

    def assert_all_have_the_end(self) -> None:
        newest_names = {self.names(place)[-1] for place in range(3)}
        assert len(newest_names) == 1
        assert self.newest() == [END] * 3


@pytest.fixture
def tiers(cluster: Cluster, tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(cluster, tmp_path / "notes")
    try:
        yield made
    finally:
        made.end()


def test_a_lost_host_goes_on_from_its_neighbour(tiers: Tiers, undisturbed: Undisturbed) -> None:
    """The bucket is older; what the neighbour lacked is lost, and the new host's memory gets the checkpoint.

    Then both hosts are lost, and the bucket is the only one that has it.
    """
    first = tiers.start(10, 15, far={"every": SELDOM})
    first.wait_standing(10)
    tiers.wait(first, 10, 10, 1)
    newest_name = tiers.names(1)[-1]
    lost = tiers.host
    with LinkDown(lost) as cut:
        first.go_on(10)
        first.wait_standing(15)
        tiers.wait(first, 15, 10, 1)
        assert lost.kill() >= 1
        assert cut.fired == 1
    assert not lost.memory.exists()
    assert not lost.disk.exists()
    tiers.cluster.replace(lost)
    assert tiers.newest() == [None, 10, 1]
    second = tiers.start(11, far={"every": SELDOM})
    second.wait_standing(11)
    until(lambda: newest_name in tiers.names(0), "memory has it back", alive=second.ranks)
    until(lambda: tiers.newest()[2] in (10, 11), "the bucket has it, too", alive=second.ranks)
    for lost in (tiers.neighbour, tiers.host):
        assert lost.kill() >= 1
        assert not lost.memory.exists()
        tiers.cluster.replace(lost)
    tiers.open_neighbour()
    *gone, begun = tiers.newest()
    assert (gone, begun in (10, 11)) == ([None, None], True)
    newest_name = tiers.names(2)[-1]
    third = tiers.start()
    assert_continues(undisturbed(1), begun, third, first, second)
    tiers.assert_all_have_the_end()
    assert all(newest_name in tiers.names(place) for place in range(3))


def test_a_start_without_the_neighbour_and_one_with_it_again(tiers: Tiers, undisturbed: Undisturbed) -> None:
    first = tiers.start(10, 20)
    first.wait_standing(10)
    tiers.wait(first, 10, 10, 10)
    with LinkDown(tiers.neighbour) as cut:
        first.go_on(10)
        first.wait_standing(20)
        tiers.wait(first, 20, 10, 20)
        first.ranks[0].kill()
        second = tiers.start(30)
        second.wait_standing(30)
        tiers.wait(second, 30, 10, 30)
        assert "NO MIRROR" in second.ranks[0].text()
        second.ranks[0].kill()
        assert cut.fired == 1
    missing = tiers.names(0)[-1]
    third = tiers.start(31)
    third.wait_standing(31)
    until(lambda: missing in tiers.names(1), "the neighbour has what it lacked", alive=third.ranks)
    assert "NO MIRROR" not in third.ranks[0].text()
    third.go_on(31)
    assert_continues(undisturbed(1), 30, third, first, second)
    tiers.assert_all_have_the_end()
