"""The interval of `SaveEvery.auto` in an attempt: when it is chosen, by whom, and what a next attempt knows of it."""

import logging
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import pytest
from support.clock import Manual
from support.runs.grown import slow_capture, started
from support.thread_ranks import run_ranks

from ckptkit.core.process_group import ALONE
from ckptkit.core.progress import Progress
from ckptkit.core.save_policy import AnySave, SaveAuto, SaveEvery, automatic, due_from
from ckptkit.errors import ResumeError
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.agreement import RankSync
from ckptkit.manager.save_schedule import SaveSchedule
from ckptkit.manager.writer import SaveResults
from ckptkit.run.interval import Failures, read_history
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.report.history import read_story

K = 2


def progress_at(cycles: int) -> Progress:
    return NumpyRun(accumulation_steps=K)._progress_at(cycles * K)


def cycles_of(root: Path, attempt: int = 1) -> list[int]:
    names = [CheckpointName.parse(path.parent.name) for path in (root / "checkpoints").glob("*/COMMIT")]
    return sorted(name.cycles for name in names if name is not None and name.attempt == attempt)


def live(root: Path, time: Manual, cycles: int, *, stall: float = 0.0) -> None:
    """Train up to ``cycles`` at 10 s each."""
    run = NumpyRun(accumulation_steps=K)
    slow_capture(run, time, stall)
    clocks = {"clock": time.time_of_day, "monotonic": time, "boot": "b"}
    manager, _ = started(root, run, save=SaveEvery.auto(), window="off", **clocks)
    for _ in run.train_until(cycles * K):
        time.now += 10.0 / K
        manager.step(run)
        manager.wait()
    manager.close()


def test_it_saves_at_once_and_then_as_measured(tmp_path):
    """A stall of 2 s and a share of 1 %: 200 s, which are 20 cycles; then less often, while nothing fails."""
    time = Manual()
    live(tmp_path, time, 150, stall=2.0)
    saved = cycles_of(tmp_path)
    assert saved[:2] == [1, 3]
    gaps = [later - earlier for earlier, later in pairwise(saved[1:])]
    assert gaps[0] in (17, 18, 19, 20)
    assert gaps == sorted(gaps)
    story = read_story(LocalStorage(tmp_path), datetime(2026, 1, 2, tzinfo=timezone.utc))
    first = story.lives[0].intervals[0]
    assert first.bound == "overhead"
    assert first.seconds == pytest.approx(200.0, rel=0.2)
    assert first.cycle_seconds == pytest.approx(10.0, rel=0.3)
    assert (first.failures, first.overhead) == (0, 0.01)
    assert first.stall_seconds == pytest.approx(2.0)
    live(tmp_path, time, 180, stall=2.0)
    assert cycles_of(tmp_path, 2)[0] > 151  # a next start begins with the last interval


def test_another_interval_of_as_many_cycles_is_no_news(tmp_path, caplog):
    """A cycle is longer than the interval that is wanted, whatever that is: every cycle."""
    caplog.set_level(logging.INFO, "ckptkit")
    time = Manual()
    results = SaveResults("root", 3, None, RankSync(ALONE))
    clocks = {"clock": time.time_of_day, "monotonic": time}
    auto = SaveSchedule(SaveAuto(0.01), "exact", RankSync(ALONE), results, **clocks)
    auto.see(0)
    stalls = [0.01, 2.0, 0.01, 3.0, 0.02, 200.0]
    for cycles, stall in enumerate(stalls, 1):
        time.now += 1000.0
        results.durations.append(timedelta(seconds=stall))
        results.stall_seconds.append(stall)
        auto.begun(cycles, auto.proposal(cycles))
    auto.begun(10, 40)
    auto.skipped(50)  # then a quarter of the interval later
    assert next(cycles for cycles in range(45, 70) if auto.is_due(progress_at(cycles), timedelta())) == 60
    lines = [one.getMessage() for one in caplog.records]
    assert lines[0].startswith("saves come every 1 cycle of 16 min 40 s (wanted: every ")
    assert [line.split(" of ")[0] for line in lines] == ["saves come every 1 cycle", "saves come every 3 cycles"]


def test_unreadable_history_is_told(tmp_path, caplog):
    live(tmp_path, Manual(), 5)
    fault = Fault("error", operations={"list", "read"}, key="events*", times=None)
    started(FaultyStorage(LocalStorage(tmp_path), [fault]), NumpyRun(accumulation_steps=K), save=SaveEvery.auto())
    assert any("SaveEvery.auto begins as in a new run" in one.getMessage() for one in caplog.records)


def test_it_is_due_from_the_chosen_cycle_on():
    policy = due_from(SaveEvery.auto() | SaveEvery(optimizer_steps=7), 12)
    assert isinstance(policy, AnySave)
    due = [n for n in range(1, 30) if policy.due(progress_at(n), timedelta())]
    assert due == [7, *range(12, 30)]
    alone, run = due_from(SaveEvery.auto(), 3), NumpyRun(accumulation_steps=K)
    assert [n for n in range(1, 9) if alone.due(run._progress_at(n), timedelta())] == [6, 8]  # at boundaries only
    with pytest.raises(ResumeError, match="only the manager can choose it"):
        SaveEvery.auto().due(progress_at(1), timedelta())


def test_the_smallest_overhead_of_several_counts():
    policy = SaveEvery.auto(overhead=0.05) | SaveEvery(micro_steps=3) | SaveEvery.auto(overhead=0.02)
    assert automatic(policy) == SaveAuto(0.02)
    assert automatic(SaveEvery(micro_steps=3)) is None


def test_all_ranks_save_at_the_intervals_of_rank_0(tmp_path):
    """Their clocks differ by a factor, and only rank 0 reads events; yet every save has all parts."""
    saved: dict[int, list[list[int]]] = {}

    def life(world):
        run = NumpyRun(world=world, accumulation_steps=K)
        time = Manual()
        slow_capture(run, time, 0.5)
        manager, _ = started(tmp_path, run, save=SaveEvery.auto(), monotonic=time, boot="b")
        for _ in run.train_until(run.batches + 24 * K):
            time.now += (1 + 3 * world.rank) * 10.0 / K
            manager.step(run)
            manager.wait()
        manager.fence()  # and no more: SIGKILL
        return manager

    for attempt in (1, 2):
        ended = run_ranks(3, life)
        assert [one.error for one in ended] == [None] * 3
        saved[attempt] = cycles_of(tmp_path, attempt)
        assert len(saved[attempt]) > 2
    assert saved[1][:2] == [1, 3]
    history = read_history(LocalStorage(tmp_path), before=2)
    assert history.failures == Failures(1, history.failures.seconds)
    assert history.interval is not None
