"""Chooses saves and kills so that few lives cover much.

That is: in mid-cycle, in a later epoch that another one follows, at the end of an epoch, and twice in one epoch.

Guarantees: saves ascend strictly, each life has at most one, and a life is killed at its save or soon after. In a job
of many ranks, of three lives two lose one rank each and one loses all. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ckptkit.core.progress import Progress
from ckptkit.core.rescale import fold_progress
from ckptkit.errors import ResumeError
from ckptkit.tools.doctor.disagreement import Recording

_NOTHING = Recording()


@dataclass(frozen=True)
class Death:
    """Says where one life saves and is killed.

    Attributes:
        save: Micro-step after which it saves.
        kill: Micro-step after which it is killed; the next life repeats what it did since the save.
    """

    save: int
    kill: int


@dataclass(frozen=True)
class Part:
    """Says what one life has to do.

    Attributes:
        words: Description, for people.
        root: Name of the folder that takes the place of the script's root.
        stop: As for `LifePlan`; so are enough, own_saves and kill_when_saved.
        death: Where it saves and is killed, or None.
        begun: The micro-step after which it begins.
        then: The same of the life after it; None after the last one.
        who: The ranks that are killed; None for all.
        recording: What it records.
        saves: Where else it saves.
        command: Another command than that of the examination, which starts another number of ranks; or None.
        changes_ranks: As for `LifePlan`.
        seeded: Whether it is seeded although it resumes.
    """

    words: str
    root: str
    stop: int
    death: Death | None = None
    begun: int = 0
    then: int | None = None
    enough: float | None = None
    own_saves: bool = False
    kill_when_saved: bool = False
    who: tuple[int, ...] | None = None
    recording: Recording = _NOTHING
    saves: tuple[int, ...] = ()
    command: tuple[str, ...] | None = None
    changes_ranks: bool = False
    seeded: bool = False

    @property
    def every_save(self) -> tuple[int, ...]:
        """The micro-steps after which it saves."""
        planned = {*self.saves, self.death.save if self.death else self.recording.save}
        return tuple(sorted(planned - {0}))


def victims(number: int, ranks: int) -> tuple[int, ...] | None:
    """Return which ranks the life with this ``number``, from 0, loses; None for all of them.

    One rank at a time, another one in each life, the last one first; in every third life all of them.
    """
    if ranks == 1 or number % 3 == 1:
        return None
    alone = number - (number + 1) // 3
    return ((alone - 1) % ranks,)


def plan_deaths(steps: Sequence[Progress], kills: int, *, every_micro_step: bool = False) -> list[Death]:
    """Choose where lives save and are killed.

    Args:
        steps: Progress of the uninterrupted run after each of its micro-steps.
        kills: How many are wanted; fewer are returned if the run is too short.
        every_micro_step: Choose one after each micro-step but the last instead.
    """
    last = len(steps)
    if every_micro_step:
        return [Death(step, step) for step in range(1, last)]
    places = sorted(_places(steps, kills))
    return [Death(save, min(save + _redone(steps[save - 1], index), last)) for index, save in enumerate(places)]


def plan_changes(steps: Sequence[Progress], ranks: int, onto: int) -> list[int]:
    """Choose where a run of ``ranks`` continues on ``onto``: at a boundary, and in the middle of a cycle if possible.

    An update follows each place, and at least two micro-steps of the new job.

    Args:
        steps: Progress of the uninterrupted run after each of its micro-steps.
        ranks: Its number of ranks.
        onto: The other number.

    Raises:
        ResumeError: If no boundary can be converted; says for which numbers the first one can be.
    """
    last = len(steps)

    def fits(step: int) -> bool:
        followed = any(one.at_boundary for one in steps[step:])
        if not followed or last * ranks // onto - step * ranks // onto < 2:
            return False
        try:
            fold_progress(steps[step - 1], ranks, onto)
        except ResumeError:
            return False
        return True

    boundaries = [step for step in range(1, last) if steps[step - 1].at_boundary and fits(step)]
    if not boundaries:
        for one in steps:
            if one.at_boundary:
                fold_progress(one, ranks, onto)
        return []
    inside = [step for step in range(1, last) if _mid_cycle(steps[step - 1]) and fits(step)]
    inside = [step for step in inside if steps[step - 1].accumulation_steps > 1]
    chosen = [min(boundaries, key=lambda step: abs(step - last / 3))]
    return [*chosen, min(inside, key=lambda step: abs(step - last / 2))] if inside else chosen


def _redone(at: Progress, index: int) -> int:
    # At an epoch's end, kill at once: the next life must find the next epoch by itself. Elsewhere, repeat some steps.
    return 0 if _ends_epoch(at) else 1 + index % 2


def _places(steps: Sequence[Progress], kills: int) -> set[int]:
    last = len(steps)
    chosen: set[int] = set()
    epoch = -1  # of the last one

    def take(near: float, wanted: Callable[[Progress], bool]) -> None:
        nonlocal epoch
        found = [step for step in range(1, last) if step not in chosen and wanted(steps[step - 1])]
        if found and len(chosen) < kills:
            nearest = min(found, key=lambda step: abs(step - near))
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
