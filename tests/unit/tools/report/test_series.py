"""The values of a run over optimizer steps, as one training without interruption has them."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path

import pytest
from support.runs.report_lives import Clock, Life, dying, loss_at

from ckptkit.core.save_policy import SaveEvery
from ckptkit.format.events import Point, Spread
from ckptkit.run.event_log import read_events
from ckptkit.run.goodput import account_of, life_of
from ckptkit.run.index import Documents
from ckptkit.storage import LocalStorage
from ckptkit.tools.report.monitors import GOODPUT, SIZE, STALL, TOOK, course_of, series_of
from ckptkit.tools.report.story import Attempt, RunStory, read_story

NOW = datetime(2026, 3, 3, 12, tzinfo=timezone.utc)


def story_of(root: Path) -> RunStory:
    return read_story(LocalStorage(root), NOW)


def values_of(rows, name):
    return {row.step: row.values[name] for row in rows if name in row.values}


def test_each_step_has_one_value_in_order(grown):
    rows = series_of(story_of(grown))
    assert all(one.step <= other.step for one, other in pairwise(rows))
    names = [(row.step, name) for row in rows for name in row.values]
    assert len(names) == len(set(names))
    losses = values_of(rows, "loss")
    assert list(losses) == list(range(1, 641))  # of four attempts, which did 36 steps twice
    assert losses == {step: pytest.approx(loss_at(step), rel=1e-12) for step in losses}
    assert list(values_of(rows, "gradient_norm")) == list(losses)
    assert {25, 300, 450, 625} <= values_of(rows, "accuracy").keys()


def test_saves_have_their_costs(grown):
    story = story_of(grown)
    rows = series_of(story)
    kept = {
        save.step: (save.stall_seconds, save.took_seconds, save.size_bytes)
        for attempt in story.attempts
        for save in attempt.saves
        if attempt.redone_from is None or save.step <= attempt.redone_from
    }
    found = [values_of(rows, name) for name in (STALL, TOOK, SIZE)]
    assert {step: tuple(one[step] for one in found) for step in found[0]} == kept
    assert len(kept) > 20


def test_goodput_is_that_of_the_account_then(grown):
    """At each save it is what `ckptkit goodput` would have said."""
    story = story_of(grown)
    found = values_of(series_of(story), GOODPUT)
    events: dict[int, list] = {}
    for segment in read_events(LocalStorage(grown), Documents(LocalStorage(grown))).segments:
        events.setdefault(segment.header.attempt, []).extend(segment.events)
    tried = 0
    for number, of_it in events.items():
        before = [life_of(one, events[one]) for one in events if one < number]
        for at, event in enumerate(of_it, 1):
            step = event.progress.updates if event.kind == "saved" else None
            redone = story.attempts[number - 1].redone_from
            if step is None or (redone is not None and step > redone):
                continue
            assert found[step] == pytest.approx(account_of([*before, life_of(number, of_it[:at])]).share, abs=1e-5)
            tried += 1
    assert tried > 20
    assert found[150] - found[175] > 0.2  # 41 minutes in which nothing ran


def test_later_reading_continues_earlier_one(tmp_path):
    clock = Clock()
    life = Life(LocalStorage(tmp_path), clock, "node", save=SaveEvery(optimizer_steps=4))
    life.manager.restore(life.run)
    read = []
    for step in (8, 16, 24):
        life.train(step)
        read.append(series_of(story_of(tmp_path)))
    life.train(26)
    life.manager.close()
    read.append(series_of(story_of(tmp_path)))
    for earlier, later in pairwise(read):
        assert later[: len(earlier)] == earlier
        assert len(later) > len(earlier)


def test_values_that_are_not_finite_are_seen():
    """A mean of the others would hide that training has diverged."""
    spreads = {
        "loss": Spread(mean=None, low=None, high=None, not_finite=1),
        "some": Spread(mean=1.0, low=1.0, high=1.0, not_finite=1),
        "fine": Spread(mean=1.0, low=1.0, high=1.0, not_finite=0),
    }
    attempt = Attempt(1, points=[Point(at="2026-03-02T22:10:00+00:00", first=4, last=5, cycles=2, values=spreads)])
    (row,) = series_of(RunStory("root", None, None, NOW, [attempt], None, []))
    assert {name: math.isnan(value) for name, value in row.values.items()} == {
        "loss": True,
        "some": True,
        "fine": False,
    }
    assert (row.first, row.step, row.seconds) == (4, 5, datetime(2026, 3, 2, 22, 10, tzinfo=timezone.utc).timestamp())


def test_run_that_went_back_has_another_course(tmp_path):
    clock, storage, courses = Clock(), LocalStorage(tmp_path), []
    for steps, options in ((10, {}), (14, {}), (16, {"checkpoint": "a000001-c0000000004-m0000", "rewind": True})):
        life = Life(storage, clock, "node", save=SaveEvery(optimizer_steps=4))
        life.manager.restore(life.run, **options)
        with dying(life, KeyboardInterrupt()):
            life.train(steps)
        story = story_of(tmp_path)
        courses.append(course_of(story))
        assert list(values_of(series_of(story), "loss")) == list(range(1, steps + 1))
    first, second, third = courses
    assert first == second == str(story.run_id)
    assert third == f"{first}/3"
