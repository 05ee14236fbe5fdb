"""A stretch of a run of many ranks is certified, or what differs is named with its rank."""

from __future__ import annotations

import json
import sys

import pytest
from support import ranked_training
from support.process import python
from support.process_ranks import environment, launcher

from ckptkit.cli.commands.replay import run_replay
from ckptkit.run.catalog import list_checkpoints
from ckptkit.run.resolve import open_wanted
from ckptkit.storage import open_storage

SCRIPT = ranked_training.__file__


@pytest.fixture
def here(tmp_path, monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(here, *what, **also):
    python(*launcher(2, SCRIPT, *what)[1:], cwd=here, environment={**environment(), **also})
    return [one.name for one in list_checkpoints(open_storage(here / "run"))]


def replayed(capsys, command, *, begin, as_json=True):
    code = run_replay("run", command, begin=begin, end="latest", keep="kept", timeout=60, as_json=as_json)
    out, said = capsys.readouterr()
    return code, json.loads(out) if out and as_json else out or said


def contents(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_sound_stretch_of_two_ranks_is_certified(here, capsys):
    at = trained(here)
    before = contents(here / "run")
    code, found = replayed(capsys, launcher(2, SCRIPT), begin=at[0])
    assert (code, found["equal"], found["differing"]) == (0, at[1:], None)
    assert contents(here / "run") == before
    made = open_storage(here / "kept" / "run-1")
    assert open_wanted(made, "latest").manifest.world_size == 2


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.extended), 1])
def test_accumulator_that_one_rank_computed_wrongly_names_the_rank(here, capsys, rank):
    at = trained(here, FLIP=f"{rank} 8 accumulators 22")
    assert (here / "flipped").read_text() == f"{rank} 8 accumulators 22"  # the fault fired
    code, found = replayed(capsys, launcher(2, SCRIPT), begin=at[0])
    assert (code, found["equal"], found["differing"], found["deterministic"]) == (1, [], at[1], True)
    assert found["leaves"] == [{"name": "accumulators", "role": "accumulators", "rank": rank}]


@pytest.mark.extended
def test_weight_of_one_rank_is_found_once_it_has_an_effect(here, capsys):
    """Another rank stores it, so the next checkpoint in which the ranks were summed has it."""
    at = trained(here, FLIP="1 9 weights 22")
    assert (here / "flipped").exists()
    code, found = replayed(capsys, launcher(2, SCRIPT), begin=at[0])
    assert (code, found["equal"], found["differing"]) == (1, at[1:2], at[2])
    assert {one["name"] for one in found["leaves"]} == {"weights", "moments"}


@pytest.mark.extended
def test_text_names_the_rank_of_what_differs(here, capsys):
    at = trained(here, FLIP="1 8 accumulators 22")
    code, said = replayed(capsys, launcher(2, SCRIPT), begin=at[0], as_json=False)
    assert code == 1
    assert "what differs: rank 1: accumulators" in said


@pytest.mark.parametrize(("ranks", "its"), [pytest.param(1, 2, marks=pytest.mark.extended), (3, 2)])
def test_another_number_of_ranks_is_refused(here, capsys, ranks, its):
    """Also by a script that could go on with it, and would give other bits."""
    at = trained(here)
    script = here / "elastic.py"
    script.write_text(
        f"import sys\nsys.argv = [{SCRIPT!r}]\n"
        "from ckptkit.testing.state import NumpyRun\n"
        "whole = NumpyRun.apply\n"
        "def apply(run, contents):\n"
        "    object.__setattr__(contents, 'world_size', run.world.size)\n"
        "    whole(run, contents)\n"
        "NumpyRun.apply = apply\n"
        f"exec(compile(open({SCRIPT!r}).read(), {SCRIPT!r}, 'exec'))\n"
    )
    command = [sys.executable, str(script)] if ranks == 1 else launcher(ranks, str(script))
    code, said = replayed(capsys, command, begin=at[0])
    assert code == 2
    assert f"{at[0]} is of a job of {its} ranks, and this command trains {ranks}" in said
