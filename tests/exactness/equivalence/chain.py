"""Processes on one run root, one after the other, each but the last one killed."""

import signal
from dataclasses import replace
from pathlib import Path

from support.process import run_python

from ckptkit.run.catalog import list_checkpoints
from ckptkit.storage import open_storage
from exactness.equivalence.comparison import Line, assert_continues, read_trace, steps
from exactness.equivalence.job import MICRO_STEPS, Case, Job, Kill, Tampering


class Chain:
    """One run below ``folder``, or at the ``root``, which is compared with an uninterrupted process."""

    def __init__(self, case: Case, folder: Path, reference: list[Line] | None = None, root: str | None = None) -> None:
        self.case = case
        self.root = root if root is not None else str(folder / "run")
        self.reference = reference if reference is not None else run(Job(case, None, str(folder / "trace-reference")))
        assert steps(self.reference) == list(range(1, MICRO_STEPS + 1))
        self.covered: set[tuple[str, int]] = set()
        self._folder = folder
        self._processes = 0

    def start(self, kill: Kill | None = None, tampering: Tampering | None = None) -> list[Line]:
        """Run one process up to ``kill``, or to the end, compare all that it traced, and return it."""
        self._processes += 1
        trace_file = self._folder / f"trace-{self._processes:02d}"
        committed = last_committed(self.root)
        if kill is not None and kill.moment == "train_begin":
            # It begins where the newest checkpoint is, and whether the last save before a kill was in time is chance.
            kill = replace(kill, at=committed)
        trace = run(Job(self.case, self.root, str(trace_file), kill, tampering))
        try:
            assert_continues(self.case, self.reference, trace, kill, committed)
            if kill is not None:
                _assert_saved(self.case, kill, last_committed(self.root))
        except AssertionError as error:
            raise AssertionError(f"process {self._processes}, {kill or 'to the end'}: {error}") from error
        self.covered.update((line.event, line.at) for line in trace[1:])
        return trace


def run(job: Job) -> list[Line]:
    """Run one process, see that it ended as planned, and return its trace."""
    folder = Path(job.trace + ".cwd")  # MindSpore litters it
    folder.mkdir(parents=True)
    done = run_python("-m", "exactness.equivalence.training", job.dumps(), folder=folder)
    done.expect(-signal.SIGKILL if job.kill is not None else 0)
    return read_trace(Path(job.trace))


def last_committed(root: str) -> int:
    """Micro-steps done at the newest checkpoint, which is the furthest one; 0 if there is none."""
    found = list_checkpoints(open_storage(root))
    assert not [info for info in found if info.progress is None], found
    return max((info.progress.batches_delivered for info in found), default=0)


def _assert_saved(case: Case, kill: Kill, committed: int) -> None:
    """What a killed process must have left: all that it waited for, which is all but the last save begun."""
    every = case.save == "micro_steps" and case.mid_cycle == "exact"
    unit = 1 if every else case.accumulation_steps
    due = [0, 0, *range(unit, kill.at, unit)]
    if kill.moment == "committed":
        assert committed == kill.at, f"COMMIT of {kill.at} was written, but the newest is {committed}"
    elif kill.moment == "in_write":
        assert committed == due[-1], f"the save of {kill.at} was broken off, but the newest is {committed}"
    else:
        assert committed >= due[-2], f"{due[-2]} must have been committed, but the newest is {committed}"
