"""Defines what an examination is asked for, what it reports, and how it fails.

Guarantees: plain values. Any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from ckptkit.tools.doctor.compare import Difference
from ckptkit.tools.doctor.diagnose import Diagnosis
from ckptkit.tools.doctor.lives.trial import Life
from ckptkit.tools.doctor.promises import Continuation


@dataclass(frozen=True)
class Options:
    """Says how to examine.

    Attributes:
        steps: Micro-steps to do.
        kills: How many lives are killed.
        every_micro_step: Kill after each micro-step instead.
        seed: Seed of every life that begins the training; a life that resumes gets none, like a real restart.
        time_limit: Limit for each life.
        ahead: Whether the next life may import its libraries while one is running; see `modules_ahead`.
        within: Limit for all lives together: fewer micro-steps and kills are done where all would take longer.
        own_saves: Whether to examine the script's own saves, too: by two more lives.
        then: A command that continues the job on another number of ranks, which is examined, too; or None.
    """

    steps: int = 24
    kills: int = 4
    every_micro_step: bool = False
    seed: int = 1
    time_limit: timedelta = timedelta(hours=1)
    ahead: bool = True
    within: timedelta | None = None
    own_saves: bool = False
    then: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Report:
    """Holds the result.

    Attributes:
        steps: Micro-steps of the uninterrupted run.
        lives: Every life, in order.
        compared: In all ranks, micro-steps that were compared with the first life's.
        values: Digests in each of them.
        difference: The first one, or None.
        diagnosis: Diagnosis of the difference.
        other_losses: Micro-steps whose reported loss differed in some life, while nothing that training depends on did.
        notes: Values in no checkpoint that a resume changed, although all that was compared stayed equal.
        ranks: Number of ranks of the job.
        seconds: How long it took.
        continuation: How the job continued on another number of ranks; None if that was not examined.
        url: The run root that was followed, as the script names it.
        others: Further run roots at which the script trained meanwhile, and which were not known before.
        untrained: Run roots that it restored meanwhile, and at which it did no micro-step.
    """

    steps: int
    lives: tuple[Life, ...]
    compared: int
    values: int
    difference: Difference | None = None
    diagnosis: Diagnosis | None = None
    other_losses: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    ranks: int = 1
    seconds: float = 0.0
    continuation: Continuation | None = None
    url: str = ""
    others: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether nothing differs, and another number of ranks was not refused."""
        return self.difference is None and self.diagnosis is None


@dataclass(frozen=True)
class Reports:
    """Holds the results for each run root at which the script trains.

    Attributes:
        reports: Of the runs that were examined, in the order in which they began; all but the last are sound.
        left_out: Further run roots, which were not examined: something differs already, or there was no time left.
    """

    reports: tuple[Report, ...]
    left_out: tuple[str, ...] = ()

    @property
    def last(self) -> Report:
        """The last report, which is the one that is not sound if there is one."""
        return self.reports[-1]

    @property
    def untrained(self) -> tuple[str, ...]:
        """Run roots that were restored, and at which no micro-step was seen in any of the examinations."""
        trained = {url for one in self.reports for url in (one.url, *one.others)}
        return tuple(dict.fromkeys(url for one in self.reports for url in one.untrained if url not in trained))

    @property
    def is_sound(self) -> bool:
        """Whether all that were examined are sound."""
        return self.last.is_sound


class UnusableScriptError(Exception):
    """Raised if the script cannot be examined; says why and what to do."""


class FailedLifeError(Exception):
    """Raised if a life did not end as planned and no difference explains it; shows its last output."""

    def __init__(self, message: str, life: Life) -> None:
        super().__init__(f"{message}. Its last output:\n{life.last_words()}")


def ranks_in_words(number: int) -> str:
    """Return a number of ranks, such as ``2 ranks``."""
    return "1 rank" if number == 1 else f"{number} ranks"


def rank_in_words(rank: int | None) -> str:
    """Return what names a rank in front of something, such as ``rank 1: ``; empty in a job of one rank."""
    return "" if rank is None else f"rank {rank}: "


def failure_of(life: Life) -> str:
    """Return how a life ended that did not end as planned."""
    if life.begun is None and life.unrestored is not None:
        return f"{life.name} could not begin: {life.unrestored}"
    behind = min(life.ranks, key=lambda one: one.last_step, default=None)
    if behind is not None:
        how = "did not finish in time" if life.exit_code is None else f"ended with exit code {life.exit_code}"
        return (
            f"{life.name} {how}; rank {behind.rank} did {behind.last_step} micro-steps. What the ranks printed may be "
            "where the launcher has put it, such as msrun's --log_dir"
        )
    if life.exit_code is None:
        return f"{life.name} did not finish in time and was stopped after {life.last_step} micro-steps"
    restart = "; it was started like a restart, without the seeds that the doctor sets in the earlier lives"
    return (
        f"{life.name} ended with exit code {life.exit_code} after {life.last_step} micro-steps"
        f"{'' if life.seeded else restart}"
    )


def checked(first: Life, others: Sequence[str] = ()) -> int:
    """Return the last micro-step of the first life, which did not follow the runs at ``others``.

    Raises:
        UnusableScriptError: If the life shows nothing.
        FailedLifeError: If it failed.
    """
    if first.refused is not None:
        raise UnusableScriptError(f"the script cannot be examined: {first.refused}")
    if first.begun is None:
        if first.exit_code != 0:
            raise FailedLifeError(f"{failure_of(first)}; it had not reached a CheckpointCallback or manager yet", first)
        if others:
            raise UnusableScriptError(
                f"this time, the script trained at {' and '.join(others)} only. Let it train at the same run roots at "
                "every start, or examine each training by a command of its own"
            )
        raise UnusableScriptError(
            "the script used no CheckpointCallback and no CheckpointManager. Add one, as in `ckpt.train(model, epochs, "
            "dataset)`, so that there is something to resume"
        )
    if not first.ended_as_planned:
        raise FailedLifeError(failure_of(first), first)
    unlike = next((one for one in first.ranks if one.steps.keys() != first.steps.keys()), None)
    if unlike is not None:
        raise UnusableScriptError(
            f"rank {unlike.rank} called CheckpointManager.step after {len(unlike.steps)} micro-steps, and rank 0 after "
            f"{len(first.steps)}. Call it in every rank, after the same micro-steps"
        )
    if first.last_step < 2 or len(first.steps) != first.last_step:
        raise UnusableScriptError(
            f"the script called CheckpointManager.step after {len(first.steps)} micro-steps, and the last one was "
            f"number {first.last_step}. Call it after every micro-step, and let the script train at least two"
        )
    return first.last_step
