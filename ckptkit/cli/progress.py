"""Shows progress on stderr while a command works. Any thread may advance a bar."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from typing_extensions import Self

from ckptkit.cli.output import print_line


def bar_of_bytes(console: Console | None = None) -> Progress:
    """Return a bar with amount, speed and time left; silent without a terminal."""
    return _progress(console, DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())


def bar_of_steps(*, transient: bool) -> Progress:
    """Return a bar with a count and the time that it took; silent without a terminal."""
    return _progress(None, MofNCompleteColumn(), TimeElapsedColumn(), transient=transient)


def _progress(console: Console | None, *columns: object, transient: bool = True) -> Progress:
    console = console or Console(stderr=True)
    shown = (TextColumn("{task.description}"), BarColumn(), *columns)
    return Progress(*shown, console=console, transient=transient, disable=not console.is_terminal)  # type: ignore[arg-type]


class CheckpointBar:
    """Shows how many checkpoints of a run are done; without a terminal, prints a line for each instead.

    A `ckptkit.tools.copy.inventory.CopyWatch` and a `ckptkit.tools.verify.run.AuditWatch`.

    Args:
        first: Text of the bar before `plan` is called.
        ends: By outcome, the words before the name of a checkpoint with it.
        console: Where to draw; stderr by default.

    Attributes:
        read_bytes: Number of bytes read so far.
    """

    def __init__(self, first: str, ends: Mapping[str, str], console: Console | None = None) -> None:
        self._bar = bar_of_bytes(console)
        self._task = self._bar.add_task(first, total=None)
        self._ends = ends
        self._outcomes: Counter[str] = Counter()
        self._planned = 0
        self._lock = threading.Lock()
        self.read_bytes = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def plan(self, checkpoints: int, size_bytes: int) -> None:
        """Set how many checkpoints and bytes are to come."""
        self._planned = checkpoints
        self._bar.update(self._task, total=size_bytes, description=self._describe())

    def advance(self, size_bytes: int) -> None:
        """Add ``size_bytes`` to the bytes read."""
        with self._lock:
            self.read_bytes += size_bytes
        self._bar.advance(self._task, size_bytes)

    def end(self, name: str, outcome: str) -> None:
        """Show the outcome for one checkpoint."""
        with self._lock:
            self._outcomes[outcome] += 1
            described = self._describe()
            self._bar.update(self._task, description=described)
            if not self._bar.console.is_terminal:
                print_line(f"{self._ends[outcome]} {name} ({described})", console=self._bar.console)

    def _describe(self) -> str:
        corrupt = f", {self._outcomes['corrupt']} corrupt" if self._outcomes["corrupt"] else ""
        return f"{self._outcomes.total()} of {self._planned} checkpoints{corrupt}"
