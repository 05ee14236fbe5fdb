"""Lives of a script that needs no MindSpore: seeds, deaths, ends, refusals."""

from __future__ import annotations

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
from support.doctor_lives import NAMES, NUMPY_SCRIPT, SIZE, life, run_doctor, stepped
from support.junit import cases_of, read_junit
from support.process import python

from ckptkit.tools.doctor import examine
from ckptkit.tools.doctor.compare import TraceDifference
from ckptkit.tools.doctor.diagnose import Diagnosis
from ckptkit.tools.doctor.examine import DoctorExamination
from ckptkit.tools.doctor.lives.trace import LifePlan
from ckptkit.tools.doctor.lives.trial import live
from ckptkit.tools.doctor.result import DoctorOptions, Report


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with ``train.py``, in which it runs."""
    (tmp_path / "train.py").write_text(NUMPY_SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


def test_launcher_of_one_rank_is_not_waited_for(here):
    """As that of MindSpore, which takes half a minute to notice, and then fails."""
    document = LifePlan(root=str(here / "scratch"), trace=str(here / "trace"), stop=5)
    launched = ["sh", "-c", f"{shlex.join(command())}; sleep 600; exit 1"]
    life = live(launched, "life", document, time_limit=timedelta(seconds=60), monotonic=time.monotonic)
    assert (life.exit_code, life.ended_as_planned, life.last_step) == (-signal.SIGKILL, True, 5)
    assert not replace(life, planned_kill=4).ended_as_planned
    assert not replace(life, exit_code=None).ended_as_planned


def test_doctor_seeds_generators_and_script_may_override(here):
    seeded = lived(here, "unseeded", seed=7, trace=str(here / "a"))
    other = lived(here, "unseeded", seed=8, trace=str(here / "b"))
    own = lived(here, seed=8, trace=str(here / "c"))
    digests = [one.steps[1].digests for one in (seeded, other, own)]
    assert digests[0]["rng/python"] == repr(random.Random(7).getstate())
    assert digests[2]["rng/python"] == repr(random.Random(99).getstate())
    assert len({one["rng/numpy"] for one in digests}) == 3


def test_order_of_hashes_is_the_users_or_seeded(here, monkeypatch):
    (here / "train.py").write_text("import os\nprint(os.environ.get('PYTHONHASHSEED'))\n")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    for seed, shown in ((2**32 + 7, "7"), (None, "None")):
        assert lived(here, seed=seed).log.read_text().strip() == shown
    monkeypatch.setenv("PYTHONHASHSEED", "3")
    assert lived(here, seed=7).log.read_text().strip() == "3"


def test_script_has_nothing_to_read(here):
    """What is typed into the doctor's terminal is not the script's, which may ask."""
    (here / "train.py").write_text("import sys\nprint(repr(sys.stdin.read()))\n")
    read, write = os.pipe()
    os.write(write, b"typed")
    os.close(write)
    before = os.dup(0)
    try:
        os.dup2(read, 0)
        assert lived(here).log.read_text() == "''\n"
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(read)


def test_mindspore_is_seeded_once_it_is_imported(here):
    """By a stand-in, which says what it was told, and when."""
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


def test_the_command_line_takes_the_scripts_own_options(here):
    (here / "train.py").write_text("import sys\nraise SystemExit(f'got {sys.argv[1:]}')\n")
    own = command("--lr", "0.1", "--steps", "8")
    done = python("-m", "ckptkit", "doctor", "--steps", "4", "--", *own, expect=1)
    assert "got ['--lr', '0.1', '--steps', '8']" in done.stderr


def test_a_sound_script_is_exact(here, capsys):
    code, report, _, cases = doctored(capsys)
    assert code == 0
    assert report["exact"]
    assert report["diagnosis"] is report["difference"] is None
    assert [life["exit_code"] for life in report["lives"]] == [0, 0, -9, -9, 0]
    assert report["lives"][-1]["began_at"] > 0
    assert report["seconds"] > sum(life["seconds"] for life in report["lives"]) > 0
    assert sorted(path.name for path in here.iterdir()) == ["ci", "train.py"]
    assert cases == [
        ("uninterrupted", None, ""),
        ("uninterrupted, once more", None, ""),
        ("life 3: begun afresh, killed after micro-step 3", None, ""),
        ("life 4: resumed after micro-step 2, killed after micro-step 7", None, ""),
        ("life 5: resumed after micro-step 5, to the end", None, ""),
    ]
    times = [float(case.attrib["time"]) for case in read_junit("ci/doctor.xml").iter("testcase")]
    assert all(0 < seconds < 60 for seconds in times)


def test_the_scripts_own_saves_are_examined(here, capsys):
    """It is killed once after one of them, and resumed without its root, from its mirror."""
    (here / "train.py").write_text(NUMPY_SCRIPT.replace("root, save=every)", 'root, mirror="backup", save=every)'))
    code, out, _, cases = doctored(capsys, "own", own_saves=True, kills=1, as_json=False)
    assert code == 0, out
    assert cases[4:] == [
        ("life 5: begun afresh, killed after micro-step 5, its own saves", None, ""),
        ("life 6: resumed after micro-step 4, to the end, its own saves at the mirror", None, ""),
    ]
    assert out.splitlines()[0].endswith(
        "9 micro-steps, 6 lives, killed after [3], and after 5 with its own saves, resumed from the mirror alone"
    )
    assert not (here / "backup").exists()


def test_mirror_that_is_another_one_at_every_start_is_named(here, capsys):
    """The run root is the same; only a process that has lost it shows that."""
    other = 'root, mirror=f"backup/{time.time_ns()}", save=every)'
    (here / "train.py").write_text(NUMPY_SCRIPT.replace("root, save=every)", other))
    code, report, _, _ = doctored(capsys, "own", own_saves=True, kills=1)
    found = report["diagnosis"]
    assert (code, found["code"]) == (1, "never-resumed")
    assert f"{here / 'backup'}/" in found["where"]
    assert "began afresh, although its run had a checkpoint after micro-step 4" in found["cause"]
    lives = [(life["began_at"], life["ended_at"], life["killed_after"]) for life in report["lives"]]
    assert lives[-2] == (0, 5, 5)
    assert [life["own_saves"] for life in report["lives"]] == [False] * 4 + [True] * 2


def test_two_trainings_of_one_root_are_one_run(here, capsys):
    code, report, err, _ = doctored(capsys, "twice", steps=16, kills=3)
    assert (code, report["exact"], report["steps"]) == (0, True, 16), err
    assert any(life["began_at"] > 9 for life in report["lives"])  # killed and resumed in the second one


@pytest.mark.parametrize(
    ("what", "code", "word"),
    [
        ("draws", "unknown", "rng/numpy"),
        ("other-root", "never-resumed", "another run root"),
        ("fails", "ends-elsewhere", "failed after micro-step 7, which the uninterrupted one passed: LookupError"),
    ],
)
def test_inexact_script_gets_diagnosis(here, capsys, what, code, word):
    exit_code, out, _, cases = doctored(capsys, what, as_json=False)
    assert exit_code == 1
    assert [end for _, end, _ in cases] == [*[None] * (len(cases) - 1), "failure"]
    assert cases[-1][2].startswith(f"{code}: ")
    told = next(read_junit("ci/doctor.xml").iter("failure")).text.splitlines()
    assert [line.partition(":")[0] for line in told] == ["first difference", "seen in", "diagnosis", "cause", "fix"]
    assert told == [line for line in out.splitlines() if line in told]
    assert word in told[3]


def test_what_cannot_be_examined_is_told_with_its_reason(here, capsys):
    for what, expected, words, said in (
        ("blind", 2, "no observer()", "no observer()"),
        ("crashes", 1, "ended with exit code 1", "out of luck"),
    ):
        code, out, err, ((name, outcome, message),) = doctored(capsys, what)
        assert (code, out, name, outcome) == (expected, "", "examination", "error"), what
        assert words in message, what
        assert said in err, what
    Path("ci/doctor.xml").write_text("<testsuites/>")
    Path("ci/doctor.xml.new").mkdir()
    with pytest.raises(OSError, match=r"doctor\.xml could not be written"):
        doctored(capsys, program=[])
    assert not Path("ci/doctor.xml").exists()


def test_unusable_commands_exit_with_reason(here, capsys):
    for text, expected, said in (
        ("print('trained')", 2, "used no CheckpointCallback"),
        ("raise SystemExit('no such data')", 1, "no such data"),
    ):
        (here / "train.py").write_text(text)
        code, _, err, _ = doctored(capsys)
        assert (code, said in err) == (expected, True), err
    code, _, err, _ = doctored(capsys, program=["no-such-program"])
    assert (code, "no-such-program cannot be started" in err) == (2, True)
    code, _, err, _ = doctored(capsys, program=[])
    assert (code, "-- python train.py" in err) == (2, True)


def doctored(capsys, *what: str, program: list[str] | None = None, as_json: bool = True, **options):
    """The exit code, what was printed to each stream, and the cases of the JUnit file."""
    chosen = DoctorOptions(**{"steps": 9, "kills": 2, **options})
    junit = Path("ci/doctor.xml")
    code = run_doctor(command(*what) if program is None else program, chosen, keep=None, as_json=as_json, junit=junit)
    captured = capsys.readouterr()
    out = json.loads(captured.out) if as_json and captured.out else captured.out
    return code, out, captured.err, cases_of(junit)


def test_the_headline_claims_no_more_than_was_equal(capsys, monkeypatch):
    partly = (
        "exact: state, batches and gradients of every interrupted life are those of the uninterrupted one, bit for bit"
    )
    for losses, words in (
        ((), "exact: every interrupted life is the uninterrupted one, bit for bit"),
        ((3,), f"{partly}; 1 reported loss was rounded differently"),
        ((3, 5), f"{partly}; 2 reported losses were rounded differently"),
    ):
        code, lines = told_of(Report(9, (), 20, 7, None, None, losses, ()), capsys, monkeypatch)
        assert (code, [line for line in lines if line.startswith("exact")]) == (0, [words])


def lives_by_hand(monkeypatch, *given):
    """`live` gives these, one after the other."""
    lives = iter(given)
    monkeypatch.setattr(examine, "live", lambda *_, **__: next(lives))


def trained(**digests):
    return life([stepped(1), stepped(2), stepped(3, **digests)])


def test_job_that_disagrees_with_itself_is_diagnosed(here, monkeypatch, capsys):
    lives_by_hand(monkeypatch, trained(), trained(weights="new"))
    code, report, _, _ = doctored(capsys)
    assert (code, report["exact"], len(report["lives"])) == (1, False, 2)
    assert (report["difference"]["step"], report["difference"]["resumed_at"]) == (3, 0)
    assert report["diagnosis"]["code"] == "not-reproducible"


def test_first_life_failing_in_training_is_a_failure(here, monkeypatch, capsys):
    (here / "log").write_text("no memory is left")
    lives_by_hand(monkeypatch, replace(trained(), exit_code=3, log=here / "log"))
    code, out, err, _ = doctored(capsys)
    assert (code, out) == (1, "")
    assert "life ended with exit code 3 after 3 micro-steps. Its last output:\nno memory is left" in err


def told_of(report, capsys, monkeypatch, **options):
    monkeypatch.setattr(DoctorExamination, "run", lambda self: report)
    code = run_doctor(["python", "train.py"], DoctorOptions(**options), keep=None, as_json=False)
    return code, capsys.readouterr().out.splitlines()


def test_report_tells_difference_cause_and_fix(capsys, monkeypatch):
    full = trained()
    for begun, names, told in (
        (2, ("loss",), ("loss", "resumed after micro-step 2")),
        (0, NAMES[:6], ("batch/x, loss, accumulators/accum.w, weights/w and 2 more", "begun afresh")),
        (2, (), ("it did not get that far", "resumed after micro-step 2")),
    ):
        difference = TraceDifference(3, names, full.steps[3], None, life([], begun=begun), full)
        diagnosis = Diagnosis("some-code", "net.drop", "it draws", "do not", ("net.other", "net.third"))
        report = Report(3, (full, full), 2, 7, difference, diagnosis)
        code, lines = told_of(report, capsys, monkeypatch)
        assert code == 1
        assert lines == [
            "python train.py: 3 micro-steps, 2 lives, killed after none",
            "compared: 2 micro-steps with 7 values each",
            "NOT exact",
            f"first difference: micro-step 3 (epoch 0, batch 3, micro-step 0 of 3): {told[0]}",
            f"seen in: life, {told[1]}",
            "diagnosis: some-code: net.drop",
            "cause: it draws",
            "fix: do not",
            "look also at: net.other, net.third",
        ]
    code, lines = told_of(replace(report, diagnosis=replace(diagnosis, also=())), capsys, monkeypatch)
    assert (code, lines[-1]) == (1, "fix: do not")


def test_exact_report_notes_what_was_not_seen(capsys, monkeypatch):
    report = Report(9, (), 20, 7, notes=tuple(f"main():n{number}" for number in range(7)))
    code, lines = told_of(report, capsys, monkeypatch)
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


def test_json_tells_lives_that_did_nothing(capsys, monkeypatch, here):
    lives = (
        trained(),
        replace(life([], begun=2, seconds=1.2346), own_saves=True),
        replace(trained(), events=[], exit_code=None, planned_kill=3),
    )
    monkeypatch.setattr(DoctorExamination, "run", lambda self: Report(3, lives, 2, 7))
    assert run_doctor(command(), DoctorOptions(), keep=None, as_json=True) == 0
    told = [tuple(one.values()) for one in json.loads(capsys.readouterr().out)["lives"]]
    assert told == [
        ("life", 0, 3, None, 0, None, 0, False, False, 1),
        ("life", 2, 0, None, 0, None, 1.235, True, False, 1),
        ("life", None, 0, 3, None, None, 0, False, False, 1),
    ]
    # A part of a life of many ranks differs: the whole life is the failed case.
    lives = [replace(trained(), name=f"life-{number}", ranks=(trained(), trained())) for number in (1, 2, 3)]
    part = replace(trained(), name="life-2", rank=1)
    difference = TraceDifference(3, ("loss",), trained().steps[3], None, part, trained())
    report = Report(3, tuple(lives), 2, 7, difference, ranks=2)
    monkeypatch.setattr(DoctorExamination, "run", lambda self: report)
    assert run_doctor(command(), DoctorOptions(), keep=None, as_json=True, junit=here / "out.xml") == 1
    assert 'failures="1"' in (here / "out.xml").read_text()


def test_doctor_leaves_sigterm_as_it_was(here, capsys, monkeypatch):
    """After an examination and after one that could not be."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    mine = signal.getsignal(signal.SIGTERM)
    try:
        assert doctored(capsys, program=[])[0] == 2
        assert signal.getsignal(signal.SIGTERM) is mine
        assert told_of(Report(9, (), 20, 7), capsys, monkeypatch)[0] == 0
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_keep_requires_new_folder(here, capsys):
    (here / "full").mkdir()
    (here / "full/precious").write_text("mine")
    assert run_doctor(command(), DoctorOptions(), keep="full", as_json=False) == 2
    assert run_doctor(command(), DoctorOptions(), keep="full/precious/below", as_json=False) == 3
    assert "cannot be started" not in capsys.readouterr().err
    assert run_doctor(command(), DoctorOptions(steps=4, kills=1), keep="new/below", as_json=False) == 0
    assert "exact" in capsys.readouterr().out
    assert (here / "new/below/life-001.trace").exists()
