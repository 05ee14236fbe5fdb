"""Defines what an examination is asked for, what it reports, and how it fails.

Guarantees: plain values. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ckptkit.tools.doctor.causes import Diagnosis
from ckptkit.tools.doctor.compare import TraceDifference
from ckptkit.tools.doctor.lives.life_process import TrialLife
from ckptkit.tools.doctor.lost_values import owner_of, pattern_of


@dataclass(frozen=True)
class DoctorOptions:
    """Says how to examine."""

    steps: int = 24
    kills: int = 4  # how many lives are killed
    seed: int = 1  # seed of every life that begins the training; a life that resumes gets none, like a real restart
    time_limit: timedelta = timedelta(hours=1)
    # Limit for all lives together: fewer micro-steps and kills are done where all would take longer
    within: timedelta | None = None
    own_saves: bool = False  # whether to examine the script's own saves, too: by two more lives


@dataclass(frozen=True)
class Report:
    """Holds the result."""

    steps: int  # micro-steps of the uninterrupted run
    lives: tuple[TrialLife, ...]
    compared: int  # in all ranks, micro-steps that were compared with the first life's
    values: int  # digests in each of them
    difference: TraceDifference | None = None  # the first one, or None
    diagnosis: Diagnosis | None = None
    # Micro-steps whose reported loss differed in some life, while nothing that training depends on did
    other_losses: tuple[int, ...] = ()
    # Paths that a resume did not give back, or that were named as state that cannot be stored, although all that was
    # compared stayed equal
    notes: tuple[str, ...] = ()
    ranks: int = 1
    seconds: float = 0.0
    url: str = ""  # the run root that was followed, as the script names it
    others: tuple[str, ...] = ()  # further run roots that the script restored, which were not examined

    @property
    def stateful(self) -> dict[str, str]:
        """The object to give by name, since the difference follows from a part of it; by a name for it."""
        if self.difference is None or self.diagnosis is None or self.diagnosis.code != "forgotten-state":
            return {}
        owner = owner_of(self.diagnosis.where, self.difference.expected.unseen)
        return {owner.rpartition(".")[2]: owner} if owner else {}

    @property
    def ignore(self) -> list[str]:
        """What ``Training(ignore=...)`` should get, so that it is neither stored nor named."""
        return list(dict.fromkeys(map(pattern_of, self.notes)))

    @property
    def is_sound(self) -> bool:
        """Whether nothing differs."""
        return self.difference is None


class UnusableScriptError(Exception):
    """Raised if the script cannot be examined; says why and what to do."""


class FailedLifeError(Exception):
    """Raised if a life did not end as planned and no difference explains it; shows its last output."""

    def __init__(self, message: str, life: TrialLife) -> None:
        super().__init__(f"{message}. Its last output:\n{life.last_words()}")


def rank_in_words(rank: int | None) -> str:
    """Return what names a rank in front of something, such as ``rank 1: ``; empty in a job of one rank."""
    return "" if rank is None else f"rank {rank}: "


def failure_of(life: TrialLife) -> str:
    """Return how a life ended that did not end as planned."""
    unseeded = "; like a restart, it was started without the seeds that the doctor sets in the lives before a kill"
    hint = "" if life.seeded else unseeded
    if life.begun is None and life.unrestored is not None:
        return f"{life.name} could not begin: {life.unrestored}{hint}"
    behind = min(life.ranks, key=lambda rank: rank.last_step, default=None)
    if behind is not None:
        how = "did not finish in time" if life.exit_code is None else f"ended with exit code {life.exit_code}"
        return (
            f"{life.name} {how}; rank {behind.rank} did {behind.last_step} micro-steps. What the ranks printed may be "
            "where the launcher has put it, such as msrun's --log_dir"
        )
    if life.exit_code is None:
        return f"{life.name} did not finish in time and was stopped after {life.last_step} micro-steps"
    return f"{life.name} ended with exit code {life.exit_code} after {life.last_step} micro-steps{hint}"


def checked(first: TrialLife) -> int:
    """Return the last micro-step of the first life; raise UnusableScriptError if it shows none, or FailedLifeError."""
    if first.refused is not None:
        raise UnusableScriptError(f"the script cannot be examined: {first.refused}")
    if first.begun is None:
        if first.exit_code != 0:
            raise FailedLifeError(f"{failure_of(first)}; it had not reached a CheckpointCallback or manager yet", first)
        raise UnusableScriptError(
            "the script used no CheckpointCallback and no CheckpointManager. Add one, as in `ckpt.train(model, epochs, "
            "dataset)`, so that there is something to resume"
        )
    if not first.ended_as_planned:
        raise FailedLifeError(failure_of(first), first)
    unlike = next((rank for rank in first.ranks if rank.steps.keys() != first.steps.keys()), None)
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
