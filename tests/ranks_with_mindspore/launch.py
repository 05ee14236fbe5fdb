"""Starts the ranks of one job with ``msrun`` on this machine and reads what each of them wrote."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
LIMIT = timedelta(minutes=4)  # about 20 s on two idle cores


class LaunchError(AssertionError):
    """The job did not end as it should; has the end of every log."""


def msrun(ranks: int, script: Path, folder: Path, *arguments: str, limit: timedelta = LIMIT) -> list[dict[str, Any]]:
    """Run ``script FOLDER *arguments`` in each rank; returns what they wrote by `report`.

    Raises:
        LaunchError: If it takes longer than ``limit``, fails, or a rank wrote nothing.
    """
    folder.mkdir(parents=True)
    command = [
        *(str(Path(sys.executable).with_name("msrun")), f"--worker_num={ranks}", f"--local_worker_num={ranks}"),
        *("--master_addr=127.0.0.1", f"--master_port={_free_port()}", f"--log_dir={folder / 'logs'}"),
        *("--join=True", "--cluster_time_out=60", str(script), str(folder), *arguments),
    ]
    # A session of its own: msrun forwards no signal, so what is ended is the whole group.
    job = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code: int | str = job.wait(limit.total_seconds())
    except subprocess.TimeoutExpired:
        code = f"none within {limit}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    reports = [folder / f"rank-{rank}.json" for rank in range(ranks)]
    if code != 0 or not all(one.exists() for one in reports):
        raise LaunchError(f"exit code: {code}\n{_logs(folder / 'logs')}")
    return [json.loads(one.read_text()) for one in reports]


def report(folder: Path, rank: int, found: Mapping[str, Any]) -> None:
    """Say what this rank found; for the script."""
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))


def environment() -> dict[str, str]:
    """Of a worker: this tree on the path, quiet, one thread per kernel so that ranks do not fight for the cores."""
    python_path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PYTHONPATH": python_path, "PATH": path, "GLOG_v": "3", "OMP_NUM_THREADS": "1"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _logs(folder: Path) -> str:
    return "\n".join(
        f"== {one.name}\n{one.read_text(errors='replace')[-3000:]}" for one in sorted(folder.glob("*.log"))
    )
