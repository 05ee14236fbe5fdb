"""What one rank concludes from the words of all, without a job around it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest

from ckptkit.core.placement import Box
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import leaf_of
from ckptkit.errors import ResumeError, StaleAttemptError
from ckptkit.manager.agreement import RankStatus, RankSync
from ckptkit.manager.preemption_schedule import EndSchedule
from ckptkit.run.attempt import RankFailure


@dataclass
class Saying:
    """A world in which the other ranks say what ``others`` makes of this one's word."""

    others: Callable[[str], list[str]]
    rank: int = 0
    size: int = 2
    gathers: int = field(default=0)

    def gather(self, message: str) -> list[str]:
        self.gathers += 1
        said = self.others(message)
        said.insert(self.rank, message)
        return said


def progress_at(micro_step: int, cycles: int = 3, k: int = 4) -> Progress:
    first = cycles * k
    return Progress(
        epoch=0,
        batch=first + micro_step,
        cycles=cycles,
        updates=cycles,
        micro_step=micro_step,
        accumulation_steps=k,
        batches_delivered=first + micro_step,
        cycle_first_batch=first,
    )


MINE = RankStatus(progress=progress_at(2), model="m", number=5)


def test_ranks_that_came_apart_all_stop():
    for theirs, error, message in [
        ({"progress": progress_at(3)}, ResumeError, "no longer in step"),
        ({"number": 6}, ResumeError, "no longer in step"),
        ({"model": "n"}, ResumeError, "another model"),
        ({"end": RankFailure.of(StaleAttemptError("overtaken"))}, StaleAttemptError, "overtaken"),
        ({"end": RankFailure.of(ValueError("NaN")), "number": 6}, ResumeError, "ValueError: NaN"),
    ]:
        for rank in (0, 1):
            other = MINE.model_copy(update=theirs).model_dump_json()
            with pytest.raises(error, match=message):
                RankSync(Saying(lambda _, other=other: [other], rank)).exchange_statuses(MINE, None)


def test_parts_cut_anew_are_compared_again():
    """As of a tensor that is placed otherwise in the middle of a training."""

    def leaves(offset, size):
        return [leaf_of("w", np.zeros(size), role="parameter", placement=Box((8,), (offset,)))]

    boxes = []
    theirs, peers = (RankSync(Saying(lambda _: [boxes[-1]])) for _ in range(2))
    theirs._world.others = lambda message: boxes.append(message) or [message]

    def compare(mine, other):
        said = [RankStatus(cuts=ranks.model_of(leaves)[1]) for ranks, leaves in ((peers, mine), (theirs, other))]
        with pytest.raises(ResumeError):  # only to learn what it says: alone it stores its part twice
            theirs.refuse_incomplete_cuts(said, other)
        peers.refuse_incomplete_cuts(said, mine)

    compare(leaves(0, 4), leaves(4, 4))
    gathers = peers._world.gathers
    compare(leaves(0, 4), leaves(4, 4))
    assert peers._world.gathers == gathers  # they are known
    for _ in range(2):  # what was refused is not known to be whole
        with pytest.raises(ResumeError, match="leave something out"):
            compare(leaves(0, 3), leaves(4, 4))


class Asked:
    """As `PreemptionRequest`, of a rank that has 60 s left."""

    is_watched = True

    def __init__(self, asked: bool) -> None:
        self.asked, self.why, self.dead_child = asked, "", ""

    def poll(self) -> bool:
        return self.asked

    def seconds_left(self) -> float:
        return 60.0

    def ask(self, why: str, dead_child: str = "") -> None:
        self.asked, self.why, self.dead_child = True, why, dead_child


def departure(world, *, asked: bool = False, in_flight: object = None, micro_step: float = 1.0, save: float = 10.0):
    seconds = iter([0.0, micro_step])
    outcomes = SimpleNamespace(durations=[timedelta(seconds=save), timedelta(seconds=1)], in_flight=in_flight)
    preemption = Asked(asked)
    schedule = EndSchedule(preemption, RankSync(world), outcomes, lambda: next(seconds))
    schedule.depart()
    schedule.arrive(4)
    return schedule, preemption


def sign(**values) -> str:
    """What another rank says; whoever leads decides by its own pace."""
    usual = {"asked": False, "left": "PT60S", "micro_step": "PT1S", "save": "PT10S", "next_in": 1}
    return json.dumps({**usual, **values})


def test_shortest_grace_of_all_ranks_and_what_is_left_to_do_decide():
    """Within 60 s: three micro-steps of a second, half as long again, and the longest of the last saves."""
    for theirs, mine, at, verdict in [
        ({"asked": True}, {}, 1, "finish the cycle"),
        ({"asked": True, "left": "PT17.9S"}, {}, 1, "save"),  # three micro-steps and a save of 10 s need 19.5 s
        ({"asked": True, "left": "PT20S"}, {}, 1, "finish the cycle"),
        ({"asked": True, "dead_child": "child process 7"}, {}, 1, "finish the cycle"),
        ({}, {}, 1, "train"),
        ({}, {"asked": True}, 1, "finish the cycle"),
        ({}, {"asked": True}, 0, "save"),  # at a boundary
        ({}, {"asked": True, "save": 20.0}, 1, "finish the cycle"),
        ({}, {"asked": True, "save": 20.0, "in_flight": object()}, 1, "save"),  # the one under way has to end first
        ({"left": "PT18S"}, {"asked": True, "micro_step": 0.5}, 1, "finish the cycle"),  # 17.25 s
        ({"left": "PT18S"}, {"asked": True, "micro_step": 0.9}, 1, "save"),  # 19.05 s
        ({"left": "PT18S"}, {"asked": True, "micro_step": 0.5, "save": 10.9}, 1, "save"),  # 18.6 s
    ]:
        made, preemption = departure(Saying(lambda _, theirs=theirs: [sign(**theirs)]), **mine)
        assert made.verdict(progress_at(at)) == verdict, (theirs, mine, at)
        assert preemption.why == ("rank 1 was asked to end" if theirs.get("asked") else "")
        assert preemption.dead_child == theirs.get("dead_child", "")


def test_rank_0_says_when_ranks_meet_again():
    """Here this one's micro-steps take 0.1 s, and the other's 0.33 s."""
    for rank, until in [(0, 10), (1, 3)]:
        world = Saying(lambda _: [sign(next_in=3)], rank)
        made, _ = departure(world, micro_step=0.1)
        for _ in range(until):
            assert made.verdict(progress_at(1)) == "train"
            assert world.gathers == 1
        made.verdict(progress_at(1))
        assert world.gathers == 2
