"""A process of a job: what it wrote, and how it ended; and what all processes of jobs have in their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from typing_extensions import Self

T = TypeVar("T")

TESTS = Path(__file__).parents[2]
LIMIT = timedelta(minutes=4)  # a launch takes about 20 s on two idle cores
_GLANCE_SECONDS = 0.05


class Running:
    """A process in a session of its own; a context manager that leaves none of that behind."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path) -> None:
        self.log = log
        self._command = [*map(str, command)]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def end(self, limit: timedelta = LIMIT) -> int:
        try:
            return self._process.wait(limit.total_seconds())
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"no end within {limit}\n{self.said()}") from error

    def lasts(self, time_: timedelta) -> bool:
        """Whether it still runs after that time; returns as soon as it ended."""
        try:
            self._process.wait(time_.total_seconds())
        except subprocess.TimeoutExpired:
            return True
        return False

    def expect(self, returncode: int, limit: timedelta = LIMIT) -> Running:
        code = self.end(limit)
        assert code == returncode, f"expected exit code {returncode}, got {code}\n{self.said()}"
        return self

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def said(self) -> str:
        return f"{' '.join(self._command)}\n== {self.log}\n{self.text()[-4000:]}"

    def text(self) -> str:
        return self.log.read_text(errors="replace")


def until(condition: Callable[[], T], what: str, *, alive: Sequence[Running] = (), limit: timedelta = LIMIT) -> T:
    """Wait for a condition; returns what it was, which is true."""
    end = time.monotonic() + limit.total_seconds()
    while not (found := condition()):
        ended = [one for one in alive if one.returncode is not None]
        if ended and not condition():
            raise AssertionError(f"ended with {ended[0].returncode} before: {what}\n{ended[0].said()}")
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit}: {what}\n" + "\n".join(one.said() for one in alive))
        time.sleep(_GLANCE_SECONDS)
    return found


def environment() -> dict[str, str]:
    """This tree on the path, quiet, one thread per kernel so that ranks do not fight for the cores.

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
