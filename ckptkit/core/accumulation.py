"""Computes the accumulation steps K of a cycle from the optimizer steps done, and plans K for a batch size.

Guarantees for a schedule: K depends on the optimizer step alone, so that a resumed run gets the same K. A user's
function is trusted to do so; its answers are checked, but its code cannot be compared. A folded schedule gives the K
that keeps the micro-batches of an update, summed over all ranks, in another world.

Guarantees for a plan: ``global batch = world size x K x micro-batch`` holds exactly. A request that cannot be met is
refused with the nearest plans and their effective batch. Pure values, any thread.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ckptkit.core.rescale import fold_steps

AccumulationSteps: TypeAlias = int | Mapping[int, int] | Callable[[int], int]


class AccumulationSchedule:
    """Gives K for every cycle.

    Args:
        steps: An int; or a mapping from an optimizer step to the K in force from there on, with 0 among its keys, such
            as ``{0: 1, 1000: 4}``; or a function from the optimizer step to K.

    Attributes:
        given: The user's schedule from which this one was folded; itself if it was not folded.

    Raises:
        TypeError: If it is none of these.
        ValueError: If a K is not an int of at least 1, or a mapping has no K for step 0.
    """

    def __init__(self, steps: AccumulationSteps) -> None:
        self._function: Callable[[int], int] | None = None
        self._from: tuple[tuple[int, int], ...] = ()
        if callable(steps):
            self._function = steps
        elif isinstance(steps, Mapping):
            self._from = tuple(sorted((_whole(at, 0, "a step of the schedule"), _k(k)) for at, k in steps.items()))
            if not self._from or self._from[0][0] != 0:
                raise ValueError(f"the schedule of accumulation_steps must give K for step 0, got {dict(steps)!r}")
        else:
            self._from = ((0, _k(steps)),)
        self.given = self
        self.at(0)

    def folded(self, ranks: int, onto: int) -> AccumulationSchedule:
        """Convert this schedule for ``ranks`` into one for ``onto``; a mapping at once, a function at each use.

        Raises:
            ValueError: If a K is then not whole; for a function, only the K for step 0 is checked here.
        """
        function = self._function
        if function is not None:
            folded = AccumulationSchedule(lambda step: fold_steps(_answer(function, step), ranks, onto))
        else:
            folded = AccumulationSchedule({first: fold_steps(k, ranks, onto) for first, k in self._from})
        folded.given = self.given
        return folded

    def at(self, optimizer_step: int) -> int:
        """Return K of the cycle that begins after ``optimizer_step`` updates.

        Raises:
            ValueError: If a function did not return an int of at least 1.
        """
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
        return [name for name, one in values.items() if not (callable(one) or isinstance(one, types.ModuleType))]

    def recorded(self) -> list[list[int]] | None:
        """Return plain values to compare after a restart; None for a function."""
        return None if self._function is not None else [list(pair) for pair in self._from]


def _answer(function: Callable[[int], int], optimizer_step: int) -> int:
    return _k(function(optimizer_step), f"accumulation_steps({optimizer_step})")


def _k(value: object, name: str = "accumulation_steps") -> int:
    return _whole(value, 1, name)


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
    found = set()
    for steps in {max(1, math.floor(wanted)), math.ceil(wanted)}:
        found.add(AccumulationPlan(steps, world_size, micro_batch))
        per_rank = global_batch / (world_size * steps)
        for fitting in (math.floor(per_rank), math.ceil(per_rank)):
            if 1 <= fitting <= micro_batch:
                found.add(AccumulationPlan(steps, world_size, fitting))
    return tuple(sorted(found, key=lambda plan: (abs(plan.effective_batch - global_batch), plan)))


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
    if rule == "linear":
        return base * k
    if rule == "sqrt":
        return base * math.sqrt(k)
    if rule == "none":
        return base
    raise ValueError(f'rule must be "linear", "sqrt" or "none", got {rule!r}')


def _check_positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an int of at least 1, got {value!r}")
