"""Processes on one run root, one after the other, each but the last one killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import ckptkit
from ckptkit.run.catalogue import list_checkpoints
from ckptkit.storage import open_storage
from equivalence.comparison import Line, assert_equal, read_trace, steps
from equivalence.job import MICRO_STEPS, Case, Job, Kill

# Moments at which the micro-step that they name has not been traced yet.
_BEFORE_THE_TRACE = ("in_update", "after_update")
# Moments at which it may not have been, if tracing waits for the save to have begun. The writer thread dies
# while training goes on, so then there may also be later ones.
_BEFORE_A_LATE_TRACE = ("step_end", "in_write", "committed")
_TIMEOUT_SECONDS = 300


class Chain:
    """One run.

    Args:
        case: What is trained.
        folder: Gets the run root ``run``, and the trace and the working directory of every process.
        reference: Trace of an uninterrupted process.
    """

    def __init__(self, case: Case, folder: Path, reference: list[Line]) -> None:
        self.case = case
        self.folder = folder
        self.root = folder / "run"
        self.reference = reference
        self.covered: set[int] = set()
        self._processes = 0

    def start(self, kill: Kill | None = None) -> list[Line]:
        """Run one process up to ``kill``, or to the end, and compare all that it traced."""
        self._processes += 1
        job = Job(self.case, str(self.root), str(self.folder / f"trace-{self._processes:02d}"), kill)
        committed = last_committed(self.root)
        trace = run(job)
        where = f"process {self._processes}, {kill or 'to the end'}: "
        try:
            done = _resumed(self.case, trace, committed)
            assert_equal(self.reference, trace)
            self.covered.update(steps(trace))
            if kill is not None:
                assert steps(trace) == list(range(done + 1, done + 1 + len(steps(trace))))
                assert len(steps(trace)) >= _steps_expected(self.case, kill, done)
                self._saves_were_made(kill)
            else:
                assert steps(trace) == list(range(done + 1, MICRO_STEPS + 1))
                assert trace[-1].event == "end"
        except AssertionError as error:
            error.args = (where + str(error), *error.args[1:])
            raise
        return trace

    def _saves_were_made(self, kill: Kill) -> None:
        """What a killed process must have left: what it waited for, which is all but the last save begun."""
        unit = 1 if self.case.save == "micro_steps" else self.case.accumulation_steps
        due = [0, 0, *range(unit, kill.at, unit)]
        found = last_committed(self.root)
        if kill.moment == "committed":
            assert found == kill.at, f"COMMIT of {kill.at} was written, but the newest is {found}"
        else:
            assert found >= due[-2], f"killed at {kill.at}, {due[-2]} must be committed, but the newest is {found}"


def run(job: Job) -> list[Line]:
    """Run one process, see that it ended as planned, and return its trace."""
    folder = Path(job.trace + ".cwd")  # MindSpore litters it
    folder.mkdir(parents=True)
    paths = [str(Path(__file__).parents[1]), str(Path(ckptkit.__file__).parents[1])]
    environment = {**os.environ, "GLOG_v": "3", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "equivalence.training", job.dumps()]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
    )
    expected = -signal.SIGKILL if job.kill is not None else 0
    assert done.returncode == expected, (
        f"the process ended with {done.returncode} instead of {expected}; {job.kill or 'no kill'} was planned:\n"
        f"{done.stdout[-1000:]}\n{done.stderr[-4000:]}"
    )
    return read_trace(Path(job.trace))


def run_uninterrupted(case: Case, folder: Path) -> list[Line]:
    """The trace of the same training without ckptkit's callback: nothing saved, nothing restored."""
    trace = run(Job(case, None, str(folder / "trace-reference")))
    assert steps(trace) == list(range(1, MICRO_STEPS + 1))
    return trace


def last_committed(root: Path) -> int:
    """Micro-steps done at the newest checkpoint on disk; 0 if there is none.

    The furthest one is the newest, since every process goes on from where the chain is.
    """
    if not root.exists():
        return 0
    found = list_checkpoints(open_storage(root))
    assert not [info for info in found if info.progress is None], found
    return max((info.progress.batches_delivered for info in found), default=0)


def _resumed(case: Case, trace: list[Line], committed: int) -> int:
    """Micro-steps done where a process says it began; sees that it is the newest checkpoint."""
    first = trace[0]
    assert (first.event, first.at) == ("resumed", committed), f"{committed} micro-steps are committed, but: {first}"
    name = first.leaves["checkpoint"]
    if committed == 0:
        assert name is None, f"nothing is committed, but it began from {name}"
        return 0
    cycles, micro_step = divmod(committed, case.accumulation_steps)
    assert name is not None
    assert f"-c{cycles:010d}-m{micro_step:04d}" in name, f"{committed} micro-steps, but it began from {name}"
    return first.at


def _steps_expected(case: Case, kill: Kill, done: int) -> int:
    """How many micro-steps must at least have been traced by a process that began after ``done``."""
    traced = kill.at - done
    if kill.moment in _BEFORE_THE_TRACE:
        return traced - 1
    if kill.moment in _BEFORE_A_LATE_TRACE and case.traced == "after_save":
        return traced - 1
    return traced
