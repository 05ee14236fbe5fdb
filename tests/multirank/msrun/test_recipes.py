"""The launch recipes in examples/: what a scheduler sees when a rank is killed, and that the same command goes on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from support.hosts.running import TESTS, Running, environment, until

from multirank.msrun.launch import free_port

EXAMPLES = TESTS.parent / "examples"
STAND_INS = Path(__file__).parent / "slurm"


def kill_and_resume(
    script: str, folder: Path, variables: Callable[[int], dict[str, str]], rank_1: Callable[[Running], int], code: int
) -> str:
    """Start a recipe, kill rank 1 after the first commit, and start it again; returns what the second start wrote."""

    def start(number: int) -> Running:
        command = ["/bin/bash", str(EXAMPLES / script), str(folder / "run")]
        return Running(command, folder / f"output-{number}.log", {**environment(), **variables(number)}, folder)

    def commits() -> int:
        return len(list(folder.glob("run/checkpoints/*/COMMIT")))

    with start(0) as first:
        until(commits, "a commit", alive=[first])
        os.kill(rank_1(first), signal.SIGKILL)
        first.expect(code)
    before = commits()
    with start(1) as second:
        second.expect(0)
    assert commits() > before
    return second.text()


def worker_of(msrun: Running) -> int:
    """The process of rank 1 among the children of msrun, by what msrun exports to it."""
    for child in Path(f"/proc/{msrun.pid}/task/{msrun.pid}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            exported = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            if b"RANK_ID=1" in exported and b"MS_ROLE=MS_WORKER" in exported:
                return int(child)
    raise AssertionError(f"no rank 1 among the children of {msrun.pid}")


@pytest.mark.extended
def test_msrun_exits_1_after_killed_rank_then_resumes(tmp_path: Path) -> None:

    def variables(_: int) -> dict[str, str]:
        return {"PORT": str(free_port()), "LOGS": str(tmp_path / "logs")}

    kill_and_resume("msrun.sh", tmp_path, variables, worker_of, 1)
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
    raise AssertionError("no free port")


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

    def rank_1(_: Running) -> int:
        return int((tmp_path / "task-1.pid").read_text())

    output = kill_and_resume("slurm.sh", tmp_path, variables, rank_1, 128 + signal.SIGKILL)
    assert (tmp_path / "requeued").read_text().split() == [number]
    assert "resuming from a000001-c0000000020-m0000" in output
    assert all(f"rank {rank} of 2: 33 updates" in output for rank in range(2))
