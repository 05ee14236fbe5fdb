"""A killed job that starts again goes on as one that was left alone, or ends with an error that says what to do."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.process import Ended, run_python

import ckptkit
from exactness.jobs.life import JOBS


@dataclass(frozen=True)
class Life:
    """One start of a job: how it ended, digests of each micro-step by stage and number, warnings, the last stage."""

    ended: Ended
    steps: dict[tuple[str, int], dict[str, str]]
    warnings: list[str]
    stage: str


def live(name: str, folder: Path, number: int, kill: int = 0) -> Life:
    trace, work = folder / f"trace-{number}", folder / f"cwd-{number}"
    work.mkdir(parents=True)
    paths = [str(Path(__file__).parents[2]), str(Path(ckptkit.__file__).parents[1])]
    ended = run_python(
        *("-m", "exactness.jobs.life", name, str(folder), str(trace), str(kill)),
        folder=work,
        environment={"GLOG_v": "3", "PYTHONPATH": os.pathsep.join(paths)},
        timeout=120,
        elsewhere=number > 1,
    )
    lines = [json.loads(line) for line in trace.read_text().splitlines()] if trace.exists() else []
    steps = {(line["stage"], line["at"]): line["leaves"] for line in lines if "leaves" in line}
    warnings = [line["warning"] for line in lines if "warning" in line]
    return Life(ended, steps, warnings, lines[-1]["stage"] if lines else "")


def killed_and_resumed(name: str, folder: Path) -> Life:
    live(name, folder, 1, JOBS[name].kill).ended.expect(-signal.SIGKILL)
    return live(name, folder, 2)


def cases(*, refused: bool) -> list[object]:
    of_kind = {name: job for name, job in JOBS.items() if bool(job.refused) == refused}
    return [
        pytest.param(name, marks=[] if job.default else [pytest.mark.extended], id=f"{name}-{job.mode}")
        for name, job in of_kind.items()
    ]


@pytest.mark.parametrize("name", cases(refused=False))
def test_resumed_job_is_the_uninterrupted_one(name, tmp_path):
    whole = live(name, tmp_path / "whole", 1)
    whole.ended.expect(0)
    resumed = killed_and_resumed(name, tmp_path / "killed")
    resumed.ended.expect(0)
    order = list(whole.steps)
    assert resumed.steps
    assert list(resumed.steps) == order[len(order) - len(resumed.steps) :]
    for at, leaves in resumed.steps.items():
        expected = whole.steps[at]
        differing = [leaf for leaf in {**expected, **leaves} if leaves.get(leaf) != expected.get(leaf)]
        assert not differing, (at, differing, resumed.warnings)
    warnings = whole.warnings + resumed.warnings
    assert not any("bit-exact" in warning for warning in warnings), warnings


@pytest.mark.parametrize("name", cases(refused=True))
def test_refused_job_is_told_what_to_do(name, tmp_path):
    job = JOBS[name]
    life = live(name, tmp_path, 1) if job.by == "first" else killed_and_resumed(name, tmp_path)
    life.ended.expect(1)
    *_, message = re.split(r"\n(?=[\w.]+Error: )", life.ended.stderr)
    assert all(words in message for words in job.refused), message
    assert len([at for at in life.steps if at[0] == life.stage]) <= (job.trained if job.by == "first" else 0)
