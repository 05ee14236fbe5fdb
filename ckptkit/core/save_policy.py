"""Defines when to save, as pure values combined with ``|``.

A policy reads only its arguments. It holds no counter, clock or path, so equal inputs give equal answers in every
process. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from ckptkit.core.progress import Progress
from ckptkit.errors import ResumeError


class SavePolicy(Protocol):
    """Decides whether a save is due between two micro-steps.

    A policy that never uses ``since_last_save`` may say so with an attribute ``by_clock`` that is False; in a job of
    many ranks it then needs no message between them.
    """

    def due(self, progress: Progress, since_last_save: timedelta) -> bool:
        """Return whether to save at ``progress``, ``since_last_save`` after the previous save began."""

    def __or__(self, other: SavePolicy) -> SavePolicy:
        """Return a policy that is due when either is."""
        return AnySave((self, other))


@dataclass(frozen=True)
class AnySave(SavePolicy):
    """Is due when any of ``policies`` is; the result of ``|``."""

    policies: tuple[SavePolicy, ...]

    @property
    def by_clock(self) -> bool:
        return any(getattr(policy, "by_clock", True) for policy in self.policies)  # one that does not say so counts

    def due(self, progress: Progress, since_last_save: timedelta) -> bool:
        return any(policy.due(progress, since_last_save) for policy in self.policies)

    def __or__(self, other: SavePolicy) -> SavePolicy:
        return AnySave((*self.policies, other))


@dataclass(frozen=True)
class SaveEvery(SavePolicy):
    """Saves at regular points; give one argument, or ``optimizer_steps`` and ``interval``.

    A save that is skipped because the previous one is still being written waits for the next multiple. In a job of many
    ranks ``interval`` is due at boundaries only, by the clock of rank 0; so it is beside ``optimizer_steps``.

    Args:
        optimizer_steps: Due right after a cycle whose number since epoch 0 is a multiple of this. Where a train cell
            other than `AccumulationTrainCell` does not tell its K, each batch counts as a cycle.
        micro_steps: Due after a micro-batch whose number since epoch 0 is a multiple of this, mid-cycle included.
        interval: Due at every micro-step that comes at least this long after the previous save began.
        overhead: Share of the time that saves may take; with costly saves, the manager makes ``interval`` longer.

    Raises:
        ValueError: If others are given, or one is not positive.
    """

    optimizer_steps: int | None = None
    micro_steps: int | None = None
    interval: timedelta | None = None
    overhead: float | None = None

    def __post_init__(self) -> None:
        given = [v for v in (self.optimizer_steps, self.micro_steps, self.interval) if v is not None]
        if len(given) != 1 and not (len(given) == 2 and self.micro_steps is None):
            raise ValueError(
                f"SaveEvery takes one of optimizer_steps, micro_steps and interval, or the first and the last; got "
                f"{len(given)}. Combine others with SaveEvery(...) | SaveEvery(...)."
            )
        for name, value in (("optimizer_steps", self.optimizer_steps), ("micro_steps", self.micro_steps)):
            if value is not None:
                require_positive(f"SaveEvery.{name}", value)
        if self.interval is not None and (not isinstance(self.interval, timedelta) or self.interval <= timedelta(0)):
            raise ValueError(
                f"SaveEvery.interval must be a positive timedelta, got {self.interval!r}: write "
                "SaveEvery(interval=timedelta(minutes=10))"
            )
        if self.overhead is not None:
            _require_share("SaveEvery", self.overhead)
            if self.interval is None:
                raise ValueError("SaveEvery: overhead bounds interval, which is not given")

    @property
    def by_clock(self) -> bool:
        """Whether the answer depends on a clock, so that ranks must agree on it."""
        return self.interval is not None

    def due(self, progress: Progress, since_last_save: timedelta) -> bool:
        """Return whether a save is due at ``progress``."""
        if self.optimizer_steps is not None:
            is_late = self.interval is not None and since_last_save >= self.interval
            is_boundary = progress.micro_step == 0 and progress.cycles > 0
            return is_boundary and (is_late or progress.cycles % self.optimizer_steps == 0)
        if self.micro_steps is not None:
            return progress.batches_delivered > 0 and progress.batches_delivered % self.micro_steps == 0
        assert self.interval is not None  # noqa: S101 - __post_init__ leaves no other case
        return since_last_save >= self.interval

    @staticmethod
    def auto(*, overhead: float = 0.01) -> SaveAuto:
        """Return a policy that chooses the interval itself, so that failures and saves together cost least.

        The manager measures what a save costs, and counts the failures in the run's own events, so `Saving.events` must
        be on. It chooses the interval by Young's and Daly's formula, in cycles, anew at each save and for all ranks at
        once; never shorter than the storage needs to write. The first save of a run comes after its first cycle.

        Args:
            overhead: Share of the time that saves may take as long as the run has not failed. After a failure they may
                take more where the work that failures destroy would cost more still.

        Raises:
            ValueError: If ``overhead`` is not between 0 and 1.
        """
        return SaveAuto(overhead)


@dataclass(frozen=True)
class SaveAuto(SavePolicy):
    """Is due at the boundary that the manager has chosen; the result of `SaveEvery.auto`."""

    overhead: float
    next_cycle: int | None = None  # since epoch 0; None before a manager uses it
    by_clock = False  # the manager reads the clock, and tells all ranks

    def __post_init__(self) -> None:
        _require_share("SaveEvery.auto", self.overhead)

    def due(self, progress: Progress, since_last_save: timedelta) -> bool:
        if self.next_cycle is None:
            raise ResumeError(
                "SaveEvery.auto has no interval: only the manager can choose it. Pass the policy as save= itself, or "
                "joined with others by |, and not inside a policy of your own"
            )
        return progress.at_boundary and progress.cycles >= self.next_cycle


def automatic(policy: SavePolicy) -> SaveAuto | None:
    """Return the `SaveAuto` in ``policy``, if it has one; of several, the one with the smallest overhead."""
    if isinstance(policy, SaveAuto):
        return policy
    parts = policy.policies if isinstance(policy, AnySave) else ()
    return min(filter(None, map(automatic, parts)), key=lambda part: part.overhead, default=None)


def due_from(policy: SavePolicy, cycle: int) -> SavePolicy:
    """Return ``policy`` with every `SaveAuto` in it due from that cycle on."""
    if isinstance(policy, SaveAuto):
        return replace(policy, next_cycle=cycle)
    if isinstance(policy, AnySave):
        return AnySave(tuple(due_from(part, cycle) for part in policy.policies))
    return policy


def stretched(policy: SavePolicy, stall_seconds: float) -> SavePolicy:
    """Return ``policy`` with each interval so long that saves of ``stall_seconds`` keep to its ``overhead``."""
    if isinstance(policy, AnySave):
        return AnySave(tuple(stretched(part, stall_seconds) for part in policy.policies))
    if isinstance(policy, SaveEvery) and policy.interval is not None and policy.overhead is not None:
        interval = timedelta(seconds=stall_seconds / policy.overhead)
        return replace(policy, interval=interval) if interval > policy.interval else policy
    return policy


def _require_share(what: str, value: float) -> None:
    if isinstance(value, bool) or not 0 < value < 1:
        raise ValueError(f"{what}: overhead is a share between 0 and 1, such as 0.01, got {value!r}")


def require_positive(what: str, value: int) -> None:
    """Raise ValueError, naming ``what``, unless ``value`` is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what} must be a whole number of at least 1, got {value!r}")
