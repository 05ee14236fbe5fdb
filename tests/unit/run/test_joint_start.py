"""A start of many ranks: what one of them says decides for all, and each gets its own part."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from support.runs.dict_storage import DictStorage
from support.runs.rank_files import ATTEMPT, PROGRESS, leaf, opened, write_ranks
from support.thread_ranks import results_of, run_ranks

from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, ResumeError
from ckptkit.errors import StateMismatchError as Mismatch
from ckptkit.format.layout import attempt_key
from ckptkit.run.attempt import Opened, follow, lead

CORRUPT, GONE, MISMATCH, OTHER = CorruptCheckpointError, CheckpointNotFoundError, Mismatch, RuntimeError


class State:
    def __init__(self, error: Exception | None = None, progress=PROGRESS) -> None:
        self.error, self.given, self._progress = error, [], progress

    def apply(self, contents) -> None:
        if self.error is not None:
            raise self.error
        self.given.append(contents)

    def begin(self, root) -> None:
        self.given.append(root)

    def progress(self):
        return self._progress


def checkpoint(ranks: int) -> DictStorage:
    leaves = [[leaf("own", np.full(3, rank), "per_rank")] for rank in range(ranks)]
    return write_ranks(leaves, states=[{"user": {"rank": rank}} for rank in range(ranks)])


def take(storage):
    return lambda leader: Opened(ATTEMPT, leader.take(storage, opened(storage), lambda count: None))


def start(storages, states, open_it):
    def act(world):
        storage, state = storages[world.rank], states[world.rank]
        return lead(world, [storage], state, open_it) if world.rank == 0 else follow(world, [storage], state)

    return run_ranks(len(states), act, timeout=timedelta(seconds=30))


def test_gravest_error_of_any_rank_ends_all():
    """Its own traceback shows a rank what went wrong; the others have the words."""
    storage = checkpoint(3)
    for errors, kind, said in [
        ([None, CORRUPT, MISMATCH], MISMATCH, 2),
        ([CORRUPT, None, MISMATCH], MISMATCH, 2),
        ([CORRUPT, GONE, None], GONE, 1),
        ([GONE, CORRUPT, None], GONE, 0),
        ([None, CORRUPT, OTHER], ResumeError, 2),
        ([None, CORRUPT, CORRUPT], CORRUPT, 1),
        ([OTHER, None, None], ResumeError, 0),
    ]:
        states = [State(error and error(f"said by {rank}")) for rank, error in enumerate(errors)]
        for rank, end in enumerate(start([storage] * len(states), states, take(storage))):
            causes = [end.error, end.error.__cause__]
            if rank == said:
                assert states[said].error in causes
                continue
            assert states[said].error not in causes
            assert type(end.error) is kind
            assert f"rank {said}: " in str(end.error)
            assert f"said by {said}" in str(end.error)


def test_ranks_that_see_another_root_or_are_elsewhere_are_refused():
    storage, elsewhere = checkpoint(3), checkpoint(3)
    elsewhere.files[attempt_key(1)] = b"{}"
    for rank, ended in enumerate(start([storage, elsewhere, storage], [State()] * 3, take(storage))):
        assert "rank 0 opened attempt 1" in str(ended.error)
        assert str(ended.error).startswith("rank 1: ") is (rank != 1)
    ahead = replace(PROGRESS, epoch=1)
    for ended in start([storage] * 3, [State(), State(), State(progress=ahead)], take(storage)):
        assert isinstance(ended.error, ResumeError)
        assert "the ranks do not agree on the position of the run" in str(ended.error)
        assert f"Rank 2: {ahead}" in str(ended.error)


@pytest.mark.parametrize(("before", "now", "homes"), [(2, 5, [0, 1, 0, 1, 0]), (3, 2, [0, 1])])
def test_each_rank_takes_the_part_of_its_home(before, now, homes):
    storage = checkpoint(before)
    states = [State() for _ in range(now)]
    results = results_of(start([storage] * len(states), states, take(storage)))
    assert [ended.contents.state["user"]["rank"] for ended in results] == homes
    assert [int(state.given[0].tensors["own"][0]) for state in states] == homes
    assert [ended.document for ended in results] == [ATTEMPT] * now


def test_fresh_start_after_failed_take_has_no_contents():
    storage = checkpoint(2)

    def open_it(leader):
        with pytest.raises(CorruptCheckpointError, match="bad here"):
            leader.take(storage, opened(storage), lambda count: None)
        leader.begin("root")
        return Opened(ATTEMPT, None)

    states = [State(CorruptCheckpointError("bad here")), State()]
    assert [ended.contents for ended in results_of(start([storage] * 2, states, open_it))] == [None, None]
    assert len(states[1].given) == 2
