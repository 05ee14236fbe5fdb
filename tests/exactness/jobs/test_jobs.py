"""No job differs silently from the same one left alone: it is exact, or named first, or refused with advice."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.process import Ended, run_python

import ckptkit
from exactness.jobs.outcome import Exact, Named, Refused, Told
from exactness.jobs.table import JOBS


@dataclass(frozen=True)
class Life:
    """One start of a job.

    Attributes:
        ended: How.
        lines: What it told.
    """

    ended: Ended
    lines: list[dict]

    @property
    def steps(self) -> dict[tuple[str, int], dict]:
        return {(line["part"], line["at"]): line["leaves"] for line in self.lines if line["event"] == "step"}

    @property
    def begins(self) -> list[tuple[str, int]]:
        return [(line["part"], line["at"]) for line in self.lines if line["event"] == "begin"]

    def warned(self, words: str, within: int = 0) -> bool:
        """Whether a warning with the words came before the first micro-step, or after at most ``within`` of them."""
        steps = 0
        for line in self.lines:
            steps += line["event"] == "step"
            if steps > within:
                return False
            if line["event"] == "warning" and words in line["words"]:
                return True
        return False


def live(name: str, folder: Path, number: int, kill: int | None = None) -> Life:
    """Start a job once."""
    trace, work = folder / f"trace-{number}", folder / f"cwd-{number}"
    work.mkdir(parents=True)
    paths = [str(Path(__file__).parents[2]), str(Path(ckptkit.__file__).parents[1])]
    environment = {"GLOG_v": "3", "PYTHONPATH": os.pathsep.join(paths)}
    arguments = [name, str(folder), str(trace), *([str(kill)] if kill is not None else [])]
    ended = run_python(
        *("-m", "exactness.jobs.life", *arguments),
        folder=work,
        environment=environment,
        timeout=120,
        elsewhere=number > 1,
    )
    lines = trace.read_text().splitlines() if trace.exists() else []
    return Life(ended, [json.loads(line) for line in lines])


def first_difference(reference: Life, resumed: Life) -> str | None:
    """What the resumed life has otherwise, or None."""
    steps = reference.steps
    order = list(steps)
    done = list(resumed.steps)
    if done != order[len(order) - len(done) :]:
        return f"trained {done}, but {order} is the whole"
    for at, leaves in resumed.steps.items():
        differing = [place for place in {**steps[at], **leaves} if leaves.get(place) != steps[at].get(place)]
        if differing:
            return f"{at}: {differing[0]} is the first of {len(differing)} that differ: {differing[:12]}"
    return None


def judge(name: str, folder: Path) -> None:
    job = JOBS[name]
    expected = job.expected
    reference = live(name, folder / "reference", 1)
    refusable = isinstance(expected, Refused) and expected.at == "start"
    if isinstance(expected, Refused) and expected.warned is not None:
        assert reference.warned(expected.warned), said((reference,))
    if refusable or (isinstance(expected, Told) and reference.ended.returncode == 1):
        assert_refused(expected, reference, at_most=expected.after if isinstance(expected, Refused) else 1)
        return
    reference.ended.expect(0)
    killed = live(name, folder / "killed", 1, job.kill)
    killed.ended.expect(-signal.SIGKILL)
    resumed = live(name, folder / "killed", 2)
    if isinstance(expected, Refused) or (isinstance(expected, Told) and resumed.ended.returncode == 1):
        assert_refused(expected, resumed, at_most=0)
        return
    resumed.ended.expect(0)
    assert resumed.steps, "the resumed life trained nothing"
    difference = first_difference(reference, resumed)
    lives = (reference, killed, resumed)
    if isinstance(expected, Named):
        assert all(life.warned(expected.words, expected.within) for life in lives), said(lives)
        if expected.differs is not None:
            assert (difference is not None) == expected.differs, (difference, said(lives))
    elif isinstance(expected, Told):
        assert difference is None or all(life.warned(expected.words) for life in lives), (difference, said(lives))
    else:
        assert isinstance(expected, Exact)
        assert difference is None, (difference, said(lives))
        assert not any("bit-exact" in line for line in said(lives)), said(lives)


def said(lives: tuple[Life, ...]) -> list[str]:
    return list(dict.fromkeys(line["words"] for life in lives for line in life.lines if line["event"] == "warning"))


def assert_refused(expected: Refused | Told, life: Life, at_most: int) -> None:
    life.ended.expect(1)
    words = expected.words if isinstance(expected, Refused) else (expected.words,)
    _, is_told, message = life.ended.stderr.rpartition("\nckptkit.errors.")
    assert is_told or isinstance(expected, Refused), life.ended.stderr[-3000:]
    missing = [one for one in words if one not in (message if isinstance(expected, Told) else life.ended.stderr)]
    assert not missing, (missing, life.ended.stderr[-3000:])
    last = life.lines[-1]["part"] if life.lines else ""
    trained = [at for part, at in life.steps if part == last]
    assert len(trained) <= at_most, f"refused only after {trained}"


def case(name: str) -> object:
    job = JOBS[name]
    marks = [] if job.default else [pytest.mark.extended]
    if job.differs is not None:
        marks.append(pytest.mark.xfail(strict=True, reason=job.differs))
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [case(name) for name in JOBS])
def test_no_job_differs_silently(name, tmp_path):
    judge(name, tmp_path)
