"""Computes accumulation steps K: of a cycle, for a batch size, and for another number of ranks.

K depends on the optimizer step alone, so that a resumed run gets the same K; a user's function is trusted to do so. A
run on N ranks that goes on with M keeps the micro-batches of all ranks together, in a cycle, in an epoch and since it
began, or is refused with the numbers of ranks for which that is possible. Pure values, any thread.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, TypeAlias

from ckptkit.core.progress import Progress
from ckptkit.errors import ResumeError

_SHOWN = 12  # numbers of ranks, in a message

AccumulationSteps: TypeAlias = int | Mapping[int, int] | Callable[[int], int]


class AccumulationSchedule:
    """Gives K for every cycle.

    ``steps`` is an int; or a mapping from an optimizer step to the K in force from there on, with 0 among its keys; or
    a function from the optimizer step to K. ``given`` is the user's schedule that this one was folded from, or itself.
    """

    def __init__(self, steps: AccumulationSteps) -> None:
        self._function = steps if callable(steps) else None
        self._from: list[tuple[int, int]] = []
        if not callable(steps):
            entries = steps if isinstance(steps, Mapping) else {0: steps}
            for at, k in entries.items():
                self._from.append((_whole(at, 0, "a step of the schedule"), _whole(k, 1, "accumulation_steps")))
            self._from.sort()
            if not self._from or self._from[0][0] != 0:
                raise ValueError(f"the schedule of accumulation_steps must give K for step 0, got {entries!r}")
        self.given = self
        self.at(0)

    def folded(self, ranks: int, onto: int) -> AccumulationSchedule:
        """Convert this schedule for ``ranks`` into one for ``onto``; a mapping at once, a function at each use."""
        function = self._function
        if function is not None:
            folded = AccumulationSchedule(lambda step: fold_steps(_answer(function, step), ranks, onto))
        else:
            folded = AccumulationSchedule({first: fold_steps(k, ranks, onto) for first, k in self._from})
        folded.given = self.given
        return folded

    def at(self, optimizer_step: int) -> int:
        """Return K of the cycle that begins after ``optimizer_step`` updates."""
        if self._function is not None:
            return _answer(self._function, optimizer_step)
        return next(k for first, k in reversed(self._from) if first <= optimizer_step)

    def depends_on(self) -> list[str]:
        """Return the names of variables that a function reads by itself; functions, classes and modules are none."""
        function = self.given._function
        if not isinstance(function, types.FunctionType):
            return []
        read = inspect.getclosurevars(function)
        values = {**read.globals, **read.nonlocals}
        return [name for name, value in values.items() if not (callable(value) or isinstance(value, types.ModuleType))]

    def recorded(self) -> list[list[int]] | None:
        """Return plain values to compare after a restart; None for a function."""
        return None if self._function is not None else [list(pair) for pair in self._from]


def _answer(function: Callable[[int], int], optimizer_step: int) -> int:
    return _whole(function(optimizer_step), 1, f"accumulation_steps({optimizer_step})")


def _whole(value: object, least: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an int of at least {least}, got {value!r}")
    return value


@dataclass(frozen=True, order=True)
class AccumulationPlan:
    """Describes one way to make up a batch.

    Attributes:
        accumulation_steps: K.
        world_size: Number of ranks, each with its own micro-batches.
        micro_batch: Samples per rank and micro-step.
    """

    accumulation_steps: int
    world_size: int
    micro_batch: int

    @property
    def effective_batch(self) -> int:
        """Samples per optimizer step, over all ranks."""
        return self.accumulation_steps * self.world_size * self.micro_batch

    def __str__(self) -> str:
        return (
            f"accumulation_steps={self.accumulation_steps} x {self.world_size} ranks x micro-batch "
            f"{self.micro_batch} = {self.effective_batch}"
        )


def plan_accumulation(global_batch: int, world_size: int, micro_batch: int) -> AccumulationPlan:
    """Return the plan whose effective batch is exactly ``global_batch``.

    Args:
        global_batch: Samples that one optimizer step should see, over all ranks.
        world_size: Number of ranks.
        micro_batch: Samples per rank and micro-step, limited by memory.

    Raises:
        ValueError: If there is none; the message names K, and the `nearest_plans` with their effective batch.
    """
    _check_positive(global_batch=global_batch, world_size=world_size, micro_batch=micro_batch)
    steps, rest = divmod(global_batch, world_size * micro_batch)
    if steps and not rest:
        return AccumulationPlan(steps, world_size, micro_batch)
    near = "\n  ".join(str(plan) for plan in nearest_plans(global_batch, world_size, micro_batch))
    raise ValueError(
        f"a global batch of {global_batch} over {world_size} ranks with micro-batch {micro_batch} would need "
        f"K = {global_batch / (world_size * micro_batch):.4g}. The nearest plans:\n  {near}"
    )


def nearest_plans(global_batch: int, world_size: int, micro_batch: int) -> tuple[AccumulationPlan, ...]:
    """Return the plans nearest to a request, nearest first: K rounded down and up, each also with the best micro-batch.

    No plan has a larger micro-batch than requested, because it may not fit into memory. The arguments are those of
    `plan_accumulation`.
    """
    _check_positive(global_batch=global_batch, world_size=world_size, micro_batch=micro_batch)
    wanted = global_batch / (world_size * micro_batch)
    plans = set()
    for steps in {max(1, math.floor(wanted)), math.ceil(wanted)}:
        plans.add(AccumulationPlan(steps, world_size, micro_batch))
        per_rank = global_batch / (world_size * steps)
        for fitting in (math.floor(per_rank), math.ceil(per_rank)):
            if 1 <= fitting <= micro_batch:
                plans.add(AccumulationPlan(steps, world_size, fitting))
    return tuple(sorted(plans, key=lambda plan: (abs(plan.effective_batch - global_batch), plan)))


def scale_learning_rate(base: float, k: float, rule: Literal["linear", "sqrt", "none"] = "linear") -> float:
    """Return the learning rate for a batch that is ``k`` times the one for which ``base`` was tuned.

    Args:
        base: Learning rate tuned for the small batch.
        k: Ratio of the two batches, above 0; the accumulation steps if nothing else differs.
        rule: ``"linear"``, base x k (Goyal et al. 2017, arXiv:1706.02677, for SGD, with warm-up); ``"sqrt"``, base x
            sqrt(k) (Krizhevsky 2014, arXiv:1404.5997; Malladi et al. 2022, arXiv:2205.10287, for Adam); ``"none"``,
            base.

    Raises:
        ValueError: If ``base`` or ``k`` is not above 0, or the rule is unknown.
    """
    if not (base > 0 and k > 0 and math.isfinite(base) and math.isfinite(k)):
        raise ValueError(f"base and k must be finite and above 0, got {base!r} and {k!r}")
    factors = {"linear": k, "sqrt": math.sqrt(k), "none": 1}
    if rule not in factors:
        raise ValueError(f'rule must be "linear", "sqrt" or "none", got {rule!r}')
    return base * factors[rule]


def _check_positive(**numbers: int) -> None:
    for name, value in numbers.items():
        _whole(value, 1, name)


def fold_progress(progress: Progress, ranks: int, onto: int, steps: Iterable[int] = ()) -> Progress:
    """Convert ``progress`` of each of ``ranks`` to that of each of ``onto`` ranks with the same micro-batch.

    ``steps`` are the accumulation steps of other cycles that must be convertible, too. If a number is not whole, a
    ResumeError names the worlds for which all are.
    """
    steps = (progress.accumulation_steps, *steps)
    done = (progress.micro_step, progress.batches_delivered, progress.cycle_first_batch, progress.batch)
    if not all(ranks * number % onto == 0 for number in (*steps, *done)):
        raise ResumeError(_refusal(progress, ranks, onto, steps, done))

    changed = ("batch", "micro_step", "accumulation_steps", "batches_delivered", "cycle_first_batch")
    return replace(progress, **{name: ranks * getattr(progress, name) // onto for name in changed})


def fold_steps(accumulation_steps: int, ranks: int, onto: int) -> int:
    """Convert K for ``ranks`` to K for ``onto``; a ValueError names the worlds for which that is whole."""
    folded, rest = divmod(ranks * accumulation_steps, onto)
    if rest:
        raise ValueError(
            f"{ranks} ranks x accumulation_steps={accumulation_steps} = {ranks * accumulation_steps} micro-batches "
            f"per update cannot be shared by {onto} ranks, only by "
            f"{_words(_divisors([ranks * accumulation_steps]), onto)}"
        )
    return folded


def shares(ranks: int, onto: int, rank: int) -> list[tuple[int, Fraction]]:
    """Return which old ranks the new ``rank`` takes over, in order, and how much of each.

    Old rank q covers the interval [q/ranks, (q+1)/ranks) of everything, a new one likewise. A share is the fraction of
    the old interval that lies in the new one, 1 for all of it.
    """
    first, end = rank * ranks, (rank + 1) * ranks  # in units in which an old rank is `onto` long, a new one `ranks`
    return [
        (old, Fraction(min(end, (old + 1) * onto) - max(first, old * onto), onto))
        for old in range(first // onto, -(-end // onto))
    ]


def _refusal(progress: Progress, ranks: int, onto: int, steps: Sequence[int], done: Sequence[int]) -> str:
    kinds = {"an update is made of": steps, "the running cycle has trained": done[:1], "there were": done[1:]}
    kind, number = next((kind, n) for kind, numbers in kinds.items() for n in numbers if ranks * n % onto)
    anywhere, at_boundary = (_divisors([ranks * n for n in numbers]) for numbers in ((*steps, *done), steps))
    way_on = f"or start with {ranks} ranks as before"
    if not progress.at_boundary and at_boundary != anywhere:
        way_on = (
            f"or, from a checkpoint at a boundary, with {_words(at_boundary, onto)}: start with the old number of "
            'ranks and Saving(mid_cycle="align"), which saves at boundaries, or "rewind", which stores where the cycle '
            "began"
        )
    return (
        f"a run of {ranks} ranks with accumulation_steps={progress.accumulation_steps} cannot continue with {onto} "
        f"here: {kind} {ranks} x {number} = {ranks * number} micro-batches, not divisible by {onto}. It can continue "
        f"with {_words(anywhere, onto)}; {way_on}"
    )


def _divisors(numbers: Iterable[int]) -> list[int]:
    common = math.gcd(*numbers)
    small = [divisor for divisor in range(1, math.isqrt(common) + 1) if common % divisor == 0]
    return sorted({*small, *(common // divisor for divisor in small)})


def _words(worlds: Sequence[int], near: int) -> str:
    shown = sorted(sorted(worlds, key=lambda world: abs(world - near))[:_SHOWN])
    listed = ", ".join(map(str, shown))
    if len(shown) == len(worlds):
        return f"{listed} ranks" if worlds != [1] else "1 rank"
    return f"{listed} ranks (and {len(worlds) - len(shown)} other numbers)"
