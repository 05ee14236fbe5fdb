"""Decides the K with which a restored run continues, also with another number of ranks.

Guarantees: changes nothing; a disagreement raises and names both sides. Ranks x accumulation steps x micro-batch stays
the same. A script may give K for the world that it is started in, or for the one in which its run began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckptkit.core.accumulation import AccumulationSchedule
from ckptkit.core.contents import Contents
from ckptkit.core.progress import Progress
from ckptkit.core.text import some
from ckptkit.errors import ResumeError
from ckptkit.mindspore.train.cell import CycleCounters


def check_same_training(stored: str, recorded: Mapping[str, Any] | None, mine: Mapping[str, Any] | None) -> None:
    """Raise ResumeError if the train cell accumulates in another way than the one that ``stored`` names.

    ``recorded`` and ``mine`` describe the two ways; None for a cell that is not an `AccumulationTrainCell`.
    """
    if (recorded is None) != (mine is None):
        raise ResumeError(
            f"{stored} was taken {'without' if recorded is None else 'of'} an "
            f"AccumulationTrainCell, and this training is {'without' if mine is None else 'of'} one. Train with the "
            "same kind of cell, or start under another root."
        )
    if recorded is None or mine is None:
        return
    for option in mine.keys() & recorded.keys() - {"steps"}:
        if recorded[option] != mine[option]:
            raise ResumeError(
                f"{stored} was taken with {option}={recorded[option]!r}, this train cell has {mine[option]!r}. "
                f"Build it with {option}={recorded[option]!r}, or start under another root."
            )


def check_cycle(
    stored: str,
    counts: Progress | CycleCounters,
    recorded: Mapping[str, Any] | None,
    schedule: AccumulationSchedule,
    *,
    may_change: bool,
) -> int:
    """Return K at which the running cycle ends; raise ResumeError if K or its schedule changed and may not.

    A changed K takes effect at the next boundary, which may be the current position. ``stored`` names the saved cell.
    """
    in_force, wanted = counts.accumulation_steps, schedule.at(counts.updates)
    before, now = None if recorded is None else recorded["steps"], schedule.recorded()
    if in_force == wanted and (before is None or now is None or before == now):
        return in_force
    if not may_change:
        raise ResumeError(
            f"{stored} was taken with accumulation_steps={words_of_steps(before, in_force)}, "
            f"this train cell has {words_of_steps(now, wanted)}. "
            f"{_as_before(words_of_steps(before, in_force), schedule, is_function=before is None and now is None)}, or "
            'pass training=ckptkit.Training(on_k_change="next_cycle") to end the running cycle with the old ones and '
            "continue with the new ones."
        )
    return in_force if counts.micro_step else wanted


def _as_before(steps: str, schedule: AccumulationSchedule, *, is_function: bool) -> str:
    """Return the advice to give ``schedule`` the K that it had, in the words of ``steps``."""
    if not is_function:
        return f"Build it with accumulation_steps={steps}"
    names = schedule.depends_on()
    return (
        "A function of K is asked before a restore sets anything, and must give the same K for the same number of "
        f"updates at each start{f'; this one also depends on {some(names)}' if names else ''}. Let it depend on the "
        "number of updates alone"
    )


def words_of_steps(recorded: Sequence[Sequence[int]] | None, in_force: int) -> str:
    """Return a schedule as a user would write it; for a function only its current K."""
    if recorded is None:
        return f"{in_force} at this step"
    if len(recorded) == 1:
        return str(recorded[0][1])
    return "{" + ", ".join(f"{first}: {k}" for first, k in recorded) + "}"


@dataclass(frozen=True)
class Worlds:
    """Holds the numbers of ranks that made the checkpoint, of this job, and with which the run began."""

    before: int
    now: int
    first: int


def schedule_in(
    contents: Contents, recorded: Sequence[tuple[int, int]] | None, given: AccumulationSchedule, worlds: Worlds
) -> AccumulationSchedule | None:
    """Return the schedule to continue with: ``given``, or ``given`` folded from the run's first world; else None.

    ``contents`` are as they are in this world; ``recorded`` is the schedule of the checkpoint, in its world, or None
    for a function. ResumeError if neither fits and the checkpoint is of another world.
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
