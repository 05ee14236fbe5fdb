"""Converts a run on N ranks to M ranks: its counters, its accumulation steps, and the sums that each rank takes over.

Guarantees: the micro-batches of all ranks together stay the same, in a cycle, in an epoch and since the run began. A
conversion that would not be whole is refused with the numbers of ranks for which it is. The shares of an old rank over
all new ranks add up to 1. Pure values, any thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from ckptkit.core.progress import Progress
from ckptkit.errors import ResumeError

_SHOWN = 12


def fold_progress(progress: Progress, ranks: int, onto: int, steps: Iterable[int] = ()) -> Progress:
    """Convert ``progress`` of a run of ``ranks`` to a world of ``onto`` with the same micro-batch.

    Args:
        progress: Progress of each of the old ranks.
        ranks: The old number of ranks.
        onto: The new number of ranks.
        steps: The accumulation steps of other cycles, before and after, that must be convertible, too.

    Raises:
        ResumeError: If one of the numbers is not whole in the new world; names the worlds for which they are.
    """
    steps = (progress.accumulation_steps, *steps)
    done = (progress.micro_step, progress.batches_delivered, progress.cycle_first_batch, progress.batch)
    if not all(ranks * number % onto == 0 for number in (*steps, *done)):
        raise ResumeError(_refusal(progress, ranks, onto, steps, done))

    def folded(number: int) -> int:
        return ranks * number // onto

    return Progress(
        epoch=progress.epoch,
        batch=folded(progress.batch),
        cycles=progress.cycles,
        updates=progress.updates,
        micro_step=folded(progress.micro_step),
        accumulation_steps=folded(progress.accumulation_steps),
        batches_delivered=folded(progress.batches_delivered),
        cycle_first_batch=folded(progress.cycle_first_batch),
    )


def fold_steps(accumulation_steps: int, ranks: int, onto: int) -> int:
    """Convert K for ``ranks`` to K for ``onto``.

    Raises:
        ValueError: If it is not whole; names the worlds for which it is.
    """
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
    cycle = next((k for k in steps if ranks * k % onto), None)
    if cycle is not None:
        why = f"an update is made of {ranks} x {cycle} = {ranks * cycle} micro-batches, not divisible by {onto}"
    elif ranks * progress.micro_step % onto:
        whole = ranks * progress.micro_step
        why = (
            f"the running cycle has trained {ranks} x {progress.micro_step} = {whole} of its "
            f"{ranks * progress.accumulation_steps} micro-batches, not divisible by {onto}"
        )
    else:
        why = f"{ranks} x {progress.batches_delivered} micro-batches were trained, cut into cycles or epochs unevenly"
    anywhere = _divisors([ranks * number for number in (*steps, *done)])
    lines = [
        f"a run of {ranks} ranks with accumulation_steps={progress.accumulation_steps} cannot continue with {onto} "
        f"here: {why}. It can continue with {_words(anywhere, onto)}",
    ]
    at_boundary = _divisors([ranks * number for number in steps])
    if not progress.at_boundary and at_boundary != anywhere:
        lines.append(
            f"or, from a checkpoint at a boundary, with {_words(at_boundary, onto)}: start with the old number of "
            'ranks and Saving(mid_cycle="align"), which saves at boundaries, or "rewind", which stores where the cycle '
            "began"
        )
    else:
        lines.append(f"or start with {ranks} ranks as before")
    return "; ".join(lines)


def _divisors(numbers: Iterable[int]) -> list[int]:
    common = math.gcd(*numbers)
    small = [one for one in range(1, math.isqrt(common) + 1) if common % one == 0]
    return sorted({*small, *(common // one for one in small)})


def _words(worlds: Sequence[int], near: int) -> str:
    """Return the worlds as text; if there are many, those around ``near``."""
    shown = sorted(sorted(worlds, key=lambda one: abs(one - near))[:_SHOWN])
    listed = ", ".join(map(str, shown))
    if len(shown) == len(worlds):
        return f"{listed} ranks" if worlds != [1] else "1 rank"
    return f"{listed} ranks (and {len(worlds) - len(shown)} other numbers)"
