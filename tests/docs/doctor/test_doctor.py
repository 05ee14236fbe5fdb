"""`ckptkit doctor` on scripts as users write them: it names what is planted, and finds nothing where nothing is."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.process import python

SCRIPTS = Path(__file__).parent / "scripts"
PLANTED = Path(__file__).parents[3] / "benchmarks/corpus/planted"


def extended(*values: object) -> list:
    """A case that the default suite leaves out, since an examination takes long."""
    return [pytest.param(*values, marks=pytest.mark.extended)]


def doctor(
    folder: Path, script: str, *options: str, arguments: Sequence[str] = (), **environment: str
) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON and what stderr said."""
    command = ["-m", "ckptkit", "doctor", "--json", *options, "--", sys.executable, SCRIPTS / script, *arguments]
    done = python(*command, expect=None, timeout=3500, environment={"GLOG_v": "3", **environment}, cwd=folder)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.mark.parametrize("script", ["train.py", *extended("own_loop.py")])
def test_doctor_finds_sound_job_exact(tmp_path: Path, script: str) -> None:
    code, report, said = doctor(tmp_path, script)
    assert code == 0, (report, said)
    assert report["exact"]
    assert (report["diagnosis"], report["difference"], report["notes"]) == (None, None, [])
    began = [life["began_at"] for life in report["lives"]]
    assert began[:3] == [0, 0, 0]
    assert began[3:] == sorted(began[3:]) != [0, 0, 0]
    assert [life["exit_code"] for life in report["lives"]] == [0, 0, *[-9] * 4, 0]
    assert report["lives"][-1]["ended_at"] == report["steps"] == 24
    assert report["values"] > 25
    assert said.splitlines()[:2] == ["uninterrupted; 24 micro-steps", "uninterrupted, once more; 24 micro-steps"]
    assert len(said.splitlines()) == len(report["lives"])
    assert list(tmp_path.iterdir()) == []  # neither a run nor what the script exports after training


@pytest.mark.parametrize(
    ("what", "code", "where", "first"),
    [
        (("train.py", "seed", "dropout"), "random-operator", "network.drop (nn.Dropout)", ("loss",)),
        *extended(
            ("train.py", "seed", "draws", "drawing-map"),
            *("random-pipeline", "augment() in train.py", ("batch/x", "rng/numpy")),
        ),
        *extended(
            ("train.py", "seed", "draws", "draws-in-save"),
            *("saving-changes-state", "counted (Counted)", ("rng/numpy",)),
        ),
        *extended(("own_loop.py", "restarted"), "data-shifted", "the data pipeline", ("batch/0", "batch/x")),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else None,
)
def test_a_planted_defect_is_named(
    tmp_path: Path, what: tuple[str, ...], code: str, where: str, first: tuple[str, ...]
) -> None:
    script, *arguments = what
    exit_code, report, said = doctor(tmp_path, script, "--kills", "1", arguments=arguments)
    assert exit_code == 1, (report, said)
    assert not report["exact"]
    assert report["diagnosis"]["code"] == code, report
    assert where in report["diagnosis"]["where"]
    assert report["diagnosis"]["fix"]
    assert report["difference"]["names"][0] in first
    assert report["stateful"] == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
def test_data_drawn_without_a_seed_are_noticed(tmp_path: Path) -> None:
    """A restarted process is not seeded as the first was."""
    code, report, said = doctor(tmp_path, "train.py", "--kills", "1", "--steps", "6", arguments=["drawn-data"])
    assert (code, report) == (1, {})
    assert "without the seeds that the doctor sets" in said
    assert "No seed was set" in said


@pytest.mark.extended
@pytest.mark.parametrize(
    ("arguments", "begins"), [(["exact"], 5), (["align"], 6), (["rewind"], 3), (["mirror-near", "mirror-far"], 5)]
)
def test_own_saves_are_examined_in_every_mid_cycle_and_from_mirrors(
    tmp_path: Path, arguments: list[str], begins: int
) -> None:
    """The script saves after 5 micro-steps, K = 3: it is killed soon, and goes on from where its own option says.

    The life after the kill has only what two mirrors of its own hold, if it has some; the real ones are not touched.
    """
    own_saves = ("--own-saves", "--kills", "1", "--steps", "14")
    code, report, said = doctor(tmp_path, "train.py", *own_saves, arguments=["seed", *arguments])
    assert code == 0, (report, said)
    killed, resumed = report["lives"][-2:]
    assert (killed["own_saves"], killed["exit_code"], resumed["began_at"]) == (True, -9, begins)
    assert killed["killed_after"] <= 8
    assert report["exact"]
    assert (killed["from_mirror"], resumed["from_mirror"]) == (False, len(arguments) == 2)
    assert ("its own saves at its 2 mirrors, from 5 on" in said) == (len(arguments) == 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
@pytest.mark.parametrize("name", sorted(path.stem for path in PLANTED.glob("[pq]*.py")))
def test_verdict_is_the_truth_and_names_the_cause(tmp_path: Path, name: str) -> None:
    """The first line of each script is its truth: ``exact``, or the code and the place of the diagnosis."""
    script = PLANTED / f"{name}.py"
    truth = script.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    work = tmp_path / "work"
    work.mkdir()
    _, report, said = doctor(work, str(script), "--kills", "2", ROOT=str(tmp_path / "run"))
    diagnosis = report["diagnosis"]
    verdict = "exact" if report["exact"] else f"{diagnosis['code']}: {diagnosis['where']}"
    assert verdict == truth, (diagnosis, said)
