"""Lays the values of a run out over optimizer steps, as one training without interruption has them.

Guarantees: steps never go back. What a later attempt did again is left out, so no step has two values of one name. The
rows follow from the events alone: as long as no attempt goes back, those of a later reading begin with those of an
earlier one. Pure functions, any thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ckptkit.format.events import Spread
from ckptkit.run.goodput import Life, Taken, account_of, between, seconds_of
from ckptkit.tools.report.history import Attempt, RunStory, Save

GOODPUT = "goodput"
STALL = "save/stall_seconds"
TOOK = "save/took_seconds"
SIZE = "save/size_bytes"


@dataclass(frozen=True)
class Row:
    """Holds what is known of one moment of the training.

    Attributes:
        step: Optimizer steps.
        first: The first step that the values are about, where they are means over several.
        seconds: When, since the epoch.
        values: Numbers by name; NaN where the training had one that is not finite.
    """

    step: int
    first: int
    seconds: float
    values: Mapping[str, float]


def series_of(story: RunStory) -> list[Row]:
    """Return the rows of the run, by step."""
    rows: list[Row] = []
    for place, attempt in enumerate(story.attempts):
        lives = story.lives[: place + 1]
        found = [*_points(attempt), *_saves(attempt), *(_goodput(lives) if lives else ())]
        kept = math.inf if attempt.redone_from is None else attempt.redone_from
        rows += [row for row in found if row.step <= kept]
    return _once(sorted(rows, key=lambda row: row.step))


def course_of(story: RunStory) -> str:
    """Return a name for the run since it last went back on request; other work may follow from there."""
    back = [one.number for one in story.attempts if one.branch is not None]
    run = story.run_id or story.root
    return f"{run}/{back[-1]}" if back else run


def _once(rows: Sequence[Row]) -> list[Row]:
    """Return ``rows`` with the first value of a step alone: several saves may lie in one cycle."""
    found: list[Row] = []
    known: set[tuple[int, str]] = set()
    for row in rows:
        values = {name: value for name, value in row.values.items() if (row.step, name) not in known}
        known.update((row.step, name) for name in values)
        if values:
            found.append(replace(row, values=values))
    return found


def _points(attempt: Attempt) -> Iterator[Row]:
    for point in attempt.points:
        values = {name: _mean(spread) for name, spread in point.values.items()}
        yield Row(point.last, point.first, seconds_of(point.at) or 0.0, values)


def _mean(spread: Spread) -> float:
    return math.nan if spread.mean is None or spread.not_finite else spread.mean


def _saves(attempt: Attempt) -> Iterator[Row]:
    for save in attempt.saves:
        values = {STALL: save.stall_seconds, TOOK: save.took_seconds, SIZE: save.size_bytes}
        if save.step is not None and save.took_seconds is not None:  # otherwise no event tells of it
            known = {name: float(value) for name, value in values.items() if value is not None}
            yield Row(save.step, save.step, _epoch(save), known)


def _epoch(save: Save) -> float:
    return 0.0 if save.at is None else save.at.timestamp()


def _goodput(lives: Sequence[Life]) -> Iterator[Row]:
    """Yield the share of the run's time that counted, as of each save of the last of ``lives``."""
    life = lives[-1]
    saves = [one for one in life.taken if one.spent is not None]
    if not saves:
        return
    before = account_of([*lives[:-1], _until(life, saves[0])])
    trained = before.totals["trained"] - _trained(saves[0])
    seconds = before.seconds - _age(life, saves[0])
    for save in saves:
        total = seconds + _age(life, save)
        if total > 0:
            yield Row(save.step, save.step, save.at.wall or 0.0, {GOODPUT: (trained + _trained(save)) / total})


def _until(life: Life, save: Taken) -> Life:
    """Return what was known of ``life`` when it took ``save``."""
    return replace(life, seen=save.at, spent=save.spent, to_batches=save.batches, taken=[save], how=None, watched=[])


def _trained(save: Taken) -> float:
    return (save.spent or {}).get("training", 0.0)


def _age(life: Life, save: Taken) -> float:
    return between(life.born, save.at) or 0.0
