"""A process on a host: what it wrote, and how it ended."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

LIMIT = timedelta(minutes=4)
_GLANCE_SECONDS = 0.05


class Running:
    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path) -> None:
        self.log = log
        self._command = command
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

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
        self._process.kill()
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
