"""Converts a checkpoint to another number of ranks, and decides the accumulation steps to continue with.

Guarantees: ranks x accumulation steps x micro-batch stays the same, or the restore is refused with the numbers. A
script may give K for the world that it is started in, or, as a constant, for the world in which its run began.
Changes nothing. Main thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckptkit.checkpoint.resharded import folded
from ckptkit.core.accumulation import AccumulationSchedule
from ckptkit.core.contents import Contents
from ckptkit.core.process_group import World
from ckptkit.core.progress import Progress
from ckptkit.errors import ResumeError
from ckptkit.mindspore.state.compatibility import words_of_steps

_log = logging.getLogger("ckptkit")


@dataclass(frozen=True)
class Worlds:
    """Holds the numbers of ranks in the life of a run.

    Attributes:
        before: Number that made the checkpoint.
        now: Number in this job.
        first: Number with which the run began.
    """

    before: int
    now: int
    first: int


def in_this_world(contents: Contents, world: World, recorded: Mapping[str, Any] | None, *, elastic: bool) -> Contents:
    """Return ``contents`` converted for a rank of ``world``; unchanged if the checkpoint has as many ranks.

    Args:
        contents: Those of the old rank that this one takes over.
        world: World of this job.
        recorded: How the train cell accumulated; None for a cell that is not an `AccumulationTrainCell`.
        elastic: Whether another number of ranks is allowed.

    Raises:
        ResumeError: If it is not allowed, or a converted number would not be whole.
    """
    if contents.world_size == world.size:
        return contents
    if not elastic:
        raise ResumeError(
            f"the checkpoint {contents.checkpoint} was made by {contents.world_size} ranks, this job has "
            f"{world.size}. Start {contents.world_size} ranks, or pass ranks=ckptkit.Ranks(elastic=True) to continue "
            f"with {world.size}, which keeps ranks x accumulation steps x micro-batch"
        )
    if recorded is None and not contents.progress.at_boundary:
        raise ResumeError(
            f"the checkpoint {contents.checkpoint} is in the middle of a cycle of a train cell that is not an "
            "AccumulationTrainCell, so it is unknown what it accumulated. Continue with "
            f'{contents.world_size} ranks, or from a checkpoint at a boundary (Saving(mid_cycle="align"))'
        )
    return folded(contents, world.size, world.rank, [k for _, k in (recorded or {}).get("steps") or ()])


def schedule_in(
    contents: Contents, recorded: Sequence[tuple[int, int]] | None, given: AccumulationSchedule, worlds: Worlds
) -> AccumulationSchedule | None:
    """Return the schedule to continue with: ``given``, or ``given`` folded from the run's first world; else None.

    Args:
        contents: As they are in this world.
        recorded: The schedule of the checkpoint, in its world; None for a function.
        given: The schedule in the script.
        worlds: Numbers of ranks of the run.

    Raises:
        ResumeError: If neither fits and the checkpoint is of another world.
    """
    # Cannot raise: the same numbers were folded before, with the progress.
    before = None if recorded is None else AccumulationSchedule(dict(recorded))
    wanted = None if before is None else before.folded(worlds.before, worlds.now).recorded()
    for schedule in _readings(given, worlds):
        if _fits(schedule, contents.progress, wanted):
            return schedule
    if worlds.before == worlds.now:
        return None
    k = contents.progress.accumulation_steps
    raise ResumeError(
        f"the checkpoint {contents.checkpoint} was made by {worlds.before} ranks with accumulation_steps="
        f"{words_of_steps(recorded, k * worlds.now // worlds.before)}, which is "
        f"{words_of_steps(wanted, k)} for {worlds.now} ranks; this train cell has "
        f"{words_of_steps(given.recorded(), given.at(contents.progress.updates))}. Build it with "
        f"{words_of_steps(wanted, k)}"
        + ("" if worlds.first == worlds.now else f", or with those of the {worlds.first} ranks that the run began with")
        + "; to change the batch of an update, resume once as it was, and then with on_k_change"
    )


def tell(before: Contents, after: Contents, worlds: Worlds, rank: int, *, positioned: bool) -> None:
    """Log what was folded, and what of it is not exact."""
    was, progress = before.progress, after.progress
    _log.warning(
        "%s was made by %d ranks and continues with %d: accumulation steps %d -> %d, micro-step %d -> %d, batches "
        "%d -> %d, so an update sees the same %d micro-batches. %s Not exact: what each rank has of its own, such "
        "as BatchNorm statistics and random state, comes from rank %d here (rank %% %d), so that %s%s.",
        *(after.checkpoint, worlds.before, worlds.now, was.accumulation_steps, progress.accumulation_steps),
        *(was.micro_step, progress.micro_step, was.batches_delivered, progress.batches_delivered),
        worlds.now * progress.accumulation_steps,
        "Gradients are summed in another order, so updates are equal up to floating-point order and rounding"
        + (", and so are the accumulators, whose sum over the ranks is kept." if progress.micro_step else "."),
        *(rank % worlds.before, worlds.before),
        "several ranks begin with the same state"
        if worlds.now > worlds.before
        else "the state of the others is dropped",
        "" if positioned else "; and the data, which the loop positions itself",
    )


def _readings(given: AccumulationSchedule, worlds: Worlds) -> list[AccumulationSchedule]:
    readings = [given]
    if worlds.first != worlds.now:
        try:
            readings.append(given.folded(worlds.first, worlds.now))
        except ValueError:
            return readings  # it does not fold: it is not for the first world, or the run began with another one
    return readings


def _fits(schedule: AccumulationSchedule, progress: Progress, wanted: list[list[int]] | None) -> bool:
    try:
        k = schedule.at(progress.updates)
    except ValueError:
        return False  # a folded function, whose K is not whole at this step
    now = schedule.recorded()
    return k == progress.accumulation_steps and (wanted is None or now is None or now == wanted)
