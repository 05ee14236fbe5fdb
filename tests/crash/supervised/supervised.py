"""Starts ``ckptkit run`` as a user does, and reads what it stored."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from ckptkit.format.events import LifeEnded, Stacks
from ckptkit.run.event_log import read_events
from ckptkit.run.index import Index
from ckptkit.storage import open_storage

JOB = Path(__file__).with_name("job.py")
MARK = "CKPTKIT_TEST_OF_RUN"
SHARED = Path("/dev/shm")  # noqa: S108 - it is only looked at


class Supervised:
    """One ``ckptkit run``, whose processes can be told from all others."""

    def __init__(self, command: Sequence[str], *options: str, folder: Path, within: Sequence[str] = ()) -> None:
        self._mark = uuid.uuid4().hex
        self._before = {one.name for one in SHARED.iterdir()}
        self.process = subprocess.Popen(
            [*within, sys.executable, "-m", "ckptkit", "run", *options, "--", *command],
            cwd=folder,
            env={**os.environ, **python_path(), MARK: self._mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self.stdout = self.stderr = ""

    def end(self, seconds: float = 120) -> int:
        """Wait for its end and return the exit code."""
        try:
            self.stdout, self.stderr = self.process.communicate(timeout=seconds)
        finally:
            self.process.kill()
            self.process.wait()
        return self.process.returncode

    def left(self) -> list[str]:
        """Processes of it that still run, and what it left in the shared memory."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and f"{MARK}={self._mark}".encode() in (folder / "environ").read_bytes():
                    found.append(folder.name)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        new = {one.name for one in SHARED.iterdir()} - self._before
        own = [one for one in new if one.startswith(f"ckptkit-run-{self.process.pid}-")]
        return found + sorted(own)


def planned(folder: Path, *plan: tuple[str, int]) -> list[str]:
    """The command of a job that dies as planned."""
    (folder / "plan.json").write_text(json.dumps(plan))
    return [sys.executable, str(JOB), "root", "plan.json"]


def python_path() -> dict[str, str]:
    """Variables by which a process finds this ckptkit and no MindSpore that prints."""
    here = Path(__file__).parents[3]
    return {"PYTHONPATH": os.pathsep.join([str(here), str(here / "tests")]), "GLOG_v": "3"}


def lives_of(root: str | Path) -> list[LifeEnded]:
    """The lives that are stored with a run, in order."""
    return [one for one in _events(root) if isinstance(one, LifeEnded)]


def stacks_of(root: str | Path) -> list[Stacks]:
    """The stacks that are stored with a run."""
    return [one for one in _events(root) if isinstance(one, Stacks)]


def _events(root: str | Path) -> list[object]:
    storage = open_storage(root)
    files = read_events(storage, Index(storage))
    assert not files.problems
    return [event for segment in files.segments for event in segment.events]
