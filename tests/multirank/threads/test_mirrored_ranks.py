"""Jobs of many ranks with mirrors, as threads: each rank uploads its own part, and rank 0 commits at each mirror."""

import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import pytest
from support.options import grouped
from support.runs.ranks import CYCLE, PATIENCE, Life, Mortal, check_whole, committed, digests_at, new_run
from support.thread_ranks import Ended, RankLostError, results_of, run_ranks

import ckptkit as ck
from ckptkit.core import worker
from ckptkit.errors import ResumeError, StorageError
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage

HOMES = ("memory", "neighbour", "bucket")
RANKS = 3


@pytest.fixture(scope="module", autouse=True)
def _no_waiting():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(worker, "_give_way", lambda: None)
        yield


class Homes:
    """The storages of one rank."""

    def __init__(self, base: Path, faults=()) -> None:
        self.each = {home: FaultyStorage(LocalStorage(base / home)) for home in HOMES}
        for home, fault in faults:
            self.each[home].inject(fault)


def job(
    base: Path, until: int, *, ranks=RANKS, faults=None, final=True, mirrors=({}, {}), raises=None, **options
) -> list[Ended]:
    """A job whose ranks train up to ``until``; ``faults`` by rank: pairs of a home and a fault.

    Where rank 1 ``raises`` after so many batches, nobody waits for uploads before.
    """

    def act(world) -> tuple[Life, Homes]:
        homes = Homes(base, (faults or {}).get(world.rank, ()))
        root, *others = homes.each.values()
        world = Mortal(world, root)
        run = new_run(world)
        given = grouped(**{"when_busy": "wait", "rank_patience": PATIENCE, "keep": ck.KeepLatest(2), **options})
        mirror = [ck.Mirror(one, **how) for one, how in zip(others, mirrors, strict=True)]
        save = ck.SaveEvery(micro_steps=3)
        with ck.CheckpointManager(root, save=save, mirror=mirror, **given) as manager:
            point = manager.restore(run)
            settle(manager)
            life = Life(point.batches_delivered, point.checkpoint, run.digest())
            for _ in run.train_until(until):
                handle = manager.step(run)
                if handle is not None:
                    handle.exception()
                    if raises is None:
                        settle(manager)
                if world.rank == 1 and run.batches == raises:
                    raise ValueError("its own")
            if final:
                life.saved.append(manager.save_final(run))
        life.digest = run.digest()
        return life, homes

    return run_ranks(ranks, act, timeout=timedelta(seconds=60))


def settle(manager) -> None:
    for one in manager._setup.mirrors._uploads:
        one.settle(timedelta(seconds=60).total_seconds)


def lives(ended: list[Ended]) -> list[Life]:
    return [life for life, _ in results_of(ended)]


def names(*batches: int, attempt: int = 1) -> list[str]:
    return [f"a{attempt:06d}-c{at // CYCLE:010d}-m{at % CYCLE:04d}" for at in batches]


def test_every_home_holds_whole_checkpoints_of_all_ranks(tmp_path: Path) -> None:
    found = lives(job(tmp_path, 10))
    assert tuple(one.digest for one in found) == digests_at(RANKS, 10)
    for home in HOMES:
        assert committed(tmp_path / home) == names(9, 10)
        for name in committed(tmp_path / home):
            check_whole(tmp_path / home, name, RANKS)


def test_each_rank_uploads_its_own_part(tmp_path: Path) -> None:
    ended = results_of(job(tmp_path, 7))
    for home in HOMES[1:]:
        for rank, (_, homes) in enumerate(ended):
            written = [key for call in homes.each[home].calls if call.operation == "write" for key in call.keys]
            parts = {key.split("/")[2].removesuffix(".json") for key in written if "/rank-" in key}
            assert parts == {f"rank-{rank:05d}"}, (home, rank)
            made = [key for call in homes.each[home].calls if call.operation == "create" for key in call.keys]
            assert any(key.endswith("/COMMIT") for key in made) == (rank == 0)


def test_more_ranks_cost_no_rank_above_0_more_documents(tmp_path: Path) -> None:
    """Once its frozen weights are at a mirror, a rank reads its own document for an upload, and no other rank's."""
    for ranks in (2, 6):
        base = tmp_path / f"{ranks}"
        ended = results_of(job(base, 9, ranks=ranks, final=False))
        for name in names(6, 9):
            for rank, (_, homes) in enumerate(ended[1:], 1):
                calls = [call for call in homes.each["memory"].calls if call.operation == "read"]
                read = [key for call in calls for key in call.keys if key.startswith(f"checkpoints/{name}/rank-")]
                assert read == [f"checkpoints/{name}/rank-{rank:05d}.json"] * len(HOMES[1:])
            for home in HOMES:
                check_whole(base / home, name, ranks)


def test_whatever_homes_are_lost_every_rank_goes_on(tmp_path: Path) -> None:
    for ranks, lost in (2, ("memory", "neighbour")), (3, ("memory",)), (2, ("neighbour",)), (3, ("memory", "bucket")):
        base = tmp_path / f"{ranks} {lost}"
        results_of(job(base, 10, ranks=ranks))
        for home in lost:
            shutil.rmtree(base / home)
        found = lives(job(base, 14, ranks=ranks))
        assert {one.checkpoint for one in found} == set(names(10)), (ranks, lost)
        assert tuple(one.restored for one in found) == digests_at(ranks, 10)
        assert tuple(one.digest for one in found) == digests_at(ranks, 14)
        for home in HOMES:
            assert committed(base / home)[-1:] == names(14, attempt=2)
            for name in committed(base / home):
                check_whole(base / home, name, ranks)


def test_part_that_cannot_be_uploaded_leaves_the_one_before(tmp_path: Path) -> None:
    """The save is committed at the root, the next upload succeeds, and what was left half is no checkpoint."""
    for loser in range(RANKS):
        base = tmp_path / f"{loser}"
        fault = Fault("error", operations={"write"}, key=f"*{names(6)[0]}/rank-{loser:05d}*", times=None)
        found = lives(job(base, 9, faults={loser: [("bucket", fault)]}, final=False, keep=ck.KeepLatest(9)))
        assert fault.fired
        assert tuple(one.digest for one in found) == digests_at(RANKS, 9)
        assert committed(base / "memory") == committed(base / "neighbour") == names(3, 6, 9)
        assert committed(base / "bucket") == names(3, 9), loser
        for name in committed(base / "bucket"):
            check_whole(base / "bucket", name, RANKS)


def test_rank_that_dies_while_it_uploads_leaves_the_one_before(tmp_path: Path) -> None:
    for dies, home, when in (0, "bucket", "before"), (1, "neighbour", "during"), (2, "bucket", "after"):
        base = tmp_path / f"{dies}"
        results_of(job(base, 5))
        before = committed(base / home)
        fault = Fault("kill", operations={"write"}, key="checkpoints/a000002-c0000000001-m0002/*", when=when)
        ended = job(base, 9, faults={dies: [(home, fault)]}, final=False, rank_patience=timedelta(seconds=1))
        assert fault.fired == 1
        assert committed(base / home) == before
        assert ended[dies].error is not None
        for other in HOMES:
            for name in committed(base / other):
                check_whole(base / other, name, RANKS)
        found = lives(job(base, 12))
        newest = max(name for other in HOMES for name in committed(base / other))
        assert newest == names(12, attempt=3)[0]
        assert tuple(one.digest for one in found) == digests_at(RANKS, 12)
        assert committed(base / home)[-1] == newest


def test_mirror_that_one_rank_cannot_reach_is_away_for_all(tmp_path: Path) -> None:
    away = Fault("error", times=None)
    found = lives(job(tmp_path, 5, faults={1: [("neighbour", away)]}, mirrors=({"required": False}, {})))
    assert away.fired
    assert tuple(one.digest for one in found) == digests_at(RANKS, 5)
    assert committed(tmp_path / "neighbour") == []
    assert committed(tmp_path / "bucket")[-1:] == names(5)

    away = Fault("error", times=None)
    ended = job(tmp_path, 9, faults={1: [("bucket", away)]})
    assert all(isinstance(one.error, StorageError) and "rank 1:" in str(one.error) for one in ended)


def test_rank_that_raises_lets_no_upload_wait_for_it(tmp_path: Path) -> None:
    """Else the end would take several times the patience of the ranks."""
    results_of(job(tmp_path, 5, ranks=2))
    fault = Fault("kill", operations={"write"}, key="*a000002*/rank-00001*")
    begun = time.monotonic()
    ended = job(tmp_path, 9, ranks=2, faults={1: [("bucket", fault)]}, raises=7, rank_patience=timedelta(minutes=5))
    assert fault.fired == 1
    assert isinstance(ended[1].error, ValueError)
    assert isinstance(ended[0].error, RankLostError)
    assert time.monotonic() - begun < 60


class Neighbour(LocalStorage):
    """A folder of the same name on another machine of each rank."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.url = "s3://neighbour/run"


def test_ranks_whose_mirrors_differ_are_refused(tmp_path: Path) -> None:
    """As where rank 0 alone has one, or where they lie on different machines: no checkpoint would be whole there."""
    for mirror_of, says in (
        (lambda rank: tmp_path / "mirror" if rank == 0 else None, "rank 1 has the mirrors none"),
        (lambda rank: Neighbour(tmp_path / f"host-{rank}"), "different mirrors"),
    ):

        def act(world, mirror_of=mirror_of) -> None:
            ck.CheckpointManager(tmp_path / "root", mirror=mirror_of(world.rank)).restore(new_run(world))

        ended = run_ranks(2, act, timeout=timedelta(seconds=30))
        assert all(isinstance(one.error, ResumeError) and says in str(one.error) for one in ended)
        assert not (tmp_path / "mirror").exists()
    assert committed(tmp_path / "root") == []


@pytest.mark.parametrize("rank", range(2))
def test_failed_last_upload_leaves_no_rank_alone(tmp_path: Path, rank: int) -> None:
    """The other one does not wait for a rank that has raised."""
    refused = Fault("error", operations={"write", "create"}, key="checkpoints/*m0002*", times=None)
    ended = job(tmp_path, 2, ranks=2, faults={rank: [("bucket", refused)]})
    assert refused.fired > 0
    assert {type(one.error) for one in ended} <= {ck.SaveFailedError, type(None)}
    assert isinstance(ended[rank].error, ck.SaveFailedError)
    assert committed(tmp_path / "memory") == names(2)


def test_takeover_at_a_mirror_ends_all_ranks(tmp_path: Path) -> None:
    def taken_over() -> None:
        shutil.copy(tmp_path / "bucket/attempts/000001.json", tmp_path / "bucket/attempts/000002.json")

    takeover = Fault(taken_over, operations={"write"}, key="checkpoints/*m0003*")
    ended = job(tmp_path, 10, ranks=2, faults={0: [("bucket", takeover)]})
    assert takeover.fired == 1
    assert [type(one.error) for one in ended] == [ck.StaleAttemptError] * 2
    assert committed(tmp_path / "memory") == names(3)
