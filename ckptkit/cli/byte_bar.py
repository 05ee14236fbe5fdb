"""Shows progress bars on stderr for commands that read many bytes: amount, speed and time left."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from typing_extensions import Self


def byte_bar(console: Console) -> Progress:
    """Make a bar on ``console``, silent without a terminal; a context manager that any thread may advance."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


class CheckpointBar:
    """Shows how many checkpoints of a run are done; a context manager that any thread may advance.

    Args:
        console: Where to draw the bar.
        first: Text of the bar before `plan` is called.
    """

    def __init__(self, console: Console, first: str) -> None:
        self._console = console
        self._bar = byte_bar(console)
        self._task = self._bar.add_task(first, total=None)
        self._ended = self._planned = 0

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
        self._bar.advance(self._task, size_bytes)

    def _describe(self) -> str:
        return f"{self._ended} of {self._planned} checkpoints"
