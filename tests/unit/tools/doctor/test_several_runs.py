"""Scripts that train at several run roots: the first that trains is examined, and the others go on beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.doctor_lives import NUMPY_SCRIPT, run_doctor
from support.junit import cases_of

from ckptkit.tools.doctor.result import DoctorOptions


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with ``train.py``, in which it runs."""
    (tmp_path / "train.py").write_text(NUMPY_SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def doctored(*what: str, as_json: bool = True, **options) -> int:
    chosen = DoctorOptions(**{"steps": 9, "kills": 2, **options})
    program = [sys.executable, "train.py", *what]
    return run_doctor(program, chosen, keep="kept", as_json=as_json, junit=Path("ci/doctor.xml"))


def lives_of(report) -> list[tuple[int, int, int | None]]:
    return [(life["began_at"], life["ended_at"], life["killed_after"]) for life in report["lives"]]


def test_first_run_that_trains_is_examined_and_the_other_is_resumed_with_it(here, capsys):
    assert doctored("beside", "first") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["url"], report["left_out"]) == (str(here / "runs/beside"), [str(here / "runs/mine")])
    assert (report["exact"], report["steps"], report["compared"]) == (True, 9, 9 + 3 + 5 + 4)
    assert lives_of(report) == [(0, 9, None), (0, 9, None), (0, 3, 3), (2, 7, 7), (5, 9, None)]
    assert len(cases_of("ci/doctor.xml")) == 5
    assert sorted(path.name for path in here.iterdir()) == ["ci", "kept", "train.py"]


def test_run_that_begins_after_the_examined_one_goes_on_in_every_life(here, capsys):
    assert doctored("twice", "elsewhere", steps=16, as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "exact: every interrupted life is the uninterrupted one, bit for bit" in lines
    assert any(line.endswith("train.py twice elsewhere: 9 micro-steps, 5 lives, killed after [3, 7]") for line in lines)
    assert f"not examined: run root {here}/runs/next, which the script restores as well" in "\n".join(lines)


def test_run_that_is_restored_and_not_trained_is_not_examined(here, capsys):
    """Such as a teacher's: it has no micro-steps that could be compared."""
    assert doctored("teacher", "draws") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["url"], report["left_out"]) == (str(here / "runs/mine"), [str(here / "runs/teacher")])
    assert report["difference"]["names"] == ["rng/numpy"]
