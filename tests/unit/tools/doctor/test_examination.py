"""The order of an examination and what it makes of its lives, which are made by hand."""

import math
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import Manual
from support.doctor_lives import life, progress, stepped

from ckptkit.tools.doctor import examination
from ckptkit.tools.doctor.budget import Fitting, LifeCost, TimeBudget, cost_of
from ckptkit.tools.doctor.examination import DoctorExamination
from ckptkit.tools.doctor.lives.life_process import TrialLife
from ckptkit.tools.doctor.lives.trace import LifePlan, Stepped, StoppedEvent
from ckptkit.tools.doctor.plan import plan_deaths
from ckptkit.tools.doctor.result import DoctorOptions, FailedLifeError, UnusableScriptError

Line = Callable[[int, int, int], Stepped]  # of the number of the life, where it began, and the micro-step


class Script:
    """A script that resumes from its last save, and what it was told to do."""

    def __init__(self, monkeypatch, length: int = 99, line: Line = lambda number, begun, step: stepped(step)) -> None:
        self.plans: list[LifePlan] = []
        self.skipped: set[int] = set()
        self.lost: set[int] = set()  # saves that no life finds
        self.failing = 0  # the number of the life that ends with exit code 3
        self.log = Path("log")
        self._length, self._line = length, line
        self.now = 0.0
        self.cost = (0.0, 0.0)  # seconds until the first micro-step has ended, and of each further one
        self._saved: dict[str, int] = {}
        monkeypatch.setattr(examination, "live", self._live)

    def _live(self, command, name, plan, *, time_limit, **_) -> TrialLife:
        self.plans.append(plan)
        begun, began_at = self._saved.get(plan.root, 0), self.now
        last = min(plan.kill or plan.stop, self._length)
        if plan.enough is not None:
            last = min(last, max(2, 1 + math.ceil((plan.enough - self.now - self.cost[0]) / self.cost[1])))
        lines = [self._line(len(self.plans), begun, step) for step in range(begun + 1, last + 1)]
        for step in {*plan.saves} - self.lost:
            self._saved[plan.root] = step
        code = -signal.SIGKILL if plan.kill else 3 if len(self.plans) == self.failing else 0
        lines = [line for line in lines if line.step not in self.skipped]
        start, each = self.cost
        at = [self.now + start + each * number for number in range(len(lines))]
        lines = [line.model_copy(update={"at": moment}) for line, moment in zip(lines, at, strict=True)]
        self.now = at[-1] if at else self.now
        # The probe stops a process at its last micro-step, unless the script or a kill ends it there.
        stops = code == 0 and (last == plan.stop or last < self._length)
        stopped = [StoppedEvent(step=last)] if stops else []
        made = replace(
            life([*lines, *stopped], begun=begun),
            name=name,
            exit_code=code,
            planned_kill=plan.kill,
            log=self.log,
            seeded=plan.seed is not None,
        )
        until = began_at + time_limit.total_seconds()
        if self.now > until:
            self.now = until
            return replace(made, exit_code=None)
        return replace(made, began_at=began_at)

    def examined(self, **options):
        chosen = DoctorOptions(**{"steps": 9, "kills": 2, **options})
        silent = {"monotonic": lambda: self.now, "begins": lambda words, steps: None, "stepped": lambda steps: None}
        return DoctorExamination(["python"], Path("scratch"), chosen, **silent).run()


def test_only_lives_that_begin_training_are_seeded(monkeypatch):
    """A resumed life is left alone, as a restart is; all that are interrupted share one root."""
    script = Script(monkeypatch)
    report = script.examined(seed=5)
    assert report.difference is None
    assert report.compared == sum(len(life.steps) for life in report.lives[1:])
    assert [plan.seed for plan in script.plans] == [5, 5, 5, None, None]
    assert [Path(plan.root).name for plan in script.plans] == ["root-1", "root-2", "root-3", "root-3", "root-3"]
    assert [plan.stop for plan in script.plans] == [9] * 5
    assert [len(plan.saves) for plan in script.plans] == [0, 0, 1, 1, 0]
    assert len({plan.trace for plan in script.plans}) == 5


def test_script_that_ends_early_is_examined_so_far(monkeypatch):
    script = Script(monkeypatch, length=6)
    report = script.examined(steps=24)
    assert (report.steps, report.difference) == (6, None)
    assert [plan.stop for plan in script.plans] == [24, 6, 6, 6, 7], "the last life shows whether it ends there, too"
    assert all(save < 6 for plan in script.plans for save in plan.saves)


def test_script_that_a_resume_does_not_end_is_inexact(monkeypatch):
    """As one whose patience is lost: it trains on after the micro-step where it ended without an interruption."""
    script = Script(
        monkeypatch, length=6, line=lambda number, begun, step: stepped(step, {"net.left": str(step - begun)})
    )

    def live(command, name, plan, **options):
        script._length = 99 if plan.seed is None else 6
        return script._live(command, name, plan, **options)

    monkeypatch.setattr(examination, "live", live)
    report = script.examined(steps=24)
    assert (report.difference.step, report.difference.names) == (7, ())
    assert (report.diagnosis.code, report.diagnosis.where) == ("ends-elsewhere", "net.left")
    assert "trains on after micro-step 6" in report.diagnosis.cause


def test_unseen_values_that_a_resume_changes_are_noted(monkeypatch):
    """Those that differ without a resume, too, are not; nor those of the life that was not resumed but saved."""

    def line(number, begun, step):
        values = {
            "net.n": f"int {step}",
            "net.rows[0]": f"int {step}",
            **{"net.same": "int 3", "port": "0"},
            "clock": f"{number} {step}",
        }
        began = {**values, "net.n": "int 0", "net.rows[0]": "int 0", "port": str(number)} if step == begun + 1 else {}
        return stepped(step, values, began).model_copy(update={"unstored": {"a.json": "file"}})

    report = Script(monkeypatch, line=line).examined()
    assert (report.difference, report.notes) == (None, ("net.n", "net.rows[0]", "a.json"))
    assert (report.ignore, report.stateful) == (["net.n", "net.rows*", "a.json"], {})


def test_state_that_every_life_stores_otherwise_is_no_difference(monkeypatch):
    def line(number, begun, step):
        one = stepped(step)
        kept = {"told/kept.pid": str(number), "named/kept.mean": str(begun > 0 and number == 5)}
        return one.model_copy(update={"digests": {**one.digests, **kept}})

    report = Script(monkeypatch, line=line).examined()
    assert report.difference.names == ("named/kept.mean",)
    assert report.difference.life is report.lives[4]


def of_names(digests, more, without):
    def line(number, begun, step):
        traced = stepped(step, **digests)
        kept = {name: text for name, text in traced.digests.items() if not name.startswith(without)}
        added = {name: text.format(number=number, step=step) for name, text in more.items()}
        return traced.model_copy(update={"digests": {**kept, **added}})

    return line


def test_what_is_given_by_name_counts_where_it_shows_the_training(monkeypatch):
    """In a cycle of more micro-steps than are examined, no weight changes; a module of mindtorch is no cell."""
    still = {"weights": "frozen", "accumulators": "zero"}
    for digests, more, without, names in (
        ({}, {"parameters/other/w": "{number} {step}"}, (), ("parameters/other/w",)),
        (still, {"accumulators/w": "{step}", "named/clock.at": "{number} {step}"}, (), None),
        (still, {"parameters/model/w": "{step}", "named/clock.at": "{number} {step}"}, (), None),
        (still, {"named/model.w": "{number} {step}"}, (), ("named/model.w",)),
        (still, {"named/model.w": "{number} {step}"}, ("weights/", "accumulators/"), ("named/model.w",)),
    ):
        difference = Script(monkeypatch, line=of_names(digests, more, without)).examined().difference
        assert (difference and (difference.step, difference.names)) == (names and (1, names)), more


def slowed(monkeypatch, seconds, slow) -> Script:
    def line(number, begun, step):
        script.cost = (seconds if number == slow else 3.0, 0.1)
        return stepped(step)

    script = Script(monkeypatch, line=line)
    script.cost = (3.0, 0.1)
    return script


def test_first_difference_ends_the_examination(monkeypatch):
    def line(number, begun, step):
        if begun and step == 8:
            return stepped(step, weights="new")
        return stepped(step, loss="new") if (number, step) == (2, 3) else stepped(step)

    script = Script(monkeypatch, line=line)
    report = script.examined(kills=5)
    assert (report.difference.step, report.difference.names) == (8, ("weights/w",))
    assert report.difference.resumed_at > 0
    assert report.difference.life is report.lives[-1]
    assert 8 in report.difference.life.steps
    assert len(script.plans) < 8
    assert report.other_losses == (3,)


def test_life_that_goes_on_from_older_save_differs(monkeypatch):
    """Though it does again all that was lost, as the first life did it; that comes before what differs then."""
    sound = Script(monkeypatch)
    sound.examined()
    saves = [save for plan in sound.plans for save in plan.saves]
    for lost in (0, 1):
        for rng in ("", "new"):

            def line(number, begun, step, lost=lost, rng=rng):
                return stepped(step, rng=rng if number > 3 + lost else "")

            script = Script(monkeypatch, line=line)
            script.lost.add(saves[lost])
            report = script.examined()
            assert (report.difference.step, report.difference.found) == (saves[lost] + 1, None)
            assert report.difference.resumed_at == (0 if lost == 0 else saves[0])
            assert report.diagnosis.code == "never-resumed"


def test_script_that_shows_too_little_is_refused(monkeypatch):
    for length, skipped, steps, own_saves, words in (
        (1, (), 9, False, "after 1 micro-steps"),
        (9, (4,), 9, False, "after 8 micro-steps, and the last"),
        (99, (), 9, True, "within 9 micro-steps, the script committed no checkpoint by itself. Give more --steps"),
        (6, (), 24, True, "within 6 micro-steps, .* It ends there: let it save before"),
    ):
        script = Script(monkeypatch, length=length)
        script.skipped |= {*skipped}
        with pytest.raises(UnusableScriptError, match=words):
            script.examined(steps=steps, own_saves=own_saves)
        assert len(script.plans) == (6 if own_saves else 1), words


def test_equal_life_that_failed_is_no_exact_one(monkeypatch, tmp_path):
    """A restart gets no seeds, which may be why it failed."""
    (tmp_path / "log").write_text("out of luck")
    for failing, hint in ((2, r"\."), (5, r"; .* without the seeds")):
        script = Script(monkeypatch)
        script.failing, script.log = failing, tmp_path / "log"
        with pytest.raises(FailedLifeError, match=rf"exit code 3 after 9 micro-steps{hint}(.|\n)*out of luck"):
            script.examined(seed=5)
        assert len(script.plans) == failing


def within(seconds: float) -> dict[str, timedelta]:
    return {"within": timedelta(seconds=seconds)}


def test_short_time_leaves_out_kills_and_micro_steps(monkeypatch):
    """The first life shows what they cost; all later ones do as many micro-steps as fit."""
    script = Script(monkeypatch)
    script.cost = (3.0, 1.0)
    report = script.examined(steps=24, kills=3, **within(60))
    assert (report.difference, report.steps) == (None, 10)
    assert [plan.enough for plan in script.plans] == [12, *[None] * 4]
    assert [plan.stop for plan in script.plans] == [24, *[10] * 4]
    assert sum(plan.kill is not None for plan in script.plans) == 2
    assert report.seconds == script.now <= 60
    script = Script(monkeypatch)
    script.cost = (3.0, 0.1)
    report = script.examined(steps=24, kills=3, **within(60))
    assert (report.steps, len(report.lives)) == (24, 6), "there is enough time for all"
    script = slowed(monkeypatch, 40.0, 3)  # the last life is never left out: something has to be resumed
    report = script.examined(steps=24, kills=3, **within(60))
    assert report.difference is None
    assert [plan.kill is not None for plan in script.plans] == [False, False, True, False]
    assert report.lives[-1].last_step == report.steps == 24


def test_time_for_no_kill_is_told_in_numbers(monkeypatch):
    script = Script(monkeypatch)
    script.cost = (3.0, 1.0)
    with pytest.raises(UnusableScriptError, match=r"a life takes 3\.0 s .* and 1 s for each .* Allow 23 s or more"):
        script.examined(**within(15))
    assert len(script.plans) == 1
    script.now = 0.0
    assert script.examined(**within(23)).difference is None


def test_life_that_outlasts_the_time_ends_the_examination(monkeypatch, tmp_path):
    """It is no failure of the script, and no result; unless it outlasts its own limit."""
    for slow, words in ((1, "in life-001 after"), (4, "in life-004 after .* 1 kills")):
        script = slowed(monkeypatch, 1000.0, slow)
        with pytest.raises(UnusableScriptError, match=f"60 s were over {words}"):
            script.examined(steps=24, kills=3, **within(60))
        assert script.now == pytest.approx(60)
    script = slowed(monkeypatch, 3.0, 1)
    script.log = tmp_path / "log"
    script.log.write_text("waits")
    with pytest.raises(FailedLifeError, match="did not finish in time"):
        script.examined(time_limit=timedelta(seconds=1), **within(60))


def budget(seconds: float | None) -> tuple[TimeBudget, Manual]:
    clock = Manual()
    return TimeBudget(None if seconds is None else timedelta(seconds=seconds), clock), clock


def test_costs_are_those_of_the_first_life():
    """What follows its last micro-step, such as another run, costs each life that comes so far and is not killed."""
    lines = [stepped(step).model_copy(update={"at": 50 + 2.0 * step}) for step in (1, 2, 3, 4)]
    cost = cost_of(life(lines, began_at=47.0))
    assert (cost, cost_of(life(lines[:1], began_at=47.0)).step) == (LifeCost(5, 2), 0)
    assert (cost.of_life(3), cost.of_life(0), cost.of_chain(4, 1)) == (9, 5, 22)
    assert str(cost) == "5.0 s until its first micro-step has ended, and 2 s for each further one"
    cost = cost_of(life(lines, began_at=47.0, seconds=41.0))
    assert cost == LifeCost(5, 2, 30)
    assert str(cost).endswith(", and 30.0 s after the last")
    assert (cost.of_life(4), cost.of_chain(4, 1)) == (41, 52)
    assert budget(1.25 * (41 + 52))[0].fit(cost, 4, 1) == Fitting(4, 1)
    assert budget(1.25 * (9 + 20))[0].fit(cost, 4, 1) == Fitting(3, 1)


def test_kills_come_before_micro_steps():
    for seconds, expected in {
        85: Fitting(24, 3),  # the lives after the first take 68 s, and 25 % more
        84: Fitting(23, 3),
        55: Fitting(12, 3),
        54: Fitting(14, 2),  # too few micro-steps would be left for a third kill
        18: Fitting(2, 1),
        17: None,
    }.items():
        limited, clock = budget(seconds + 3)
        clock.now += 3
        assert limited.fit(LifeCost(3, 1), 24, 3) == expected, seconds
    cost = LifeCost(3, 1)  # and with the script's own saves, two lives more
    assert cost.of_rest(2, 1, own_saves=True) - cost.of_rest(2, 1) == cost.of_chain(2, 1) == 10
    limited, _ = budget(29.9)
    assert limited.fit(cost, 24, 1) == Fitting(6, 1)
    assert limited.fit(cost, 24, 1, own_saves=True) is None
    assert limited.needed(cost, own_saves=True) > 30 > limited.needed(cost)


def at(steps: int, k: int, size: int):
    return [progress(step, k, size) for step in range(1, steps + 1)]


@given(st.integers(2, 60), st.integers(1, 6), st.integers(1, 20), st.integers(1, 8))
def test_deaths_follow_ascending_saves_closely(steps, k, size, kills):
    deaths = plan_deaths(at(steps, k, size), kills)
    saves = [death.save for death in deaths]
    assert saves == sorted(set(saves))
    assert len(deaths) == min(kills, steps - 1)
    assert all(1 <= death.save <= death.kill <= min(death.save + 2, steps) for death in deaths)
    assert saves[-1] < steps  # something is left to do for the last life


@given(st.integers(21, 60), st.integers(2, 6), st.integers(5, 10))
def test_four_deaths_cover_two_epochs_and_epoch_end(steps, k, size):
    """Three are in mid-cycle, the first in an epoch before the others, and one is right at the end of an epoch."""
    deaths = plan_deaths(at(steps, k, size), 4)
    where = [progress(death.save, k, size) for death in deaths]
    assert [death.kill > death.save for death in deaths] == [at.batch > 0 for at in where]
    inside = [at for at in where if at.batch]
    assert len(inside) == 3
    assert inside[0].epoch < inside[1].epoch
    assert all(at.micro_step for at in inside)


def test_fourth_death_is_in_the_epoch_of_the_second():
    found = [progress(death.save, 3, 12) for death in plan_deaths(at(40, 3, 12), 4)]
    epochs = [at.epoch for at in found if at.batch]
    assert len(epochs) == 3
    assert epochs[1] == epochs[2] > epochs[0]
    (death,) = plan_deaths(at(24, 1, 100), 1)
    assert all(death.save % k for k in (2, 3, 4, 6, 8)), "an unknown cycle may be any usual one"
