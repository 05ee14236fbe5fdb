"""Starts jobs in processes of their own, and compares what they traced."""

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.process import Ended, run_python

import ckptkit


@dataclass(frozen=True)
class Life:
    """One start of a job: how it ended, digests of each micro-step by stage and number, warnings, the last stage."""

    ended: Ended
    steps: dict[tuple[str, int], dict[str, str]]
    warnings: list[str]
    stage: str


def live(name: str, mode: str, folder: Path, *, kill: int = 0, alone: bool = False, elsewhere: bool = False) -> Life:
    """Run one start of a job below ``folder``; ``alone`` without ckptkit."""
    number = sum(1 for _ in folder.glob("trace-*"))
    trace, work = folder / f"trace-{number}", folder / f"cwd-{number}"
    work.mkdir(parents=True)
    paths = [str(Path(__file__).parents[2]), str(Path(ckptkit.__file__).parents[1])]
    ended = run_python(
        *("-m", "exactness.jobs.life", name, mode, "" if alone else str(folder), str(trace), str(kill)),
        folder=work,
        environment={"GLOG_v": "3", "PYTHONPATH": os.pathsep.join(paths)},
        elsewhere=elsewhere,
    )
    lines = [json.loads(line) for line in trace.read_text().splitlines()] if trace.exists() else []
    steps = {(line["stage"], line["at"]): line["leaves"] for line in lines if "leaves" in line}
    warnings = [line["warning"] for line in lines if "warning" in line]
    return Life(ended, steps, warnings, lines[-1]["stage"] if lines else "")


def killed(name: str, mode: str, folder: Path, kills: Sequence[int]) -> list[Life]:
    """Starts that each die with SIGKILL after a micro-step."""
    lives = [live(name, mode, folder, kill=kill) for kill in kills]
    for life in lives:
        life.ended.expect(-signal.SIGKILL)
    return lives


def assert_continues(whole: Life, resumed: Life) -> None:
    """See that a life that went to the end did what the uninterrupted one did, to the bit."""
    order = list(whole.steps)
    assert resumed.steps
    assert list(resumed.steps) == order[len(order) - len(resumed.steps) :]
    assert_equal(whole, resumed)


def assert_equal(whole: Life, life: Life) -> None:
    for at, leaves in life.steps.items():
        expected = whole.steps[at]
        differing = [leaf for leaf in {**expected, **leaves} if leaves.get(leaf) != expected.get(leaf)]
        assert not differing, (at, differing, life.warnings)
