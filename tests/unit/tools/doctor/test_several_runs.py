"""Scripts that train at several run roots: each run is examined, and what one reads of the other is named."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from support.doctor_lives import NUMPY_SCRIPT, life, stepped
from support.junit import cases_of

from ckptkit.cli.commands.doctor import run_doctor
from ckptkit.manager.hooks import Unseen
from ckptkit.tools.doctor import run_by_run
from ckptkit.tools.doctor.compare import Difference
from ckptkit.tools.doctor.diagnose import diagnose_resume
from ckptkit.tools.doctor.later import begins_later, diagnose_later, later_difference
from ckptkit.tools.doctor.lives.runs import Runs
from ckptkit.tools.doctor.lives.trace import (
    Begun,
    Followed,
    Later,
    LifePlan,
    Other,
    Stepped,
    Stopped,
    read_traces,
    trace_of,
)
from ckptkit.tools.doctor.lives.trial import Life
from ckptkit.tools.doctor.report import Options, Report, Reports
from ckptkit.tools.doctor.run_by_run import RunByRun


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with ``train.py``, in which it runs."""
    (tmp_path / "train.py").write_text(NUMPY_SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def doctored(*what: str, as_json: bool = True, **options) -> int:
    chosen = Options(**{"steps": 9, "kills": 2, **options})
    program = [sys.executable, "train.py", *what]
    return run_doctor(program, chosen, keep="kept", as_json=as_json, junit=Path("ci/doctor.xml"))


def lives_of(report) -> list[tuple[int, int, int | None]]:
    return [(one["began_at"], one["ended_at"], one["killed_after"]) for one in report["lives"]]


@pytest.mark.parametrize(
    ("what", "names"),
    [
        pytest.param("beside first", ("beside", "mine"), id="first", marks=pytest.mark.extended),
        pytest.param("beside", ("mine", "beside"), id="last", marks=pytest.mark.extended),
    ],
)
def test_runs_side_by_side_are_examined_one_after_the_other(here, capsys, what, names):
    """Each is killed and resumed; the other one goes on meanwhile, and is resumed with it."""
    assert doctored(*what.split()) == 0
    second = json.loads(capsys.readouterr().out)
    (first,) = second["before"]
    roots = [str(here / "runs" / name) for name in names]
    assert [first["url"], second["url"]] == roots
    for report in (first, second):
        assert (report["exact"], report["steps"], report["compared"]) == (True, 9, 9 + 3 + 5 + 4)
        assert lives_of(report) == [(0, 9, None), (0, 9, None), (0, 3, 3), (2, 7, 7), (5, 9, None)]
    assert second["left_out"] == []
    found = cases_of("ci/doctor.xml")
    assert [name for name, _, _ in found][::5] == [f"{root}: uninterrupted" for root in roots]
    assert sorted(path.name for path in here.iterdir()) == ["ci", "kept", "train.py"]
    assert (here / "kept/run-2/life-005.trace").exists()


def test_runs_one_after_the_other_are_examined(here, capsys):
    """While the second is examined, the first one is trained to its end, and is complete when a life resumes."""
    assert doctored("twice", "elsewhere", steps=16, as_json=False) == 0
    words = capsys.readouterr().out.splitlines()
    assert [line for line in words if line.startswith(("run root", "exact"))] == [
        f"run root {here}/runs/mine",
        "exact: every interrupted life is the uninterrupted one, bit for bit",
        f"run root {here}/runs/next",
        "exact: every interrupted life is the uninterrupted one, bit for bit",
    ]
    assert [line.partition(": ")[2] for line in words if "train.py" in line] == [
        "9 micro-steps, 6 lives, killed after [3, 7]",
        "16 micro-steps, 5 lives, killed after [4, 13]",
    ]
    resumed = read_traces(here / "kept/run-2/life-004.trace")[0]
    assert [type(one) for one in resumed[:2]] == [Begun, Stepped]  # the first one is complete
    assert not any(isinstance(one, Other) for one in resumed)
    assert resumed[1].others == {str(here / "runs/mine"): 9}  # as without an interruption
    first = read_traces(here / "kept/life-001.trace")[0]
    assert first[-1] == Stopped(step=9, beyond=True)  # 16 micro-steps of the second one after the first had ended


def test_run_that_is_restored_and_not_trained_is_passed_over(here, capsys):
    """Such as a teacher's: it has no micro-steps that could be compared."""
    assert doctored("teacher", "draws") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["url"], found["before"], found["left_out"]) == (str(here / "runs/mine"), [], [])
    assert found["difference"]["names"] == ["rng/numpy"]
    assert found["untrained"] == [str(here / "runs/teacher")]
    events = read_traces(here / "kept/life-001.trace")[0]
    assert [type(one) for one in events[:4]] == [Begun, Begun, Followed, Stepped]
    assert [type(one) for one in read_traces(here / "kept/life-002.trace")[0][:2]] == [Begun, Stepped]


def test_first_run_that_is_inexact_ends_the_examination(here, capsys):
    assert doctored("beside", "first", "forgets", as_json=False) == 1
    words = capsys.readouterr().out.splitlines()
    assert f"run root {here}/runs/beside" in words
    assert "NOT exact" in words
    mine = f"run root {here}/runs/mine"
    assert mine not in words
    assert f"not examined: {mine}, at which the script trains as well: mend this first" in words


def test_run_that_is_inexact_beside_an_exact_one_is_found(here, capsys):
    assert doctored("beside", "forgets") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["url"], found["exact"], found["left_out"]) == (str(here / "runs/beside"), False, [])
    assert found["difference"]["names"] == ["weights/w"]
    assert [one["exact"] for one in found["before"]] == [True]
    last = cases_of("ci/doctor.xml")[-1]
    assert (last[0].partition(": ")[0], last[1]) == (str(here / "runs/beside"), "failure")


def test_what_one_run_reads_of_another_is_named(here, capsys):
    """A process that dies between the two saves continues one of them earlier than the other."""
    assert doctored("beside", "reads", every_micro_step=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["diagnosis"]["code"] == "runs-apart"
    assert found["diagnosis"]["where"] == str(here / "runs/beside")
    assert "stood at its micro-step 1 without an interruption and at 0 after the resume" in found["diagnosis"]["cause"]


def test_lost_generator_is_not_taken_for_runs_that_stand_apart(here, capsys):
    """Both were resumed after equally many micro-steps; the other one has trained none since."""
    script = NUMPY_SCRIPT.replace('    if "reads" in what', '    np.random.random()\n    if "reads" in what')
    (here / "train.py").write_text(
        script.replace("    its.train_step()", "    its.train_step()\n    np.random.random()")
    )
    assert doctored("beside") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["difference"]["names"] == ["rng/numpy"]
    assert found["diagnosis"]["code"] == "unknown"


@pytest.mark.extended
def test_run_that_begins_in_the_loop_of_another_may_train_first_after_a_resume(here, capsys):
    before = 'if "beside" in what:\n    its, keeper = beside()'
    in_loop = "if state.batches > 2:\n        if its is None:\n            its, keeper = beside()"
    script = NUMPY_SCRIPT.replace(before, "its = None").replace('if "first" in what:', in_loop)
    (here / "train.py").write_text(script)
    doctored()
    found = json.loads(capsys.readouterr().out)
    first = found["before"][0]
    assert (first["url"], first["exact"]) == (str(here / "runs/mine"), True)


HANDS_OVER = (
    ("state.train_step()\n", "state.train_step()\n    mean = (mean + state.weights) / 2\n"),
    ("total = 3 if", "mean = np.zeros_like(state.weights)\ntotal = 3 if"),
    ("again = Run()", "again = Run()\n    again.weights += mean"),
)


def test_what_a_later_run_begins_with_is_compared(here, capsys):
    """Its own checkpoints hold what came of it: only a resume of the run before shows that it was lost."""
    script = NUMPY_SCRIPT
    for before, after in HANDS_OVER:
        assert before in script
        script = script.replace(before, after)
    (here / "train.py").write_text(script)
    assert doctored("twice", "elsewhere", steps=16) == 1
    found = json.loads(capsys.readouterr().out)
    following = str(here / "runs/next")
    assert (found["url"], found["left_out"]) == (str(here / "runs/mine"), [following])
    assert found["diagnosis"]["code"] == "next-run-differs"
    shown = found["difference"]
    assert (shown["url"], shown["step"], shown["resumed_at"], shown["names"]) == (following, 1, 5, ["weights/w"])


@pytest.mark.extended
def test_what_a_run_begins_with_is_compared_when_the_one_before_was_complete(here, capsys):
    """Each resume of the first run does its last micro-step again, but for a process that dies after it."""
    script = NUMPY_SCRIPT
    for before, after in HANDS_OVER[1:]:
        script = script.replace(before, after)
    in_last = "state.train_step()\n    if state.batches == total:\n        mean = state.weights.copy()\n"
    (here / "train.py").write_text(script.replace("state.train_step()\n", in_last, 1))
    assert doctored("twice", "elsewhere", steps=16) == 1
    found = json.loads(capsys.readouterr().out)
    assert lives_of(found) == [(0, 9, None), (0, 9, None), (0, 3, 3), (2, 7, 7), (5, 9, None), (9, 0, None)]
    assert found["diagnosis"]["code"] == "next-run-differs"
    assert "this run was complete when the process started again" in found["diagnosis"]["cause"]
    shown = found["difference"]
    following = str(here / "runs/next")
    assert (shown["url"], shown["step"], shown["resumed_at"], shown["names"]) == (following, 1, 9, ["weights/w"])


def test_run_that_does_not_save_at_its_end_is_not_taken_for_complete(here, capsys):
    (here / "train.py").write_text(NUMPY_SCRIPT.replace("    manager.save_final(state)\n", ""))
    assert doctored("twice", "elsewhere", steps=16) == 0
    (first,) = json.loads(capsys.readouterr().out)["before"]
    assert lives_of(first) == [(0, 9, None), (0, 9, None), (0, 3, 3), (2, 7, 7), (5, 9, None)]


def test_what_a_complete_run_does_not_make_again_is_named():
    """Such as weights that the loop keeps after its last micro-step."""
    best = "train.py:best"
    first = life([stepped(5, {best: "0.25"}), Later(url="/runs/next", after=5, line=stepped(1))])
    complete = life([Later(url="/runs/next", after=5, line=stepped(1, weights="other"))], begun=5)
    begun = complete.events[0].model_copy(update={"unseen": {best: Unseen(digest="None", text="None")}})
    found = later_difference(replace(complete, events=[begun, *complete.events[1:]]), first, first)
    assert found is not None
    told = diagnose_later(found, frozenset())
    assert told.where == best
    assert "train.py:best (0.25 uninterrupted, None here)" in told.cause
    assert diagnose_later(found, frozenset({best})).where == "/runs/next"


def test_what_two_uninterrupted_lives_begin_otherwise_is_no_difference():
    def one(**digests: str) -> Life:
        return life([stepped(5), Later(url="/runs/next", after=5, line=stepped(1, **digests))])

    first, resumed = one(), one(weights="other", loss="0.5")
    assert later_difference(one(loss="0.5"), first, first) is None
    assert later_difference(resumed, first, one(weights="another")) is None
    assert later_difference(resumed, first, life([stepped(5)])) is None
    found = later_difference(resumed, first, first)
    assert found is not None
    assert (found.url, found.step, found.names) == ("/runs/next", 1, ("weights/w",))
    assert begins_later(first, 5)
    assert not begins_later(first, 4)
    assert diagnose_later(found, frozenset()).where == "/runs/next"


def test_run_that_cannot_be_examined_is_named(here, capsys):
    """So are those before it, which were exact."""
    script = NUMPY_SCRIPT.replace("again.batches < 20", "again.batches < 1")
    (here / "train.py").write_text(script)
    assert doctored("twice", "elsewhere", steps=16) == 2
    runs = here / "runs"
    assert f"run root {runs}/next ({runs}/mine was exact): the script called" in capsys.readouterr().err


def test_runs_that_were_resumed_together_are_not_apart():
    expected = stepped(6).model_copy(update={"others": {"/runs/beside": 5}})
    for at, code in ((5, "unknown"), (4, "runs-apart"), (None, "runs-apart")):
        others = {} if at is None else {"/runs/beside": at}
        found = stepped(6, weights="other").model_copy(update={"others": others})
        one = life([found], begun=5)
        difference = Difference(6, ("weights/w",), expected, found, one, life([stepped(5), expected]))
        assert diagnose_resume(difference, frozenset()).code == code
        afresh = replace(difference, life=life([found]))
        assert diagnose_resume(afresh, frozenset()).code != "runs-apart"


def test_run_that_ends_elsewhere_because_another_stands_elsewhere_is_apart():
    """Such as one that trains as long as the other one does."""
    there = {"/runs/beside": 7}
    last = stepped(5).model_copy(update={"others": there})
    reference = life([stepped(4), last])
    for at, late, early in ((7, "ended-late", "ended-early"), (4, "runs-apart", "runs-apart")):
        end = stepped(5, {"place:patience": "2"}).model_copy(update={"others": {"/runs/beside": at}})
        longer = life([end, stepped(6)], begun=4)
        ended = Difference(6, (), last, stepped(6), longer, reference)
        assert diagnose_resume(ended, frozenset()).code == late
        ended = Difference(6, (), stepped(6), None, life([end], begun=4), life([last, stepped(6)]))
        assert diagnose_resume(ended, frozenset()).code == early


@pytest.mark.extended
def test_other_root_that_never_comes_again_is_inexact(here, capsys):
    """Its name has a time in it; the run beside it is exact."""
    script = NUMPY_SCRIPT.replace('"runs/beside"', 'f"runs/beside-{time.time_ns()}"')
    (here / "train.py").write_text(script)
    assert doctored("beside") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["diagnosis"]["code"], len(found["before"])) == ("never-resumed", 1)
    assert "the script saves to another run root at every start" in found["diagnosis"]["cause"]


class Examined:
    """Takes the place of `Examination`: knows which runs a script has, and what an examination takes."""

    def __init__(self, monkeypatch, *urls: str, seconds: float = 10, appears: bool = True) -> None:
        self.urls, self.seconds, self.appears = urls, seconds, appears
        self.now = 0.0
        self.begun: list[tuple[tuple[str, ...], timedelta | None]] = []
        monkeypatch.setattr(run_by_run, "Examination", self._one)

    def _one(self, command, folder, options, *, others, begins, **_):
        self.begun.append((tuple(others), options.within))
        begins("uninterrupted", 3)
        return self

    def run(self) -> Report:
        self.now += self.seconds
        others = self.begun[-1][0]
        url = next(one for one in self.urls if one not in others)
        more = tuple(one for one in self.urls if one not in (*others, url))
        return Report(9, (), 20, 7, url=url, others=more, seconds=self.seconds)


def run_by_run_of(folder: Path, examined: Examined, **options):
    told: list[str] = []
    one = RunByRun(
        ["python"],
        folder,
        Options(**options),
        monotonic=lambda: examined.now,
        begins=lambda words, steps: told.append(words),
        stepped=lambda steps: None,
    )
    return one.run(), told


def test_time_is_for_all_runs(monkeypatch, tmp_path):
    examined = Examined(monkeypatch, "/a", "/b", "/c")
    found, told = run_by_run_of(tmp_path, examined, within=timedelta(seconds=29))
    assert [one.url for one in found.reports] == ["/a", "/b"]
    assert (found.left_out, found.is_sound) == (("/c",), True)
    assert examined.begun == [((), timedelta(seconds=29)), (("/a", "/c"), timedelta(seconds=19))]
    assert told == ["uninterrupted", "/b: uninterrupted"]


def test_what_there_was_no_time_for_is_told(monkeypatch, capsys, tmp_path):
    Examined(monkeypatch, "/a", "/b", seconds=0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(RunByRun, "_in_time", lambda self, spent: None)
    options = Options(within=timedelta(seconds=5))
    assert run_doctor(["python", "train.py"], options, keep=None, as_json=False) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "not examined: run root /b, at which the script trains as well: there was no time left"


def test_run_that_was_restored_and_not_trained_is_told(monkeypatch, capsys, tmp_path):
    """It may be trained later than the micro-steps that were examined."""
    lines = Report(9, (), 20, 7, url="/a", others=("/b",), untrained=("/later",))
    found = Reports((lines, Report(9, (), 20, 7, url="/b", untrained=("/a", "/later"))))
    assert found.untrained == ("/later",)
    monkeypatch.setattr(RunByRun, "run", lambda self: found)
    monkeypatch.chdir(tmp_path)
    assert run_doctor(["python", "train.py"], Options(), keep=None, as_json=False) == 0
    assert (
        capsys.readouterr().out.splitlines()[-1].startswith("note: run root /later was restored, and did no micro-step")
    )


def test_first_run_that_trains_and_is_not_left_out_is_followed():
    plan = LifePlan(root="root", trace="trace", stop=9, others={"/a": 0})
    runs = Runs(plan)
    assert [runs.is_candidate(url, 0) for url in ("/teacher", "/a", "/b", "/c")] == [True, False, True, True]
    assert [runs.follows(url) for url in ("/a", "/b", "/c", "/a", "/b")] == [False, True, False, False, True]
    assert [runs.is_candidate(url, 5) for url in ("/b", "/c", "/d", "/a")] == [True, False, False, False]
    assert runs.others == {"/teacher": 0, "/a": 5, "/c": 5, "/d": 5}


def over_after(runs: Runs, url: str, begun: int, last: int) -> int | None:
    """The micro-step of the other run after which the followed one seems to have ended."""
    runs.is_candidate(url, begun)
    for at in range(begun + 1, last + 1):
        runs.other_steps(url, at)
        if runs.is_over(url):
            return at
    return None


def test_run_that_goes_on_after_the_followed_one_ends_the_life():
    runs = Runs(LifePlan(root="root", trace="trace", stop=4))
    assert over_after(runs, "/before", 0, 9) is None  # the followed one has not begun
    runs.step(1)
    assert over_after(runs, "/critic", 0, 30) is None  # it may train so often for each micro-step
    runs.step(2)
    assert over_after(runs, "/critic", 30, 60) is None
    runs.step(3)
    assert over_after(runs, "/critic", 60, 99) == 60 + 30 + 4
    runs.step(4)
    assert over_after(runs, "/after", 3, 6) is None  # it did three
    assert over_after(runs, "/after", 6, 9) == 7


def test_followed_run_that_is_complete_when_it_is_restored_is_over():
    """Its loop does no micro-step, and what comes after it has no end otherwise."""
    runs = Runs(LifePlan(root="root", trace="trace", stop=4, others={"/next": 0}))
    assert over_after(runs, "/next", 0, 9) is None  # the followed one was not restored
    assert runs.is_candidate("/mine", 9)
    assert over_after(runs, "/next", 9, 99) == 9 + 4


def test_pace_of_another_run_is_known_in_later_lives():
    runs = Runs(LifePlan(root="root", trace="trace", stop=4, others={"/critic": 30}))
    runs.step(5)
    assert over_after(runs, "/critic", 150, 180) is None
    others = [{"/critic": 0}, {"/critic": 30}, {"/critic": 55}]
    lines = [stepped(step).model_copy(update={"others": one}) for step, one in enumerate(others, 1)]
    one = life(lines)
    trained = replace(one, events=[*one.events, Other(url="/critic")])
    assert trained.paces == {"/critic": 30}


def test_ranks_are_known_if_another_run_began_first(tmp_path):
    begun = Begun(url="/runs/mine", step=0, checkpoint=None, ranks=2)
    for rank in range(2):
        lines = [Other(url="/runs/beside"), Followed(url="/runs/mine"), begun]
        trace_of(tmp_path / "trace", rank).write_text("".join(one.model_dump_json() + "\n" for one in lines))
    assert [len(one) for one in read_traces(tmp_path / "trace")] == [3, 3]
