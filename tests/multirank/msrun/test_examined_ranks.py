"""`ckptkit doctor` and `ckptkit replay` of a real job under ``msrun``: the one of ``docs/ranks.md``'s kind."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from support.doctor_lives import run_doctor

from benchmarks.bit_flips import mindspore_job
from ckptkit.run.catalog import list_checkpoints
from ckptkit.run.resolve import open_wanted
from ckptkit.storage import open_storage
from ckptkit.tools.doctor.lives.trace import KilledEvent, read_traces
from ckptkit.tools.doctor.result import DoctorOptions
from multirank.msrun.launch import environment, free_port

SCRIPT = mindspore_job.__file__


def command(ranks: int) -> list[str]:
    number = f"--worker_num={ranks}", f"--local_worker_num={ranks}"
    where = "--master_addr=127.0.0.1", f"--master_port={free_port()}", "--log_dir=logs", "--join=True"
    return [str(Path(sys.executable).with_name("msrun")), *number, *where, SCRIPT]


@pytest.mark.extended
def test_doctor_kills_real_ranks_and_compares_each(tmp_path, monkeypatch, capsys):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    options = DoctorOptions(steps=9, kills=3, time_limit=timedelta(minutes=3))
    code = run_doctor(command(2), options, keep="kept", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (code, found["exact"], found["ranks"], found["steps"]) == (0, True, 2, 9)
    assert [one["killed_rank"] for one in found["lives"]] == [None, None, 1, None, 0, None]
    killed = []
    for one in found["lives"]:
        traces = read_traces(tmp_path / "kept" / f"{one['name']}.trace")
        killed.append(
            [rank for rank, events in enumerate(traces) if any(isinstance(event, KilledEvent) for event in events)]
        )
    assert [killed[2], bool(killed[3]), killed[4]] == [[1], True, [0]]  # the faults fired
    storage = open_storage(next((tmp_path / "kept" / "root-3").iterdir()))
    last = list_checkpoints(storage)[-1]
    assert last.progress is not None
    assert last.progress.batches_delivered == found["lives"][-1]["began_at"]
    assert open_wanted(storage, last.name).manifest.world_size == 2
    assert not (tmp_path / "run").exists()
