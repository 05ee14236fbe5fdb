"""Runs the user's script in scratch roots for a command: ``ckptkit doctor`` and ``ckptkit replay`` share it.

Guarantees: SIGTERM or SIGHUP ends the running life like any other error, and a temporary folder is removed. Main thread
only.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import TaskID

from ckptkit.cli.junit import Case, write_junit
from ckptkit.cli.output import print_line
from ckptkit.cli.progress import bar_of_steps
from ckptkit.tools.doctor.report import FailedLifeError, UnusableScriptError


@contextlib.contextmanager
def exits_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP exit by an exception, as any other error does: unwinding ends the running life.

    A signal that is ignored, as under nohup, stays so.
    """
    asking = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.signal(one, lambda number, _: sys.exit(128 + number)) for one in asking}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextlib.contextmanager
def folder_for(keep: str | None, prefix: str) -> Iterator[Path]:
    """Make the folder ``keep``, which stays, or a temporary one; UnusableScriptError if ``keep`` is not empty."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix=prefix) as folder:
            yield Path(folder)
        return
    kept = Path(keep).absolute()
    kept.mkdir(parents=True, exist_ok=True)
    if any(kept.iterdir()):
        raise UnusableScriptError(f"{kept} is not empty; give a new folder")
    yield kept


def report_failure(error: Exception, command: Sequence[str], junit: Path | None, suite: str, case: str) -> int:
    """Print the error of an examination, write it to the file ``junit``, if one is given, and return the exit code."""
    code, message = _failure(error, command)
    if junit is not None:
        write_junit(junit, suite, [Case(case, 0.0, "error", message.partition("\n")[0], message)])
    Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)  # its own colours
    return code


def _failure(error: Exception, command: Sequence[str]) -> tuple[int, str]:
    if isinstance(error, UnusableScriptError):
        return 2, str(error)
    if isinstance(error, FailedLifeError):
        return 1, str(error)
    if isinstance(error, FileNotFoundError | PermissionError) and error.filename == command[0]:
        return 2, f"{command[0]} cannot be started: {error.strerror}"
    return 3, f"the scratch folder cannot be used: {error}. Give another one with --keep, or free some space"


class Lives:
    """Shows a line and a bar for each life on stderr; if that is no terminal, a line when the life begins."""

    def __init__(self) -> None:
        self._progress = bar_of_steps(transient=False)
        self._task: TaskID | None = None

    def __enter__(self) -> Lives:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begins(self, words: str, steps: int) -> None:
        """Show that another life begins, with ``steps`` micro-steps to do."""
        if not self._progress.console.is_terminal:
            print_line(f"{words}; {steps} micro-steps", console=self._progress.console)
        if self._task is not None:
            self._progress.stop_task(self._task)
        self._task = self._progress.add_task(words, total=steps)

    def stepped(self, steps: int) -> None:
        """Show how many micro-steps the life has done."""
        if self._task is not None:
            self._progress.update(self._task, completed=steps)
