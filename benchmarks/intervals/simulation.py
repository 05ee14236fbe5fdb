"""Plays a training through a failure trace, with a fixed interval or with that of ``SaveEvery.auto``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ckptkit.run.interval import Failures, SaveTimes, choose_interval

from .traces import Trace


@dataclass(frozen=True)
class Job:
    """What a save and a restart cost, in seconds."""

    stall: float
    took: float
    restart: float

    @property
    def times(self) -> SaveTimes:
        return SaveTimes(self.stall, self.took)


def fixed(trace: Trace, job: Job, interval: float) -> float:
    """The share of the time that was training and counted, with a save after every ``interval`` of training."""
    gaps = np.array(trace.gaps)
    # A save counts if it was committed: it begins after the interval, and training goes on beside it.
    saves = (gaps - job.restart - interval - job.took) // (interval + job.stall) + 1
    return float(interval * np.maximum(0, saves).sum() / gaps.sum())


def auto(trace: Trace, job: Job, overhead: float) -> float:
    """The same with the intervals that the arithmetic of ``SaveEvery.auto`` chooses, anew at every save."""
    useful, known = 0.0, Failures()
    for gap in trace.gaps:
        running, at = gap - job.restart, 0.0
        while running > 0:
            interval = choose_interval(job.times, known.longer(at), overhead).seconds
            if at + interval + job.took > running:
                break
            useful += interval
            at += interval + job.stall
        if running > 0:
            known = Failures(known.count + 1, known.seconds + running)
    return useful / sum(trace.gaps)


def best_fixed(trace: Trace, job: Job, places: Sequence[float] | None = None) -> tuple[float, float]:
    """The interval that hindsight would have taken, and its share."""
    middle = (2 * max(job.stall, 1e-3) * trace.mean) ** 0.5
    tried = places or [middle * 2 ** (place / 8) for place in range(-40, 41)]
    allowed = [one for one in tried if one >= job.took]  # no save begins while another is written
    return max(((one, fixed(trace, job, one)) for one in allowed or [job.took]), key=lambda pair: pair[1])
