"""The launch recipes in examples/: what a scheduler sees when a rank is killed, and that the same command goes on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from multirank.msrun.launch import LIMIT, TESTS, LaunchError, environment, free_port

EXAMPLES = TESTS.parent / "examples"
STAND_INS = Path(__file__).parent / "slurm"


class Recipe:
    """One start of a recipe, in a session of its own; a context manager that ends it."""

    def __init__(self, script: str, folder: Path, **variables: str) -> None:
        self.root = folder / "run"
        self.log = folder / "output.log"
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(
                ["/bin/bash", str(EXAMPLES / script), str(self.root)],
                cwd=folder,
                env={**environment(), **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Recipe:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def commits(self) -> int:
        return len(list(self.root.glob("checkpoints/*/COMMIT")))

    def exit_code(self) -> int:
        return self.process.wait(LIMIT.total_seconds())

    def kill_at_the_first_commit(self, rank: Callable[[], int]) -> None:
        until = time.monotonic() + LIMIT.total_seconds()
        while not self.commits():
            assert time.monotonic() < until, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)
        os.kill(rank(), signal.SIGKILL)


def worker_of(msrun: int, rank: int) -> int:
    """The process of a rank among the children of msrun, by what msrun exports to it."""
    for child in Path(f"/proc/{msrun}/task/{msrun}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            exported = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            if f"RANK_ID={rank}".encode() in exported and b"MS_ROLE=MS_WORKER" in exported:
                return int(child)
    raise LaunchError(f"no rank {rank} among the children of {msrun}")


@pytest.mark.extended
def test_msrun_exits_1_after_killed_rank_then_resumes(tmp_path: Path) -> None:

    def variables() -> dict[str, str]:
        return {"PORT": str(free_port()), "LOGS": str(tmp_path / "logs")}

    with Recipe("msrun.sh", tmp_path, **variables()) as first:
        first.kill_at_the_first_commit(lambda: worker_of(first.process.pid, 1))
        assert first.exit_code() == 1
    commits = first.commits()
    with Recipe("msrun.sh", tmp_path, **variables()) as second:
        assert second.exit_code() == 0, second.log.read_text()
    assert second.commits() > commits
    for rank in range(2):
        log = (tmp_path / "logs" / f"worker_{rank}.log").read_text()
        assert "resuming from a000001-c0000000020-m0000" in log
        assert f"rank {rank} of 2: 33 updates" in log


def job_id() -> int:
    """One of which the script makes a port that is free."""
    for number in random.SystemRandom().sample(range(10000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", 20000 + number))
            return number
    raise LaunchError("no free port")


@pytest.mark.extended
def test_slurm_requeues_after_killed_rank_then_resumes(tmp_path: Path) -> None:
    number = str(job_id())

    def variables(restarts: int) -> dict[str, str]:
        return {
            "PATH": f"{STAND_INS}{os.pathsep}{environment()['PATH']}",
            "SCRIPT": str(EXAMPLES / "train_ranks.py"),
            "SLURM_JOB_ID": number,
            "SLURM_JOB_NODELIST": "localhost",
            "SLURM_NTASKS": "2",
            "SLURM_RESTART_COUNT": str(restarts),
            "STAND_IN": str(tmp_path),
        }

    with Recipe("slurm.sh", tmp_path, **variables(0)) as first:
        first.kill_at_the_first_commit(lambda: int((tmp_path / "task-1.pid").read_text()))
        assert first.exit_code() == 128 + signal.SIGKILL
    assert (tmp_path / "requeued").read_text().split() == [number]
    with Recipe("slurm.sh", tmp_path, **variables(1)) as second:
        assert second.exit_code() == 0, second.log.read_text()
    output = second.log.read_text()
    assert "resuming from a000001-c0000000020-m0000" in output
    assert all(f"rank {rank} of 2: 33 updates" in output for rank in range(2))
