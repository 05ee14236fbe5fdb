"""The doctor continues a job on another number of ranks, as processes that train in NumPy."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import timedelta

import pytest
from support import elastic_training
from support.process_ranks import environment, launcher

from ckptkit.cli.commands.doctor import run_doctor
from ckptkit.run.catalog import list_checkpoints
from ckptkit.run.resolve import open_wanted
from ckptkit.storage import open_storage
from ckptkit.tools.doctor.report import Options

SCRIPT = elastic_training.__file__


@pytest.fixture
def here(tmp_path, monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(ranks: int, *what: str) -> list[str]:
    return launcher(ranks, SCRIPT, *what) if ranks > 1 else [sys.executable, SCRIPT, *what]


def examined(capsys, ranks: int, onto: int, *what: str, as_json: bool = True, then: str | None = None):
    options = Options(steps=36 // ranks, kills=1, time_limit=timedelta(seconds=60))
    other = shlex.join(command(onto, *what)) if then is None else then
    code = run_doctor(command(ranks, *what), options, keep="kept", as_json=as_json, then=other)
    out, said = capsys.readouterr()
    return code, json.loads(out) if out and as_json else out or said


def hold(here, found, ranks: int, onto: int, code: int) -> None:
    """An examination that found nothing."""
    assert (code, found["exact"], found["ranks"], found["then"]["ranks"]) == (0, True, ranks, onto)
    changes = [(one["after"] * ranks, one["began_at"] * onto, one["mid_cycle"]) for one in found["then"]["changes"]]
    assert [mid_cycle for _, _, mid_cycle in changes] == [False, True]
    assert all(before == after for before, after, _ in changes)
    assert found["then"]["micro_batches"] == sum(36 - at for at, _, _ in changes)
    assert [one["ranks"] for one in found["lives"]] == [ranks] * 2 + [onto] + [ranks] * 3 + [onto] * 4
    died = [one["killed_after"] for one in found["lives"]]
    assert [at is not None for at in died] == [False, False, False, True, False, True, False, False, True, False]
    assert found["lives"][-1]["began_at"] == died[-2] - 1
    name = f"elastic-{found['then']['changes'][1]['after']}"
    storage = open_storage(next((here / "kept" / f"{name}-killed").iterdir()))  # of both numbers, and nothing else
    sizes = [open_wanted(storage, one.name).manifest.world_size for one in list_checkpoints(storage)]
    assert sizes[-1] == onto


def test_job_that_goes_on_with_one_rank_keeps_its_promises(here, capsys):
    code, found = examined(capsys, 2, 1)
    hold(here, found, 2, 1, code)


@pytest.mark.extended
@pytest.mark.parametrize(("ranks", "onto"), [(1, 2), (2, 3), (3, 2)])
def test_job_on_more_or_fewer_ranks_keeps_its_promises(here, capsys, ranks, onto):
    code, found = examined(capsys, ranks, onto)
    hold(here, found, ranks, onto, code)


@pytest.mark.parametrize(
    ("what", "diagnosis", "name"),
    [
        pytest.param("forgets", "lost-on-change", "named/tally.seen", marks=pytest.mark.extended),
        ("by-rank", "samples-repeated", "batch/x"),
        pytest.param("doubles", "sums-not-kept", "accumulators/accumulators", marks=pytest.mark.extended),
    ],
)
def test_planted_defect_of_the_change_is_named(here, capsys, what, diagnosis, name):
    """Resumes on as many ranks are exact: nothing but the change shows it."""
    code, found = examined(capsys, 2, 1, what)
    assert (code, found["exact"], found["diagnosis"]["code"]) == (1, False, diagnosis)
    assert found["difference"]["names"][0] == name
    last = found["lives"][-1]
    assert (found["difference"]["life"], last["ranks"]) == (last["name"], 1)


@pytest.mark.extended
@pytest.mark.parametrize("what", ["forgets", "by-rank", "doubles", "rigid"])
def test_planted_defect_is_seen_by_no_other_life(here, capsys, what):
    options = Options(steps=18, kills=2, time_limit=timedelta(seconds=60))
    assert run_doctor(command(2, what), options, keep=None, as_json=True) == 0


@pytest.mark.extended
def test_refusal_is_told_in_the_words_of_the_library(here, capsys):
    code, said = examined(capsys, 2, 1, "rigid", as_json=False)
    assert code == 1
    lines = said.splitlines()
    at = lines.index("REFUSED")
    assert lines[at + 1] == "diagnosis: refused: 2 ranks, then 1 rank"
    assert lines[at + 2] == "cause: made by 2 ranks, this job has 1. Start 2 ranks"
    assert not any(line.startswith("exact") for line in lines)


@pytest.mark.parametrize(
    ("then", "told"),
    [
        (None, "both commands start 2 ranks"),
        pytest.param(shlex.join(launcher(5, SCRIPT)), "1, 2, 3, 4, 6, 12 ranks", marks=pytest.mark.extended),
        ("'", "is not a command"),
        ("", "give --then a command"),
    ],
    ids=["as many", "does not fit", "not closed", "empty"],
)
def test_command_that_cannot_be_examined_is_refused(here, capsys, then, told):
    code, said = examined(capsys, 2, 2, then=then)
    assert code == 2
    assert told in said
    assert len(said.strip().splitlines()) <= 4 + said.count(" micro-steps\n")


def test_limit_of_time_is_refused_with_another_number_of_ranks(capsys):
    options = Options(within=timedelta(seconds=60))
    assert run_doctor(["python"], options, keep=None, as_json=False, then="python train.py") == 2
    assert "give fewer --steps" in capsys.readouterr().err
