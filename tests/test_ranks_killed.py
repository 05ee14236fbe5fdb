"""Two ranks, one of which dies at every call that it makes: never a commit without all parts, and no bit lost."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from ranks.job import check_whole, committed, digests_at, job, live, lost

from ckptkit.storage.local import LocalStorage
from ckptkit.testing.faults import MUTATING, Fault, FaultyStorage, Killed
from ckptkit.testing.ranks import results_of, run_ranks

SIZE = 2
FIRST, SECOND = 3, 8  # batches that the two lives train


def _life(root: Path, **options: object):
    # Long enough for the slowest machine where nobody dies, short enough to be waited for where somebody does.
    return job(root, SIZE, SECOND, every=2, final=True, rank_patience=timedelta(milliseconds=300), **options)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[list]:
    """The calls of each rank in the second life, if nobody dies."""
    root = tmp_path_factory.mktemp("counted")
    results_of(job(root, SIZE, FIRST))

    def run(world):
        storage = FaultyStorage(LocalStorage(root))
        live(storage, world, SECOND, every=2, final=True)
        return storage.calls

    return results_of(run_ranks(SIZE, run))


MOST_CALLS = 90  # of either rank; the test of this name holds that it is enough


def test_every_call_is_tried(calls: list[list]) -> None:
    assert 20 < max(map(len, calls)) <= MOST_CALLS


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("rank", range(SIZE))
@pytest.mark.parametrize("nth", range(1, MOST_CALLS + 1))
def test_a_rank_that_dies_at_this_call(tmp_path: Path, calls: list[list], rank: int, nth: int, when: str) -> None:
    if nth > len(calls[rank]):
        return  # this rank makes fewer calls than the other
    if when == "after" and calls[rank][nth - 1].operation not in MUTATING:
        return  # a reply that is lost together with its reader changes nothing
    results_of(job(tmp_path, SIZE, FIRST))
    before = committed(tmp_path)
    fault = Fault("kill", nth=nth, when=when)
    ended = _life(tmp_path, faults={rank: fault})
    assert fault.fired <= 1  # rank 0's polls vary in number, so the last ones may never come
    assert all(one.error is None or lost(one) for one in ended)
    after = committed(tmp_path)
    assert after
    assert after[-1] >= before[-1]
    for name in after:
        check_whole(tmp_path, name, SIZE)
    lives = results_of(job(tmp_path, SIZE, SECOND, every=2, final=True))
    assert {one.checkpoint for one in lives} == {after[-1]}
    assert tuple(one.restored for one in lives) == digests_at(SIZE, lives[0].began)
    assert tuple(one.digest for one in lives) == digests_at(SIZE, SECOND)
    assert fault.fired or isinstance(ended[rank].error, type(None) | Killed)
