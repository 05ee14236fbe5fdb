"""Starts the ranks of one job with ``msrun`` on this machine and reads what each of them wrote."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2]
LIMIT = timedelta(minutes=4)  # about 20 s on two idle cores


class LaunchError(AssertionError):
    """The job did not end as it should; has the end of every log."""


def command_of(ranks: int, script: Path, folder: Path, *arguments: str) -> list[str]:
    return [
        *(str(Path(sys.executable).with_name("msrun")), f"--worker_num={ranks}", f"--local_worker_num={ranks}"),
        *("--master_addr=127.0.0.1", f"--master_port={free_port()}", f"--log_dir={folder / 'logs'}"),
        *("--join=True", "--cluster_time_out=60", str(script), str(folder), *arguments),
    ]


class Launch:
    """A job that was started with ``msrun``; a context manager that leaves no process behind."""

    def __init__(self, ranks: int, script: Path, folder: Path, *arguments: str) -> None:
        self.ranks = ranks
        self.folder = folder
        folder.mkdir(parents=True)
        command = command_of(ranks, script, folder, *arguments)
        self._log = folder / "logs" / "msrun.log"
        self._log.parent.mkdir()
        with self._log.open("wb") as log:
            # A session of its own: msrun forwards no signal, so what is ended is the whole group.
            self._job = subprocess.Popen(
                command, cwd=folder, env=environment(), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._job.pid, signal.SIGKILL)
        self._job.wait()

    def exit_code(self, limit: timedelta = LIMIT) -> int:
        """What a scheduler sees in the end; LaunchError after ``limit``."""
        try:
            return self._job.wait(limit.total_seconds())
        except subprocess.TimeoutExpired as error:
            raise LaunchError(f"no end within {limit}\n{self.logs()}") from error

    def only_the_scheduler_failed(self) -> bool:
        """Whether msrun failed although every worker ended well.

        MindSpore 2.10.0 was seen to die at the end of a launch, rarely, from a segmentation fault in its own thread
        ``RECV_EVENT_LOOP``. A scheduler runs nothing of ckptkit's, so that does not matter here; in a worker it does.
        """
        said = self._log.read_text(errors="replace")
        return "Scheduler process" in said and "Worker process" not in said

    def until_all_ranks_are_dead(self, limit: timedelta = LIMIT) -> None:
        """Wait for the end of every worker, which msrun brings about when one has died, without waiting for msrun's."""
        until = time.monotonic() + limit.total_seconds()
        while len(pids := list(self.folder.glob("pid-*"))) < self.ranks:
            if time.monotonic() > until or self._job.poll() is not None:
                raise LaunchError(f"only {len(pids)} of {self.ranks} ranks began\n{self.logs()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._job.wait(0.1)
        for one in pids:
            try:
                descriptor = os.pidfd_open(int(one.read_text()))
            except ProcessLookupError:
                continue
            try:
                poller = select.poll()
                poller.register(descriptor, select.POLLIN)
                if not poller.poll(max(0.0, until - time.monotonic()) * 1000):
                    raise LaunchError(f"{one.name} lives on\n{self.logs()}")
            finally:
                os.close(descriptor)

    def logs(self) -> str:
        """The end of every log."""
        return _logs(self.folder / "logs")


def msrun(ranks: int, script: Path, folder: Path, *arguments: str, limit: timedelta = LIMIT) -> list[dict[str, Any]]:
    """Run ``script FOLDER *arguments`` in each rank; returns what they wrote by `report`."""
    with Launch(ranks, script, folder, *arguments) as job:
        code = job.exit_code(limit)
        reports = [folder / f"rank-{rank}.json" for rank in range(ranks)]
        ended = code == 0 or job.only_the_scheduler_failed()
        if not ended or not all(one.exists() for one in reports):
            raise LaunchError(f"exit code: {code}\n{job.logs()}")
        return [json.loads(one.read_text()) for one in reports]


def begin(folder: Path) -> None:
    """Say who this rank is, before anything can go wrong; for the script."""
    if os.environ["MS_ROLE"] == "MS_SCHED":  # msrun starts the script for its scheduler, too, as rank 0
        return
    written = folder / f".pid-{os.environ['RANK_ID']}"
    written.write_text(str(os.getpid()))
    written.rename(folder / f"pid-{os.environ['RANK_ID']}")


def report(folder: Path, rank: int, found: Mapping[str, Any]) -> None:
    """Say what this rank found; for the script."""
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))


def environment() -> dict[str, str]:
    """Of a worker: this tree on the path, quiet, one thread per kernel so that ranks do not fight for the cores.

    What dies from a fault in native code says where Python was.
    """
    python_path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    soon = {
        "MS_RETRY_INTERVAL_LOWER": "1",
        "MS_RETRY_INTERVAL_UPPER": "1",
    }  # seconds between tries to meet, else 3 to 5
    quiet = {"GLOG_v": "3", "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    return {**os.environ, **soon, **quiet, "PYTHONPATH": python_path, "PATH": path}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _logs(folder: Path) -> str:
    return "\n".join(
        f"== {one.name}\n{one.read_text(errors='replace')[-3000:]}" for one in sorted(folder.glob("*.log"))
    )
