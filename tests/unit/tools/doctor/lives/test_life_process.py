"""Lives of a script that needs no MindSpore: seeds, deaths, ends, refusals; and the cards of examinations."""

import contextlib
import json
import os
import random
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from support.doctor_lives import NUMPY_SCRIPT, SIZE, life, run_doctor, stepped
from support.junit import cases_of, read_junit

from ckptkit.tools.doctor.card import _kill, commit_of
from ckptkit.tools.doctor.compare import TraceDifference
from ckptkit.tools.doctor.examination import DoctorExamination
from ckptkit.tools.doctor.lives.life_process import live
from ckptkit.tools.doctor.lives.trace import LifePlan, SavedEvent
from ckptkit.tools.doctor.result import DoctorOptions, Report


@pytest.fixture
def here(ranked):
    (ranked / "train.py").write_text(NUMPY_SCRIPT)
    return ranked


def command(*what: str) -> list[str]:
    return [sys.executable, "train.py", *what]


def lived(here, *what: str, limit: float = 60, **plan):
    document = LifePlan(**{"root": str(here / "scratch"), "trace": str(here / "trace"), "stop": 5, **plan})
    clock = time.monotonic
    return live(command(*what), "life", document, time_limit=timedelta(seconds=limit), monotonic=clock)


def test_life_ends_as_planned_outside_script_root(here, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    life = lived(here)
    assert (life.exit_code, life.last_step, life.ended_as_planned) == (0, 5, True)
    assert not (here / "runs").exists()
    assert not (here / "exported").exists()
    assert next((here / "scratch").iterdir()).name.startswith("run-")
    assert sorted(re.findall("trains|aloud", life.log.read_text())) == ["aloud", "trains"]  # nothing is held back


def test_a_killed_life_resumes_from_its_save(here):
    life = lived(here, saves=(2,), kill=4)
    assert (life.exit_code, life.last_step, life.ended_as_planned) == (-signal.SIGKILL, 4, True)
    assert [event.step for event in life.saved] == [2]
    assert not replace(life, planned_kill=None).ended_as_planned
    assert not replace(life, planned_kill=5).ended_as_planned
    resumed = lived(here, trace=str(here / "resumed"))
    assert resumed.begun.step == 2
    assert sorted(resumed.steps) == [3, 4, 5]
    assert resumed.steps[4].digests["weights/w"] == life.steps[4].digests["weights/w"]


def test_script_has_nothing_to_read(here):
    """What is typed into the doctor's terminal is not the script's, which may ask."""
    (here / "train.py").write_text("import sys\nprint(repr(sys.stdin.read()))\n")
    (here / "typed").write_text("typed")
    before = os.dup(0)
    try:
        with (here / "typed").open() as typed:
            os.dup2(typed.fileno(), 0)
            assert lived(here).log.read_text() == "''\n"
    finally:
        os.dup2(before, 0)
        os.close(before)


def test_launcher_of_one_rank_is_not_waited_for(here):
    """As that of MindSpore, which takes half a minute to notice, and then fails."""
    document = LifePlan(root=str(here / "scratch"), trace=str(here / "trace"), stop=5)
    launched = ["sh", "-c", f"{shlex.join(command())}; sleep 600; exit 1"]
    life = live(launched, "life", document, time_limit=timedelta(seconds=60), monotonic=time.monotonic)
    assert (life.exit_code, life.ended_as_planned, life.last_step) == (-signal.SIGKILL, True, 5)
    assert not replace(life, planned_kill=4).ended_as_planned
    assert not replace(life, exit_code=None).ended_as_planned


def test_doctor_seeds_generators_and_hashes_unless_overridden(here, monkeypatch):
    seeded = lived(here, "unseeded", seed=7, trace=str(here / "a"))
    other = lived(here, "unseeded", seed=8, trace=str(here / "b"))
    own = lived(here, seed=8, trace=str(here / "c"))
    digests = [life.steps[1].digests for life in (seeded, other, own)]
    assert digests[0]["rng/python"] == repr(random.Random(7).getstate())
    assert digests[2]["rng/python"] == repr(random.Random(99).getstate())
    assert len({values["rng/numpy"] for values in digests}) == 3
    (here / "train.py").write_text("import os\nprint(os.environ.get('PYTHONHASHSEED'))\n")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert [lived(here, seed=seed).log.read_text().strip() for seed in (2**32 + 7, None)] == ["7", "None"]
    monkeypatch.setenv("PYTHONHASHSEED", "3")  # the user's
    assert lived(here, seed=7).log.read_text().strip() == "3"


def test_mindspore_is_seeded_once_it_is_imported(here):
    (here / "mindspore.py").write_text(
        "def set_seed(seed): print('set_seed', seed)\n"
        "def manual_seed(seed): print('manual_seed', seed)\n"
        "print('imported')\n"
    )
    (here / "train.py").write_text("print('begins')\nimport mindspore\nprint('goes on')\n")
    life = lived(here, seed=7)
    told = ["begins", "imported", "set_seed 7", "manual_seed 7", "goes on"]
    assert life.log.read_text().splitlines() == told
    assert lived(here, seed=None).log.read_text().splitlines() == ["begins", "imported", "goes on"]


def test_the_sitecustomize_that_is_shadowed_runs_as_well(here, monkeypatch):
    (here / "site").mkdir()
    (here / "site/sitecustomize.py").write_text("print('mine ran')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(here / "site"), os.environ.get("PYTHONPATH", "")]))
    life = lived(here, "unseeded", seed=0)
    assert life.log.read_text().count("mine ran") == 1
    assert life.steps[1].digests["rng/python"] == repr(random.Random(0).getstate())


@pytest.mark.parametrize(
    ("last", "limit", "code", "own_session"),
    [("time.sleep(600)", 1, None, True), ("raise SystemExit(3)", 60, 3, False)],
)
def test_life_leaves_no_process(here, last, limit, code, own_session):
    """Whether its time was up or it ended by itself; also what it moved to a session of its own, as msrun does."""
    (here / "train.py").write_text(
        "import subprocess, sys, time\n"
        "child = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        f"print(subprocess.Popen(child, start_new_session={own_session}).pid, flush=True)\n"
        f"{last}\n"
    )
    life = lived(here, limit=limit)
    assert life.exit_code == code
    assert not life.ended_as_planned
    with contextlib.suppress(ProcessLookupError):
        child = os.pidfd_open(int(life.log.read_text()))
        ended, _, _ = select.select([child], [], [], 20)
        os.close(child)
        assert ended


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_doctor_that_is_asked_to_end_ends_current_life(here, number, monkeypatch):
    (here / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(here / "scratch"))
    os.mkfifo(here / "ready")
    (here / "train.py").write_text("import os, time\nopen('ready', 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    # The tests themselves may run where SIGHUP is ignored, as under nohup.
    restore = "import os, signal, sys; signal.signal(1, signal.SIG_DFL); os.execv(sys.executable, sys.argv[1:])"
    doctor = [sys.executable, "-m", "ckptkit", "doctor", "--", *command()]
    process = subprocess.Popen([sys.executable, "-c", restore, *doctor])
    child = os.pidfd_open(int((here / "ready").read_text()))
    process.send_signal(number)
    assert process.wait(timeout=60) == 128 + number
    ended, _, _ = select.select([child], [], [], 20)
    os.close(child)
    assert ended
    assert not list((here / "scratch").iterdir())


def test_error_that_a_launcher_puts_elsewhere_is_told(here):
    (here / "train.py").write_text(
        "import subprocess, sys\n"
        "if 'rank' in sys.argv: raise LookupError('the tokens are gone')\n"
        "with open('rank.log', 'w') as log:\n"
        "    sys.exit(subprocess.call([sys.executable, __file__, 'rank'], stdout=log, stderr=log))\n"
    )
    life = lived(here)
    assert life.exit_code == 1
    assert life.last_words().splitlines()[-1] == "LookupError: the tokens are gone"
    (here / "train.py").write_text("raise LookupError('the tokens are gone')\n")
    assert lived(here).last_words().count("LookupError: the tokens are gone") == 1


def test_a_sound_script_is_exact(repository, capsys):
    """The report, the cases of JUnit and the card of one examination."""
    code, report, _, cases = doctored(capsys, card=repository / "cards/card.md")
    assert code == 0
    assert report["exact"]
    assert report["diagnosis"] is report["difference"] is None
    assert [life["exit_code"] for life in report["lives"]] == [0, 0, -9, -9, 0]
    assert report["lives"][-1]["began_at"] > 0
    assert report["seconds"] > sum(life["seconds"] for life in report["lives"]) > 0
    assert sorted(path.name for path in repository.iterdir()) == [".git", "cards", "ci", "train.py"]
    assert cases == [
        ("uninterrupted", None, ""),
        ("uninterrupted, once more", None, ""),
        ("life 3: begun afresh, killed after micro-step 3", None, ""),
        ("life 4: resumed after micro-step 2, killed after micro-step 7", None, ""),
        ("life 5: resumed after micro-step 5, to the end", None, ""),
    ]
    times = [float(case.attrib["time"]) for case in read_junit("ci/doctor.xml").iter("testcase")]
    assert all(0 < seconds < 60 for seconds in times)
    text, fields = card_in(repository)
    assert text.startswith("# Resume card of train.py, none: PASS\n")
    assert "- exact: every interrupted life is the uninterrupted one, bit for bit" in text
    expected = {
        **{"status": "verified", "differences": 0, "sentinels_match": True, "mode": "none"},
        **{"absolute_tolerance": 0, "relative_tolerance": 0, "sentinel_steps": "every micro-step from 1 to 9"},
        **{"micro_steps_compared": 21, "values_per_micro_step": 3, "commit": git("rev-parse", "HEAD")},
        "command": f"ckptkit doctor --steps 9 --kills 2 -- {Path(sys.executable).name} train.py",
    }
    assert {name: fields[name] for name in expected} == expected
    assert [kill["after"] for kill in fields["kills"]] == [3, 7]
    assert fields["kills"][0] == {"after": 3, "own_saves": False, "resumed_after": 2, **MIDDLE}
    assert [0 < seconds < 60 for seconds in fields["seconds_to_new_micro_step"]] == [True, True]
    assert 0 <= fields["stall_seconds"] < 60


def test_the_scripts_own_saves_are_examined(here, capsys):
    """It is killed once after one of them, and resumed without its root, from its mirror. The card names no folder."""
    (here / "train.py").write_text(NUMPY_SCRIPT.replace("root, save=every)", 'root, mirror="backup", save=every)'))
    folders = [str(here / "with a space/data"), f"--data={here}/x", f"{here}/sub/y.bin", "s3://bucket/deep/key"]
    program = [sys.executable, str(here / "train.py"), "own", *folders]
    card = here / "cards/card.md"
    code, out, _, cases = doctored(capsys, program=program, own_saves=True, kills=1, as_json=False, card=card)
    assert code == 0, out
    assert cases[4:] == [
        ("life 5: begun afresh, killed after micro-step 5, its own saves", None, ""),
        ("life 6: resumed after micro-step 4, to the end, its own saves at the mirror", None, ""),
    ]
    assert out.splitlines()[0].endswith(
        "9 micro-steps, 6 lives, killed after [3], and after 5 with its own saves, resumed from the mirror alone"
    )
    assert not (here / "backup").exists()
    text, fields = card_in(here)
    assert str(here) not in text
    assert "--own-saves" in fields["command"]
    assert fields["command"].endswith("train.py own data --data=x y.bin s3://bucket/deep/key")
    assert [kill["own_saves"] for kill in fields["kills"]] == [False, True]


def test_first_run_that_trains_is_examined_and_the_other_is_resumed_with_it(here, capsys):
    code, report, _, cases = doctored(capsys, "beside", "first")
    assert (code, len(cases)) == (0, 5)
    assert (report["url"], report["left_out"]) == (str(here / "runs/beside"), [str(here / "runs/mine")])
    assert (report["exact"], report["steps"], report["compared"]) == (True, 9, 9 + 3 + 5 + 4)
    lives = [(life["began_at"], life["ended_at"], life["killed_after"]) for life in report["lives"]]
    assert lives == [(0, 9, None), (0, 9, None), (0, 3, 3), (2, 7, 7), (5, 9, None)]
    assert sorted(path.name for path in here.iterdir()) == ["ci", "train.py"]
    # One that is restored and not trained, such as a teacher's, has no micro-steps that could be compared.
    code, report, _, _ = doctored(capsys, "teacher", "draws")
    assert (code, report["url"], report["left_out"]) == (1, str(here / "runs/mine"), [str(here / "runs/teacher")])
    assert report["difference"]["names"] == ["rng/numpy"]


def test_run_that_begins_after_the_examined_one_goes_on_in_every_life(here, capsys):
    code, out, _, _ = doctored(capsys, "twice", "elsewhere", steps=16, as_json=False)
    assert code == 0
    assert "\nexact: every interrupted life is the uninterrupted one, bit for bit\n" in out
    assert "train.py twice elsewhere: 9 micro-steps, 5 lives, killed after [3, 7]\n" in out
    assert f"not examined: run root {here}/runs/next, which the script restores as well" in out


@pytest.mark.parametrize(
    ("what", "code", "word"),
    [
        ("draws", "unknown", "rng/numpy"),
        ("other-root", "never-resumed", "another run root"),
        ("fails", "ends-elsewhere", "failed after micro-step 7, which the uninterrupted one passed: LookupError"),
    ],
)
def test_inexact_script_gets_diagnosis(here, capsys, what, code, word):
    exit_code, out, _, cases = doctored(capsys, what, as_json=False, card=here / "cards/card.md")
    assert exit_code == 1
    assert [end for _, end, _ in cases] == [*[None] * (len(cases) - 1), "failure"]
    assert cases[-1][2].startswith(f"{code}: ")
    told = next(read_junit("ci/doctor.xml").iter("failure")).text.splitlines()
    assert [line.partition(":")[0] for line in told] == ["first difference", "seen in", "diagnosis", "cause", "fix"]
    assert told == [line for line in out.splitlines() if line in told]
    assert word in told[3]
    text, fields = card_in(here)
    assert text.startswith("# Resume card of train.py, none: FAIL\n")
    assert "- first difference: micro-step " in text
    assert ("- diagnosis: never-resumed: " in text) == (what == "other-root")
    assert (fields["status"], fields["sentinels_match"]) == ("failed", False)
    assert re.fullmatch(r"from \d on", fields["differences"])
    assert fields["seconds_to_new_micro_step"][-1] is None
    assert re.search(r"(?<![\w.~:/])/\w", text) is None, text


def test_what_cannot_be_examined_is_told_with_its_reason(here, capsys):
    """An earlier card does not stay."""
    card = here / "cards/card.md"
    card.parent.mkdir()
    for text, expected, words, said in (
        ([*command("blind")], 2, "no observer()", "no observer()"),
        ([*command("crashes")], 1, "ended with exit code 1", "out of luck"),
        ([sys.executable, "-c", "print('trained')"], 2, "used no CheckpointCallback", "used no CheckpointCallback"),
        (["no-such-program"], 2, "no-such-program cannot be started", "cannot be started"),
        ([], 2, "give the command", "-- python train.py"),
    ):
        card.write_text("# Resume card of train.py: PASS\n")
        code, out, err, ((name, outcome, message),) = doctored(capsys, program=text, card=card)
        assert [*card.parent.iterdir()] == [], text
        assert (code, out, name, outcome) == (expected, "", "examination", "error"), text
        assert words in message, text
        assert said in err, text
    Path("ci/doctor.xml").write_text("<testsuites/>")
    Path("ci/doctor.xml.new").mkdir()
    with pytest.raises(OSError, match=r"doctor\.xml could not be written"):
        doctored(capsys, program=[])
    assert not Path("ci/doctor.xml").exists()


def doctored(
    capsys, *what: str, program: list[str] | None = None, as_json: bool = True, card: Path | None = None, **options
):
    chosen = DoctorOptions(**{"steps": 9, "kills": 2, **options})
    junit = Path("ci/doctor.xml")
    program = command(*what) if program is None else program
    code = run_doctor(program, chosen, keep=None, as_json=as_json, junit=junit, card=card)
    captured = capsys.readouterr()
    out = json.loads(captured.out) if as_json and captured.out else captured.out
    return code, out, captured.err, cases_of(junit)


def card_in(folder: Path) -> tuple[str, dict]:
    """The text and the fields of a card."""
    text = (folder / "cards/card.md").read_text()
    block = re.search("```yaml\n(.*)\n```", text, re.DOTALL)
    assert block is not None
    return text, {
        name: json.loads(value) for name, _, value in (line.partition(": ") for line in block[1].splitlines())
    }


def told_of(report, capsys, monkeypatch, **options):
    monkeypatch.setattr(DoctorExamination, "run", lambda self: report)
    code = run_doctor(["python", "train.py"], DoctorOptions(**options), keep=None, as_json=False)
    return code, capsys.readouterr().out.splitlines()


def test_exact_report_notes_what_was_not_seen(capsys, monkeypatch):
    report = Report(9, (), 20, 7, None, None, (3,), tuple(f"main():n{number}" for number in range(7)))
    code, lines = told_of(report, capsys, monkeypatch)
    assert any("1 reported loss was rounded differently" in line for line in lines if line.startswith("exact"))
    notes = [line.split()[1] for line in lines if line.startswith("note: main()")]
    assert (code, notes) == (0, [f"main():n{number}" for number in range(5)])
    long = life([stepped(step) for step in range(1, SIZE + 1)])
    for steps, is_told in ((SIZE - 1, True), (SIZE, False)):
        _, lines = told_of(Report(steps, (long,), 20, 7), capsys, monkeypatch)
        assert any(f"no epoch ended within {steps} micro-steps" in line for line in lines) == is_told
    killed = [replace(long, planned_kill=3), replace(long, planned_kill=3, own_saves=True)]
    report = Report(9, (long, *killed), 20, 7, seconds=12.4)
    _, lines = told_of(report, capsys, monkeypatch, steps=99, kills=2, within=timedelta(seconds=20))
    assert lines[-1] == "took 12 of 20 s, with 9 of 99 micro-steps and 1 of 2 kills"


def test_doctor_leaves_signal_handlers_as_they_were(capsys, monkeypatch):
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGHUP)}
    mine = [signal.getsignal(number) for number in before]
    try:
        assert told_of(Report(9, (), 20, 7), capsys, monkeypatch)[0] == 0
        assert [signal.getsignal(number) for number in before] == mine
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_json_tells_lives_that_did_nothing(capsys, monkeypatch, here):
    """A part of a life of many ranks differs: the whole life is the failed case."""
    full = life([stepped(1), stepped(2), stepped(3)])
    lives = (
        replace(full, name="life-1", ranks=(full, full)),
        replace(life([], begun=2, seconds=1.2346), name="life-2", own_saves=True),
        replace(full, name="life-3", events=[], exit_code=None, planned_kill=3),
    )
    difference = TraceDifference(3, ("loss",), full.steps[3], None, replace(full, name="life-2", rank=1), full)
    monkeypatch.setattr(DoctorExamination, "run", lambda self: Report(3, lives, 2, 7, difference, ranks=2))
    assert run_doctor(command(), DoctorOptions(), keep=None, as_json=True, junit=here / "out.xml") == 1
    printed = json.loads(capsys.readouterr().out)["lives"]
    assert [tuple(life.values()) for life in printed] == [
        ("life-1", 0, 3, None, 0, None, 0, False, False, 2),
        ("life-2", 2, 0, None, 0, None, 1.235, True, False, 1),
        ("life-3", None, 0, 3, None, None, 0, False, False, 1),
    ]
    assert [end for _, end, _ in cases_of(here / "out.xml")] == [None, "failure"]


def test_keep_requires_new_folder(here, capsys):
    (here / "full").mkdir()
    (here / "full/precious").write_text("mine")
    for keep, code in (("full", 2), ("full/precious/below", 3), ("new/below", 0)):
        assert run_doctor(command(), DoctorOptions(steps=4, kills=1), keep=keep, as_json=False) == code
    assert "cannot be started" not in capsys.readouterr().err
    assert (here / "new/below/life-001.trace").exists()


@pytest.fixture
def repository(here):
    git("init", "-q")
    git("add", "train.py")
    git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "one")
    return here


MIDDLE = {"epoch": 0, "batch": 2, "in_cycle": "2/4"}


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()  # noqa: S607


def test_kill_of_one_rank_names_it():
    lines = [stepped(1), stepped(2), stepped(3), SavedEvent(step=2)]
    ranks = tuple(life(lines, planned_kill=3, killed_ranks=(1,), rank=rank) for rank in (0, 1))
    kill = _kill(life(lines, planned_kill=3, killed_ranks=(1,), ranks=ranks))
    where = {"epoch": 0, "batch": 2, "in_cycle": "2/3"}
    assert kill == {"after": 3, "rank": 1, "own_saves": False, "resumed_after": 2, **where}
    assert _kill(life([stepped(1)], planned_kill=1, ranks=ranks))["rank"] == "all"


def test_commit_tells_whether_the_repository_was_modified(repository, tmp_path_factory):
    commit = git("rev-parse", "HEAD")
    assert [commit_of(repository / "train.py"), commit_of(Path("train.py")), commit_of(Path())] == [commit] * 3
    (repository / "other.py").write_text("")
    assert commit_of(repository / "train.py") == commit
    assert commit_of(repository / "other.py") is None  # no commit has it
    (repository / "train.py").write_text("changed")
    assert commit_of(repository / "train.py") == f"{commit} modified"
    assert commit_of(tmp_path_factory.mktemp("bare") / "train.py") is None
