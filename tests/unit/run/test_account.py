"""Every second has one class: against clocks that tests move, with deaths, and with clocks that are set."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.options import grouped

from ckptkit.core.save_policy import SaveEvery
from ckptkit.format.events import LifeEnded
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.goodput import CLASSES, Account, CommittedState, Life, Moment, account_of
from ckptkit.run.interval import Failures, SaveTimes, choose_interval
from ckptkit.storage import LocalStorage
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.report.history import read_story

K = 4
STEP = 2.5  # seconds of a micro-step


@dataclass
class World:
    """The true time, and a clock of the day that somebody sets."""

    uptime: float = 1000.0
    wrong_by: timedelta = timedelta()
    truth: dict[str, float] = field(default_factory=dict)

    def now(self) -> datetime:
        return datetime(2026, 5, 1, tzinfo=timezone.utc) + timedelta(seconds=self.uptime) + self.wrong_by

    def monotonic(self) -> float:
        return self.uptime

    def spend(self, what: str, seconds: float) -> None:
        self.truth[what] = self.truth.get(what, 0.0) + seconds
        self.uptime += seconds


class Process:
    """One life, whose birth is the begin of its restore."""

    def __init__(self, root: Path, world: World, boot: str | None = "one boot") -> None:
        self.world = world
        self.storage = LocalStorage(root)
        self.run = NumpyRun(accumulation_steps=K)
        options = {"clock": world.now, "monotonic": world.monotonic, "boot": boot, "host": "node"}
        self.manager = CheckpointManager(self.storage, **grouped(save=SaveEvery(optimizer_steps=5), **options))
        self.born = world.uptime
        self.manager.restore(self.run)
        world.spend("starting", 30.0)  # compiles

    def train(self, steps: int, what: str = "trained") -> None:
        for batches in self.run.train_until(steps * K):
            if batches > 1:
                self.world.spend(what, STEP)
            self.manager.step(self.run)
            self.manager.wait()

    def evaluate(self, seconds: float) -> None:
        self.manager.pause()
        self.world.spend("evaluating", seconds)

    def finish(self) -> None:
        with self.manager:
            self.manager.save_final(self.run)


def account_at(root: Path) -> Account:
    return read_story(LocalStorage(root), datetime(2026, 6, 1, tzinfo=timezone.utc)).account


def grow(root: Path, world: World, *, steps_of_clock: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)) -> None:
    """Killed after 23 steps, of which 20 are saved; killed after 41, of which 40 are; then finished."""
    for number, (kept, reached, pause) in enumerate([(20, 23, 300.0), (40, 41, 5.0), (50, 50, 0.0)]):
        process = Process(root, world)
        world.wrong_by += timedelta(hours=steps_of_clock[number])
        if number == 1:
            process.train(30)
            process.evaluate(90.0)
        process.train(kept)
        if reached == kept:
            process.finish()
            break
        process.train(reached, "unseen")  # after the last event: nobody wrote down that it was training
        process.manager.fence()  # and no more: SIGKILL
        world.spend("unseen", pause)
        world.wrong_by += timedelta(hours=steps_of_clock[3])


@pytest.mark.parametrize("steps_of_clock", [(0.0, 0.0, 0.0, 0.0), (3.0, -5.0, 0.25, 0.0), (0.0, 1.0, 0.0, -9.0)])
def test_classes_add_up_with_kills_and_clock_steps(tmp_path, steps_of_clock):
    world = World()
    begun = world.uptime
    grow(tmp_path, world, steps_of_clock=steps_of_clock)
    account = account_at(tmp_path)
    assert account.seconds == pytest.approx(world.uptime - begun, rel=1e-3)
    assert sum(account.totals.values()) == pytest.approx(account.seconds)
    for name in ("trained", "evaluating", "unseen"):  # a first step is start-up, and that after a pause is part of it
        assert account.totals[name] == pytest.approx(world.truth[name], abs=3 * STEP + 0.5), name
    assert account.totals["starting"] == pytest.approx(3 * 30.0, abs=3 * STEP)
    assert (account.is_lower_bound, account.is_rough) == (True, False)
    assert [life.how is not None for life in account.lives] == [False, False, True]


@pytest.mark.parametrize("reboots", [True, False])
def test_a_preempted_life_loses_nothing(tmp_path, reboots):
    world = World()
    first = Process(tmp_path, world, "one boot")
    first.train(23)
    first.finish()
    world.spend("down", 3600.0)
    if reboots:
        world.uptime -= 4000.0  # the monotonic clock begins anew
        world.wrong_by += timedelta(seconds=4000)
    second = Process(tmp_path, world, "another boot" if reboots else "one boot")
    second.train(30)
    second.finish()
    account = account_at(tmp_path)
    assert account.totals["down"] == pytest.approx(3600.0, abs=1)
    assert account.totals["repeated"] == account.totals["unseen"] == 0
    assert account.is_rough == reboots
    assert account.undisturbed_seconds == pytest.approx(account.seconds - 3600 - 30, abs=STEP)


def watched(number: int, **fields: object) -> LifeEnded:
    given = {
        **{"at": "2026-05-01T01:00:00+00:00", "supervisor": "ab" * 16, "number": number, "attempt": number},
        **{"boot": None, "earlier_seconds": 0.0, "began_at": "2026-05-01T00:00:00+00:00", "seconds": 400.0},
        **{"down_seconds": 0.0, "exit_code": None, "signal": "SIGKILL", "cause": "killed", "message": ""},
        **{"then": "restart", "rank": None, "ranks": 1, "restored": None, "restored_step": 0, "last_step": 100},
        **{"committed_step": 80, "committed_seconds": 200.0},
        "phases": {"starting": 100.0, "first_step": 20.0, "training": 260.0, "saving": 20.0},
    }
    return LifeEnded.model_validate({**given, **fields})


def lived(attempt: int, from_batches: int, *seen: LifeEnded) -> Life:
    return Life(attempt, from_batches=from_batches, to_batches=from_batches, watched=[*seen])


def test_a_watched_life_is_known_to_its_death():
    end = {"restored_step": 80, "last_step": 200, "committed_step": 200, "cause": "finished", "attempt": 2}
    later = lived(2, 80, watched(3, down_seconds=5.0, **end))
    nothing = {"attempt": None, "restored_step": None, "last_step": None}  # of a start that failed
    failed = watched(2, down_seconds=3.0, seconds=7.0, phases={"starting": 7.0}, **nothing)
    account = account_of([lived(1, 0, watched(1), failed), later])
    assert account.seconds == 400 + 3 + 7 + 5 + 400
    classes = {"trained": 200 + 260, "repeated": 60, "down": 8, "starting": 120 + 7 + 120, "saving": 40}
    assert {name: seconds for name, seconds in account.totals.items() if seconds} == classes
    assert (account.is_lower_bound, account.is_rough) == (False, False)
    assert [life.attempt for life in account.lives] == [1, None, 2]
    assert account.undisturbed_seconds == account.seconds - 60 - 8 - 127
    elsewhere = {"supervisor": "cd" * 16, "at": "2026-05-01T00:50:00+00:00", "seconds": 7.0, **nothing}  # and earlier
    account = account_of([lived(1, 0, watched(1), watched(1, **elsewhere))])
    assert [life.attempt for life in account.lives] == [None, 1]


def test_a_hang_is_no_training_and_a_life_may_be_stored_late():
    """The storage failed when the first one ended: the event with the later attempt tells which one it was."""
    phases = {"starting": 100.0, "first_step": 20.0, "training": 210.0, "saving": 20.0, "hung": 50.0}
    late = [watched(1, cause="hang", phases=phases), watched(2, restored_step=80, down_seconds=1.0, cause="finished")]
    account = account_of([lived(1, 0), lived(2, 80, *late, *late)])
    assert [(life.attempt, life.how) for life in account.lives] == [(1, "hang"), (2, "finished")]
    assert account.seconds == 400 + 1 + 400
    assert account.lives[0].seconds == {"starting": 120, "trained": 200, "repeated": 10, "saving": 20, "hung": 50}


def life(number, born, began, seen, from_batches, to_batches, how, *taken, starting=10.0):  # noqa: PLR0917
    """Of one boot; all its time after the start it trained."""
    spent = {"starting": starting, "training": seen - born - starting}
    made = Life(number, "boot", Moment(born), Moment(began), Moment(seen), spent, from_batches, to_batches, how=how)
    made.taken = list(taken)
    return made


def test_overtaken_or_unseen_life_is_counted_once():
    """It trained on for 100 s after the one that took over was born."""
    state = CommittedState(80, Moment(400.0), {"starting": 10.0, "training": 390.0}, 1.0)
    first = life(1, 0.0, 10.0, 500.0, 0, 100, "overtaken", state)
    account = account_of([first, life(2, 400.0, 410.0, 600.0, 80, 120, "finished")])
    assert account.seconds == 600
    assert (account.totals["trained"], account.totals["repeated"]) == (390 + 190, 0)
    first, last = (life(number, at, at, at + 100, 0, 0, "finished") for number, at in ((1, 0.0), (3, 150.0)))
    account = account_of([first, Life(2), last])  # without events, which leaves a gap that nobody saw
    assert (account.seconds, account.totals["unseen"]) == (250, 50)


@pytest.mark.parametrize(("how", "reached", "is_continued"), [(None, 80, True), ("failed", 100, False)])
def test_tail_after_the_last_commit_is_done_again(how, reached, is_continued):
    """A killed life trained on while its last save was written; what a failed one did since will be done again."""
    state = CommittedState(80, Moment(100.0), {"starting": 10.0, "training": 90.0}, 10.0)
    dead = life(1, 0.0, 10.0, 110.0, 0, reached, how, state)
    later = life(2, 110.0, 120.0, 130.0, 80, 80, "finished", starting=20.0)
    account = account_of([dead, later] if is_continued else [dead])
    assert (account.totals["trained"], account.totals["repeated"]) == (90.0, 10.0)


def test_what_lies_between_trainings_of_one_command_is_rest():
    """Of the second to the fourth; of the others, it is down."""
    times = {"boot": "boot", "uptime_seconds": 560.0, "seconds": 500.0, "earlier_seconds": 110.0}
    phases = {"starting": 30.0, "training": 360.0}
    account = account_of(
        [
            life(1, 0.0, 10.0, 50.0, 0, 40, "finished"),
            life(2, 60.0, 70.0, 100.0, 40, 80, "finished"),
            life(3, 120.0, 130.0, 150.0, 80, 90, "finished"),
            lived(4, 90, watched(1, attempt=4, cause="finished", last_step=100, phases=phases, **times)),
            life(5, 600.0, 610.0, 700.0, 100, 120, "finished"),
            life(6, 720.0, 730.0, 800.0, 120, 140, "finished"),
        ]
    )
    assert (account.seconds, account.totals["rest"], account.totals["down"]) == (800, 20 + 20, 10 + 40 + 20)


ENDS = st.sampled_from([None, "failed", "finished", "preempted", "overtaken"])
BATCHES = st.integers(0, 50)


DRAWN = st.tuples(ENDS, BATCHES, BATCHES, st.floats(0.1, 1e4), st.floats(0, 1e4), st.floats(0, 1))


@given(st.lists(DRAWN, min_size=1, max_size=6))
def test_classes_always_add_up(drawn):
    at, lives = 0.0, []
    for number, (how, first, more, seconds, gap, part) in enumerate(drawn, 1):
        spent = {"starting": seconds / 4, "training": seconds / 2, "saving": seconds / 4}
        taken = {"starting": seconds / 4, "training": part * seconds / 2}
        state = CommittedState(first + more // 2, Moment(at + seconds / 2), taken, 0.0)
        lives.append(life(number, at, at + seconds / 4, at + seconds, first, first + more, how, state))
        lives[-1].spent = spent
        at += seconds + gap
    account = account_of(lives)
    assert account.seconds == pytest.approx(at - drawn[-1][4])
    assert all(seconds >= 0 for entry in account.lives for seconds in entry.seconds.values())
    assert set(account.totals) == set(CLASSES)
    assert 0 <= account.share <= 1


HOUR, DAY = 3600.0, 86_400.0


def test_history_outweighs_the_prior():
    for failures, low, high in [
        (Failures(0, 0.0), 60, 300),  # the prior alone
        (Failures(0, HOUR), 3 * HOUR, 24 * HOUR),
        (Failures(0, 30 * DAY), 30 * DAY, 100 * DAY),
        (Failures(1, HOUR), 0.9 * HOUR, 1.1 * HOUR),
        (Failures(29, 29 * HOUR), 0.95 * HOUR, 1.05 * HOUR),
        (Failures(1000, 1000 * HOUR), 0.999 * HOUR, 1.001 * HOUR),
    ]:
        assert low <= 1 / failures.rate <= high, failures


def test_what_bounds_the_interval():
    stalls, slow = SaveTimes(stall_seconds=20.0, took_seconds=1.0), SaveTimes(0.01, 400.0)
    for times, failures, bound, seconds in [
        (stalls, Failures(), "overhead", 2000.0),
        (slow, Failures(5, HOUR), "storage", 500.0),
        (slow, Failures(0, HOUR), "storage", 1600.0),
    ]:
        choice = choose_interval(times, failures, 0.01)
        assert (choice.bound, choice.seconds) == (bound, seconds)
    failed = choose_interval(stalls, Failures(1, 600.0), 0.01)
    assert failed.bound == "failures"
    assert failed.seconds < 200
