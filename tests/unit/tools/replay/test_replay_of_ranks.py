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


def test_accumulator_that_one_rank_computed_wrongly_names_the_rank(here, capsys):
    at = trained(here, FLIP="1 8 accumulators 22")
    assert (here / "flipped").read_text() == "1 8 accumulators 22"  # the fault fired
    code, said = replayed(capsys, launcher(2, SCRIPT), begin=at[0], as_json=False)
    assert code == 1
    assert f"DIFFERS: {at[1]}" in said
    assert "what differs: rank 1: accumulators\n" in said
    assert "cause: two replays agree with each other" in said


def test_another_number_of_ranks_is_refused(here, capsys):
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
    code, said = replayed(capsys, [sys.executable, str(script)], begin=at[0])
    assert code == 2
    assert f"{at[0]} is of a job of 2 ranks, and this command trains 1" in said
