"""Thins the values of micro-steps into points that a plot can show, however long training runs.

Guarantees: each of the first `FINE` cycles of an attempt has its own point. Later cycles share points, and a point
never covers more than a `FINE`-th of the cycles before it. The number of points, and memory, grow with the logarithm of
the attempt's length. If the attempt did not see a cycle from its start, the means over that cycle's micro-steps are
left out, because they would be wrong. One thread only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ckptkit.format.events import MAX_CURVES, Point, Spread, plain_line

FINE = 1000  # a large screen is one or two times as many pixels wide


@dataclass(frozen=True)
class Place:
    """Locates a value in training.

    Attributes:
        cycle: Number of the cycle, from 1.
        step: Optimizer steps after that cycle.
        ends: Whether the cycle ends with this value.
        at: Time of the value.
    """

    cycle: int
    step: int
    ends: bool
    at: datetime


@dataclass
class _Sum:
    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def mean(self) -> float:
        return self.total / self.count


@dataclass
class _Means:
    """Aggregates the means of cycles."""

    total: float = 0.0
    count: int = 0
    low: float = math.inf
    high: float = -math.inf
    not_finite: int = 0

    def add(self, value: float) -> None:
        if not math.isfinite(value):
            self.not_finite += 1
            return
        self.total += value
        self.count += 1
        self.low, self.high = min(self.low, value), max(self.high, value)

    def spread(self) -> Spread:
        mean = self.total / self.count if self.count else None
        if mean is None or not math.isfinite(mean):
            return Spread(mean=None, low=None, high=None, not_finite=self.not_finite + self.count)
        return Spread(mean=mean, low=self.low, high=self.high, not_finite=self.not_finite)


@dataclass
class _Bucket:
    first: Place
    last: Place
    cycles: int = 0
    means: dict[str, _Means] = field(default_factory=dict)

    def point(self) -> Point:
        return Point(
            at=self.last.at.isoformat(),
            first=min(self.first.step, self.last.step),
            last=self.last.step,
            cycles=max(1, self.cycles),
            values={name: means.spread() for name, means in self.means.items()},
        )


class Curves:
    """Collects the curves of one attempt.

    Args:
        half_seen: Number of a cycle that began before this attempt, if there is one.
    """

    def __init__(self, half_seen: int | None = None) -> None:
        self._half_seen = half_seen
        self._names: dict[str, str] = {}
        self._cycle: int | None = None
        self._place: Place | None = None
        self._values: dict[str, _Sum] = {}
        self._bucket: _Bucket | None = None
        self._cycles = 0
        self._points: list[Point] = []

    def add(self, place: Place, micro_step: Mapping[str, float], cycle: Mapping[str, float]) -> None:
        """Add the values of one micro-step.

        Args:
            place: The micro-step's place; calls come in the order of training.
            micro_step: Values that a cycle has once per micro-step.
            cycle: Values of the whole cycle.
        """
        if self._place is not None and self._place.cycle != place.cycle:
            self._end_cycle()
        self._place = place
        given = cycle if place.cycle == self._half_seen else {**micro_step, **cycle}
        for name, value in given.items():
            known = self._name(name)
            if known is not None:
                self._values.setdefault(known, _Sum()).add(value)
        if place.ends:
            self._end_cycle()

    def take(self, *, all_of_it: bool = False) -> list[Point]:
        """Return the completed points; with ``all_of_it`` also the last, incomplete one."""
        if all_of_it:
            self._end_bucket()
        points, self._points = self._points, []
        return points

    def _name(self, name: str) -> str | None:
        """Return the name as it is stored; None once there are too many names."""
        if name not in self._names and len(self._names) < MAX_CURVES:
            self._names[name] = plain_line(name, 128) or "?"
        return self._names.get(name)

    def _end_cycle(self) -> None:
        place, values = self._place, self._values
        self._place, self._values = None, {}
        if place is None or not values:
            return
        if self._bucket is None:
            self._bucket = _Bucket(place, place)
        if place.cycle != self._cycle:
            self._cycle = place.cycle
            self._cycles += 1
            self._bucket.cycles += 1
        self._bucket.last = place
        for name, value in values.items():
            self._bucket.means.setdefault(name, _Means()).add(value.mean)
        if self._bucket.cycles > (self._cycles - 1) // FINE:
            self._end_bucket()

    def _end_bucket(self) -> None:
        bucket, self._bucket = self._bucket, None
        if bucket is not None:
            self._points.append(bucket.point())
