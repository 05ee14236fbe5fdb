"""Chooses saves and kills so that few lives cover much.

That is: in mid-cycle, in a later epoch that another one follows, at the end of an epoch, and twice in one epoch.

Guarantees: saves ascend strictly, each life has at most one, and a life is killed at its save or soon after. In a job
of many ranks, of three lives two lose one rank each and one loses all. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ckptkit.core.progress import Progress


@dataclass(frozen=True)
class PlannedKill:
    """Says where one life saves and is killed."""

    save: int  # micro-step after which it saves
    kill: int  # micro-step after which it is killed; the next life repeats what it did since the save


def victims(number: int, ranks: int) -> tuple[int, ...] | None:
    """Return which ranks the life with this ``number``, from 0, loses; None for all of them.

    One rank at a time, another one in each life, the last one first; in every third life all of them.
    """
    if ranks == 1 or number % 3 == 1:
        return None
    alone = number - (number + 1) // 3
    return ((alone - 1) % ranks,)


def plan_deaths(steps: Sequence[Progress], kills: int) -> list[PlannedKill]:
    """Choose where lives save and are killed, by the progress of the uninterrupted run after each of its micro-steps.

    Fewer than the wanted ``kills`` are returned if the run is too short.
    """
    last = len(steps)
    places = sorted(_places(steps, kills))
    return [PlannedKill(save, min(save + _redone(steps[save - 1], index), last)) for index, save in enumerate(places)]


def _redone(at: Progress, index: int) -> int:
    # At an epoch's end, kill at once: the next life must find the next epoch by itself. Elsewhere, repeat some steps.
    return 0 if _ends_epoch(at) else 1 + index % 2


def _places(steps: Sequence[Progress], kills: int) -> set[int]:
    last = len(steps)
    chosen: set[int] = set()
    epoch = -1  # of the last one

    def take(near: float, wanted: Callable[[Progress], bool]) -> None:
        nonlocal epoch
        candidates = [step for step in range(1, last) if step not in chosen and wanted(steps[step - 1])]
        if candidates and len(chosen) < kills:
            nearest = min(candidates, key=lambda step: abs(step - near))
            epoch = steps[nearest - 1].epoch
            chosen.add(nearest)

    take(last / 4, _mid_cycle)
    first, final = epoch, max((at.epoch for at in steps[:-1] if at.batch), default=0)
    # Some state begins to matter in a later epoch only, such as what a callback changes when an epoch begins. Some is
    # used at its end, such as the generator of the next order, so another epoch follows if possible.
    take(last * 3 / 4, lambda at: first < at.epoch < final and _mid_cycle(at))
    if len(chosen) < 2:
        take(last * 3 / 4, lambda at: at.epoch > first and _mid_cycle(at))
    inside = epoch
    take(last / 2, _ends_epoch)
    take(last / 2, lambda at: at.epoch == inside and _mid_cycle(at))
    take(last * 3 / 4, lambda at: at.at_boundary)
    for index in range(kills):
        take(last * (index + 1) / (kills + 1), lambda at: True)
    return chosen


def _mid_cycle(at: Progress) -> bool:
    if _ends_epoch(at):
        return False
    # A train cell that counts no cycles may still have some: such a number is mid-cycle for K = 2, 3, 4, 6, 8, ...
    if at.accumulation_steps == 1:
        return at.batches_delivered % 2 != 0 and at.batches_delivered % 3 != 0
    return not at.at_boundary


def _ends_epoch(at: Progress) -> bool:
    return at.batch == 0 and at.epoch > 0
