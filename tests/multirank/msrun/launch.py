"""Starts the ranks of one job with ``msrun`` on this machine and reads what each of them wrote."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from support.hosts.namespace import open_process
from support.hosts.running import LIMIT, Running, environment, until


def command_of(ranks: int, script: Path, folder: Path, *arguments: str) -> list[str]:
    return [
        *(str(Path(sys.executable).with_name("msrun")), f"--worker_num={ranks}", f"--local_worker_num={ranks}"),
        *("--master_addr=127.0.0.1", f"--master_port={free_port()}", f"--log_dir={folder / 'logs'}"),
        *("--join=True", "--cluster_time_out=60", str(script), str(folder), *arguments),
    ]


class Launch(Running):
    """A job that was started with ``msrun``, which forwards no signal: what is killed is the whole session."""

    def __init__(self, ranks: int, script: Path, folder: Path, *arguments: str) -> None:
        self.ranks = ranks
        self.folder = folder
        folder.mkdir(parents=True)
        super().__init__(
            command_of(ranks, script, folder, *arguments), folder / "logs/msrun.log", environment(), folder
        )

    def only_the_scheduler_failed(self) -> bool:
        """Whether msrun failed although every worker ended well.

        MindSpore 2.10.0 was seen to die at the end of a launch, rarely, from a segmentation fault in its own thread
        ``RECV_EVENT_LOOP``. A scheduler runs nothing of ckptkit's, so that does not matter here; in a worker it does.
        """
        said = self.text()
        return "Scheduler process" in said and "Worker process" not in said

    def until_all_ranks_are_dead(self) -> None:
        """Wait for the end of every worker, which msrun brings about when one has died, without waiting for msrun's."""
        until(lambda: len(list(self.folder.glob("pid-*"))) == self.ranks, "all ranks have begun", alive=[self])
        for one in self.folder.glob("pid-*"):
            with contextlib.suppress(ProcessLookupError), open_process(int(one.read_text())) as ended:
                assert select.select([ended], [], [], LIMIT.total_seconds())[0], f"{one.name} lives on\n{self.said()}"

    def said(self) -> str:
        """The end of every log."""
        logs = sorted(self.folder.glob("logs/*.log"))
        return "\n".join(f"== {one.name}\n{one.read_text(errors='replace')[-3000:]}" for one in logs)


def msrun(ranks: int, script: Path, folder: Path, *arguments: str, limit: timedelta = LIMIT) -> list[dict[str, Any]]:
    """Run ``script FOLDER *arguments`` in each rank; returns what they wrote by `report`."""
    with Launch(ranks, script, folder, *arguments) as job:
        code = job.end(limit)
        reports = [folder / f"rank-{rank}.json" for rank in range(ranks)]
        ended = code == 0 or job.only_the_scheduler_failed()
        assert ended, f"exit code: {code}\n{job.said()}"
        assert all(one.exists() for one in reports), job.said()
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
