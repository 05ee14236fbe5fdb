"""Two ranks, one of which dies at every call that it makes: never a commit without all parts, and no bit lost."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from support.runs.ranks import check_whole, committed, digests_at, job, live, lost
from support.runs.roots import Root
from support.thread_ranks import results_of, run_ranks

from ckptkit.testing.faults import MUTATING, Fault, FaultyStorage, Killed

SIZE = 2
FIRST, SECOND = 3, 6  # batches that the two lives train


def second(root: Root, **options: object):
    # Long enough for the slowest machine where nobody dies, short enough to be waited for where somebody does.
    return job(root, SIZE, SECOND, every=2, final=True, rank_patience=timedelta(milliseconds=300), **options)


def calls_of_second_life(root: Root) -> list[list]:
    """The calls of each rank, if nobody dies."""
    results_of(job(root, SIZE, FIRST))

    def run(world):
        storage = FaultyStorage(root.storage())
        live(storage, world, SECOND, every=2, final=True)
        return storage.calls

    return results_of(run_ranks(SIZE, run))


@pytest.mark.parametrize("rank", range(SIZE))
def test_a_rank_that_dies_at_any_call(kind: str, new_root: Callable[[], Root], rank: int) -> None:
    calls = calls_of_second_life(new_root())[rank]
    assert len(calls) > 15
    fired = 0
    for at in range(1, len(calls), 3 if kind == "local" else 15):  # over a network the same calls
        for when in ("before", "after") if calls[at].operation in MUTATING else ("before",):
            fault = Fault("kill", nth=at + 1, when=when)
            hold(new_root(), rank, fault)
            fired += fault.fired
    assert fired  # rank 0's polls vary in number, so its very last calls may never come


def hold(root: Root, rank: int, fault: Fault) -> None:
    """Let ``rank`` die of ``fault``, and then every rank start again."""
    results_of(job(root, SIZE, FIRST))
    before = committed(root)
    ended = second(root, faults={rank: fault})
    assert all(one.error is None or lost(one) for one in ended)
    assert isinstance(ended[rank].error, Killed) or not fault.fired
    after = committed(root)
    assert after[-1] >= before[-1]
    for name in after:
        check_whole(root, name, SIZE)
    lives = results_of(job(root, SIZE, SECOND, every=2, final=True))
    assert {one.checkpoint for one in lives} == {after[-1]}
    assert tuple(one.restored for one in lives) == digests_at(SIZE, lives[0].began)
    assert tuple(one.digest for one in lives) == digests_at(SIZE, SECOND)
