"""How many micro-steps a cycle has: the accumulation steps K as a function of the optimizer steps done.

Guarantees: the answer depends on the optimizer step alone, so that a resumed run asks and is told the same. A
function of the user's own is trusted to do so; its answers are checked, its text cannot be compared. A folded schedule
gives what keeps the micro-batches of an update over all ranks, in another world. Pure values, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ckptkit.core.rescale import fold_steps

AccumulationSteps: TypeAlias = int | Mapping[int, int] | Callable[[int], int]


class AccumulationSchedule:
    """K for every cycle.

    Args:
        steps: An int; or a mapping from an optimizer step to the K that is in force from there on, with 0 among
            its keys, such as ``{0: 1, 1000: 4}``; or a function from the optimizer step to K.

    Attributes:
        given: The schedule that this one was folded from, as its user wrote it; itself where it was not.

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
                raise ValueError(f"the schedule of accumulation_steps must say K for step 0, got {dict(steps)!r}")
        else:
            self._from = ((0, _k(steps)),)
        self.given = self
        self.at(0)

    def folded(self, ranks: int, onto: int) -> AccumulationSchedule:
        """What this one, meant for ``ranks``, is for ``onto``; a mapping is folded as a whole, a function at each use.

        Raises:
            ValueError: If a K is not whole then; of a function's, only that for step 0 is seen here.
        """
        function = self._function
        if function is not None:
            folded = AccumulationSchedule(lambda step: fold_steps(_answer(function, step), ranks, onto))
        else:
            folded = AccumulationSchedule({first: fold_steps(k, ranks, onto) for first, k in self._from})
        folded.given = self.given
        return folded

    def at(self, optimizer_step: int) -> int:
        """K of the cycle that begins after ``optimizer_step`` updates.

        Raises:
            ValueError: If a function gave no int of at least 1.
        """
        if self._function is not None:
            return _answer(self._function, optimizer_step)
        return next(k for first, k in reversed(self._from) if first <= optimizer_step)

    def recorded(self) -> list[list[int]] | None:
        """It as plain values to compare after a restart; None for a function, which has none."""
        return None if self._function is not None else [list(pair) for pair in self._from]


def _answer(function: Callable[[int], int], optimizer_step: int) -> int:
    return _k(function(optimizer_step), f"accumulation_steps({optimizer_step})")


def _k(value: object, name: str = "accumulation_steps") -> int:
    return _whole(value, 1, name)


def _whole(value: object, least: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an int of at least {least}, got {value!r}")
    return value
