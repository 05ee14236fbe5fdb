"""`ckptkit doctor` and `ckptkit replay` of a real job under ``msrun``: the one of ``docs/ranks.md``'s kind."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from benchmarks.bit_flips import mindspore_job
from ckptkit.cli.commands.doctor import run_doctor
from ckptkit.run.catalog import list_checkpoints
from ckptkit.run.resolve import open_wanted
from ckptkit.storage import open_storage
from ckptkit.tools.doctor.lives.trace import Killed, read_traces
from ckptkit.tools.doctor.report import Options
from multirank.msrun import elastic_job
from multirank.msrun.launch import environment, free_port

SCRIPT = mindspore_job.__file__


def command(ranks: int, *script: str) -> list[str]:
    number = f"--worker_num={ranks}", f"--local_worker_num={ranks}"
    where = "--master_addr=127.0.0.1", f"--master_port={free_port()}", "--log_dir=logs", "--join=True"
    return [str(Path(sys.executable).with_name("msrun")), *number, *where, *(script or (SCRIPT,))]


@pytest.mark.extended
def test_doctor_kills_real_ranks_and_compares_each(tmp_path, monkeypatch, capsys):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    options = Options(steps=9, kills=3, time_limit=timedelta(minutes=3))
    code = run_doctor(command(2), options, keep="kept", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (code, found["exact"], found["ranks"], found["steps"]) == (0, True, 2, 9)
    assert [one["killed_rank"] for one in found["lives"]] == [None, None, 1, None, 0, None]
    killed = []
    for one in found["lives"]:
        traces = read_traces(tmp_path / "kept" / f"{one['name']}.trace")
        killed.append(
            [rank for rank, events in enumerate(traces) if any(isinstance(event, Killed) for event in events)]
        )
    assert [killed[2], bool(killed[3]), killed[4]] == [[1], True, [0]]  # the faults fired
    storage = open_storage(next((tmp_path / "kept" / "root-3").iterdir()))
    last = list_checkpoints(storage)[-1]
    assert last.progress is not None
    assert last.progress.batches_delivered == found["lives"][-1]["began_at"]
    assert open_wanted(storage, last.name).manifest.world_size == 2
    assert not (tmp_path / "run").exists()


@pytest.fixture
def continued(tmp_path, monkeypatch, capsys):
    """Examine a job of two ranks that goes on as one; returns the exit code and the JSON."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def examined(*what: str):
        script = elastic_job.__file__, *what
        options = Options(steps=12, kills=1, time_limit=timedelta(minutes=3))
        then = shlex.join(command(1, *script))
        code = run_doctor(command(2, *script), options, keep="kept", as_json=True, then=then)
        return code, json.loads(capsys.readouterr().out)

    return examined


@pytest.mark.extended
def test_doctor_examines_two_real_ranks_that_go_on_as_one(tmp_path, continued):
    """At a boundary and in mid-cycle; the launcher of one rank, which waits half a minute, does not slow it down."""
    code, found = continued()
    assert (code, found["exact"], found["ranks"], found["then"]["ranks"]) == (0, True, 2, 1)
    changes = [(one["after"], one["began_at"], one["mid_cycle"]) for one in found["then"]["changes"]]
    assert changes == [(4, 8, False), (6, 12, True)]
    assert (found["then"]["micro_batches"], found["then"]["converted"]) == (16 + 12, [])
    killed = read_traces(tmp_path / "kept" / f"{found['lives'][-2]['name']}.trace")[0][-1]
    assert isinstance(killed, Killed)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("what", "diagnosis", "name"),
    [("forgets", "lost-on-change", "named/tally.seen"), ("by-rank", "samples-repeated", "batch/0")],
)
def test_doctor_names_what_real_ranks_lose_as_one(continued, what, diagnosis, name):
    code, found = continued(what)
    assert (code, found["diagnosis"]["code"], found["difference"]["names"][0]) == (1, diagnosis, name)


@pytest.mark.extended
def test_doctor_tells_why_real_ranks_are_refused(continued):
    code, found = continued("rigid")
    assert (code, found["difference"], found["diagnosis"]["code"]) == (1, None, "refused")
    assert "pass ranks=ckptkit.Ranks(elastic=True) to continue with 1" in found["diagnosis"]["cause"]
