"""From the batch that an optimizer step should see to K, the accumulation steps that give it.

``global batch = world size x K x micro-batch``. Guarantees: a plan that exists multiplies out; a wish that cannot
be met is refused with the nearest plans and what each really gives. Pure values, any thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, order=True)
class AccumulationPlan:
    """One way to make up a batch.

    Attributes:
        accumulation_steps: K.
        world_size: Ranks, each with its own micro-batches.
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
    """The plan whose effective batch is exactly ``global_batch``.

    Args:
        global_batch: Samples that one optimizer step should see, over all ranks.
        world_size: Ranks.
        micro_batch: Samples per rank and micro-step: what fits into memory.

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
    """The plans next to a wish, nearest first: K rounded down and up, and for both the micro-batch that fits best.

    No plan has a larger micro-batch than asked for, since that may not fit into memory. The arguments are those
    of `plan_accumulation`.
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
    """The learning rate for a batch that is ``k`` times the one that ``base`` was tuned for.

    Args:
        base: Tuned for the small batch.
        k: Ratio of the two batches, above 0; with everything else equal, the accumulation steps.
        rule: ``"linear"``, base x k (Goyal et al. 2017, arXiv:1706.02677, for SGD, with warm-up); ``"sqrt"``,
            base x sqrt(k) (Krizhevsky 2014, arXiv:1404.5997; Malladi et al. 2022, arXiv:2205.10287, for Adam);
            ``"none"``, base.

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
