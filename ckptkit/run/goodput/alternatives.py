"""Compares the interval of saves that a run had with half and double of it.

Guarantees: all three are computed by one formula from the same measured values, so that they can be compared with each
other; what really happened, by chance, is in the account. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from ckptkit.run.goodput.interval import lost_seconds
from ckptkit.run.goodput.lives import Life, between

_FACTORS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Alternative:
    interval_seconds: float
    saving_seconds: float
    lost_seconds: float
    is_possible: bool

    @property
    def cost_seconds(self) -> float:
        return self.saving_seconds + self.lost_seconds


def alternatives(lives: Sequence[Life]) -> list[Alternative]:
    """Return what half of the run's interval, the interval itself and double of it cost; empty if it is not known."""
    taken = [one for life in lives for one in life.taken]
    gaps = [gap for life in lives for gap in _gaps(life) if gap > 0]
    if not gaps:
        return []
    interval, stall = median(gaps), sum(map(_stalled, lives)) / len(taken)
    took = fmean(one.took_seconds for one in taken)
    trained = [_trained(life) for life in lives]
    died = [seconds for life, seconds in zip(lives, trained, strict=True) if life.has_failed]
    return [
        Alternative(
            interval_seconds=factor * interval,
            saving_seconds=sum(trained) / (factor * interval) * stall,
            lost_seconds=sum(lost_seconds(seconds, factor * interval, took) for seconds in died),
            is_possible=factor * interval >= took,
        )
        for factor in _FACTORS
    ]


def _gaps(life: Life) -> list[float]:
    if all(one.spent is not None for one in life.taken):
        at = [one.spent.get("training", 0.0) for one in life.taken if one.spent is not None]
        return [later - earlier for earlier, later in pairwise(at)]
    return [between(one.at, other.at) or 0.0 for one, other in pairwise(life.taken)]


def _stalled(life: Life) -> float:
    """Return the seconds that saves kept its training waiting, with all that belongs to them."""
    if life.spent is None:
        return sum(one.stall_seconds for one in life.taken)
    return life.spent.get("saving", 0.0)


def _trained(life: Life) -> float:
    return life.exposed_seconds if life.spent is None else life.spent.get("training", 0.0)
