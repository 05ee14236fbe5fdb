"""Jobs of many ranks whose root lies at their machines, each file at two of them, so that one may be lost."""

from __future__ import annotations

import itertools
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from support.runs.ranks import Life, Mortal, check_whole, committed, digests_at, live, lost
from support.runs.roots import root_at

from ckptkit.manager.options import Mirror
from ckptkit.storage import LocalStorage
from ckptkit.storage.ring import Ring
from ckptkit.testing.faults import EVERY, Fault, FaultyStorage
from ckptkit.testing.ranks import Ended, results_of, run_ranks

MACHINES = 3


pytestmark = pytest.mark.usefixtures("no_waiting")


class Servers:
    """The servers of all machines as one rank sees them; dead if one of them saw it die."""

    def __init__(self, base: Path, machines, fault: Fault | None = None) -> None:
        self.each = [FaultyStorage(LocalStorage(base / f"machine{one}")) for one in machines]
        for one in self.each if fault is not None else ():
            one.inject(fault)

    @property
    def is_dead(self) -> bool:
        return any(one.is_dead for one in self.each)


def job(base: Path, until: int, *, ranks=3, machines=range(MACHINES), faults=None, **options) -> list[Ended]:
    """A job whose ranks train up to ``until``; ``faults`` by rank, at any of the servers."""

    def act(world) -> tuple[Life, Servers]:
        servers = Servers(base, machines, (faults or {}).get(world.rank))
        ring = Ring(servers.each, ranks_per_machine=-(-ranks // len(servers.each)))
        return live(ring, Mortal(world, servers), until, final=True, **options), servers

    return run_ranks(ranks, act, timeout=timedelta(seconds=60))


def whole(base: Path, machines=range(MACHINES)) -> Path:
    """All files of some machines in one folder, for tests that look at a run root; equal where two have one."""
    found: dict[str, bytes] = {}
    for number in machines:
        for key, data in root_at(base / f"machine{number}").tree().items():
            assert found.setdefault(key, data) == data, key
    together = base / f"together{next(_NUMBERS)}"
    for key, data in found.items():
        (together / key).parent.mkdir(parents=True, exist_ok=True)
        (together / key).write_bytes(data)
    return together


_NUMBERS = itertools.count()


def names(*batches: int, attempt: int = 1) -> list[str]:
    return [f"a{attempt:06d}-c{at // 4:010d}-m{at % 4:04d}" for at in batches]


def check_goes_on(base: Path, ranks: int, batches: int, *, machines=range(MACHINES)) -> None:
    """A start takes ``batches``, and ends as a job that was never interrupted."""
    found = [life for life, _ in results_of(job(base, batches + 5, ranks=ranks, machines=machines))]
    assert tuple(one.restored for one in found) == digests_at(ranks, batches)
    assert tuple(one.digest for one in found) == digests_at(ranks, batches + 5)
    together = whole(base, machines)
    assert committed(together)
    for name in committed(together):
        check_whole(together, name, ranks)


@pytest.mark.parametrize("gone", range(MACHINES))
@pytest.mark.parametrize("ranks", [3, 6])
def test_newest_checkpoint_is_taken_whichever_machine_is_replaced(tmp_path: Path, ranks: int, gone: int) -> None:
    results_of(job(tmp_path, 10, ranks=ranks))
    shutil.rmtree(tmp_path / f"machine{gone}")
    check_goes_on(tmp_path, ranks, 10)
    shutil.rmtree(tmp_path / f"machine{(gone + 1) % MACHINES}")  # the next one, once something was committed
    check_goes_on(tmp_path, ranks, 15)


@pytest.mark.parametrize("gone", range(MACHINES))
def test_newest_checkpoint_is_taken_by_the_machines_that_are_left(tmp_path: Path, gone: int) -> None:
    results_of(job(tmp_path, 10))
    shutil.rmtree(tmp_path / f"machine{gone}")
    left = [one for one in range(MACHINES) if one != gone]
    check_goes_on(tmp_path, 3, 10, machines=left)
    check_goes_on(tmp_path, 3, 15, machines=[*left[::-1], 4])


def test_two_machines_lost_before_a_commit_are_an_error_and_no_fresh_start(tmp_path: Path) -> None:
    results_of(job(tmp_path, 10))
    for gone in (0, 1):
        shutil.rmtree(tmp_path / f"machine{gone}")
    shards = [key for key in root_at(tmp_path / "machine2").tree() if key.endswith(".safetensors")]
    assert shards
    ended = job(tmp_path, 12)
    assert all("its documents are lost" in str(one.error) for one in ended)
    assert shards == [key for key in root_at(tmp_path / "machine2").tree() if key.endswith(".safetensors")]


def calls_of(base: Path, rank: int) -> int:
    """How many calls of the servers a rank makes from the start of a second attempt to its end."""
    results_of(job(base, 5))
    _, servers = results_of(job(base, 9))[rank]
    return sum(len(one.calls) for one in servers.each)


@pytest.mark.parametrize("action", ["kill", "error"])
@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.extended)])
def test_fault_at_any_call_and_then_any_machine_lost(tmp_path: Path, rank: int, action: str, request) -> None:
    """Each call of a rank fails or is its last one; after it, each machine in turn is lost."""
    count = calls_of(tmp_path / "count", rank) - 4 * MACHINES  # rank 0 looks for receipts more or less often
    assert count > 60
    every = 1 if "full" in request.config.option.markexpr else 7
    for nth in range(1, count + 1, every):
        base = tmp_path / f"{nth}"
        results_of(job(base, 5))
        fault = Fault(action, operations=EVERY, nth=nth)
        ended = job(base, 9, faults={rank: fault}, rank_patience=timedelta(seconds=0.5))
        assert fault.fired == 1, nth
        assert all(one.error is None or lost(one) for one in ended), nth
        reported = max([5, *(_batches(name) for one in ended if one.error is None for name in one.result[0].saved)])
        gone = nth % MACHINES
        shutil.rmtree(base / f"machine{gone}", ignore_errors=True)
        newest = max(map(_batches, committed(whole(base))))
        assert newest >= reported, nth
        check_goes_on(base, 3, newest)
        shutil.rmtree(base)


def _batches(name: str) -> int:
    return int(name[9:19]) * 4 + int(name[21:25])


@pytest.mark.parametrize("gone", range(MACHINES))
def test_ring_is_a_mirror_like_any_other(tmp_path: Path, gone: int) -> None:
    """The root is lost, and a machine of the ring behind it."""

    def act(world) -> Life:
        ring = Ring([LocalStorage(tmp_path / f"machine{one}") for one in range(MACHINES)])
        return live(LocalStorage(tmp_path / "root"), world, until, final=True, mirror=[Mirror(ring)])

    until = 10
    results_of(run_ranks(3, act, timeout=timedelta(seconds=60)))
    shutil.rmtree(tmp_path / "root")
    shutil.rmtree(tmp_path / f"machine{gone}")
    until = 14
    found = results_of(run_ranks(3, act, timeout=timedelta(seconds=60)))
    assert tuple(one.restored for one in found) == digests_at(3, 10)
    assert tuple(one.digest for one in found) == digests_at(3, 14)
    for place in (tmp_path / "root", whole(tmp_path)):
        check_whole(place, committed(place)[-1], 3)
