"""Implements ``ckptkit doctor``: runs the examination and prints its report as text or as JSON.

The JSON is ``{"exact": bool, "steps": int, "compared": int, "values": int, "lives": [...], "difference": {...} or
null, "diagnosis": {...} or null, "other_losses": [...], "notes": [...]}``. A life has ``name``, ``began_at``,
``ended_at``, ``killed_after`` and ``exit_code``; a difference ``step``, ``resumed_at``, ``life``, ``names`` and
``progress``; a diagnosis ``code``, ``where``, ``cause``, ``fix`` and ``also``. ``other_losses`` are micro-steps where
only the reported loss differed. Progress goes to stderr.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ckptkit.tools.doctor.compare import Difference
from ckptkit.tools.doctor.examine import Examination, FailedLifeError, Options, Report, UnusableScriptError
from ckptkit.tools.doctor.trial import Life


def run_doctor(command: Sequence[str], options: Options, *, keep: str | None, as_json: bool) -> int:
    """Examine ``command`` and print the report; returns the exit code."""
    try:
        with exits_on_sigterm():
            report = _examined(command, options, keep)
    except (UnusableScriptError, FailedLifeError, OSError) as error:
        code, message = failure(error, command)
        Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)
        return code
    if as_json:
        print(json.dumps(_as_json(report)))
    else:
        _print(report, shlex.join(command), keep)
    return 0 if report.difference is None else 1


@contextlib.contextmanager
def exits_on_sigterm() -> Iterator[None]:
    """Let SIGTERM exit by an exception, as any other error does: unwinding ends the running life."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _examined(command: Sequence[str], options: Options, keep: str | None) -> Report:
    if not command:
        raise UnusableScriptError("give the command that trains after two dashes: ckptkit doctor -- python train.py")
    with folder_for(keep, "ckptkit-doctor-") as folder, Lives() as shown:
        clock = time.monotonic
        return Examination(command, folder, options, monotonic=clock, begins=shown.begins, stepped=shown.stepped).run()


def failure(error: Exception, command: Sequence[str]) -> tuple[int, str]:
    """Return the exit code and the message for an error of an examination."""
    if isinstance(error, UnusableScriptError):
        return 2, str(error)
    if isinstance(error, FailedLifeError):
        return 1, str(error)
    if isinstance(error, FileNotFoundError | PermissionError) and error.filename == command[0]:
        return 2, f"{command[0]} cannot be started: {error.strerror}"
    return 3, f"the scratch folder cannot be used: {error}. Give another one with --keep, or free some space"


class Lives:
    """Shows a line and a bar for each life on stderr."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task: TaskID | None = None

    def __enter__(self) -> Lives:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begins(self, words: str, steps: int) -> None:
        """Show that another life begins, with ``steps`` micro-steps to do."""
        if self._task is not None:
            self._progress.stop_task(self._task)
        self._task = self._progress.add_task(words, total=steps)

    def stepped(self, steps: int) -> None:
        """Show how many micro-steps the life has done."""
        if self._task is not None:
            self._progress.update(self._task, completed=steps)


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


def _print(report: Report, command: str, keep: str | None) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    killed = [life.planned_kill for life in report.lives if life.planned_kill is not None]
    console.print(f"{command}: {report.steps} micro-steps, {len(report.lives)} lives, killed after {killed or 'none'}")
    console.print(f"compared: {report.compared} micro-steps with {report.values} values each")
    if report.difference is None:
        console.print(_headline(report), style="bold green")
        if report.other_losses:
            console.print(
                f"note: the loss reported after micro-step {', '.join(map(str, report.other_losses))} was different "
                "in some life, although batch, gradients and weights were equal: most likely its kernel rounded "
                "differently"
            )
        for note in report.notes[:5]:
            console.print(
                f"note: {note} is in no checkpoint and differs after a resume; nothing compared depends on it"
            )
    else:
        _print_difference(console, report, report.difference)
    if keep is not None:
        console.print(f"traces and logs of all lives: {Path(keep).absolute()}")


def _headline(report: Report) -> str:
    others = len(report.other_losses)
    if not others:
        return "exact: every interrupted life is the uninterrupted one, bit for bit"
    losses = "1 reported loss was" if others == 1 else f"{others} reported losses were"
    return (
        "exact: state, batches and gradients of every interrupted life are those of the uninterrupted one, bit for "
        f"bit; {losses} rounded differently"
    )


def _print_difference(console: Console, report: Report, difference: Difference) -> None:
    at = difference.expected.progress
    what = ", ".join(difference.names[:4]) or "it did not get that far"
    more = f" and {len(difference.names) - 4} more" if len(difference.names) > 4 else ""
    console.print("NOT exact", style="bold red")
    console.print(
        f"first difference: micro-step {difference.step} (epoch {at.epoch}, batch {at.batch}, micro-step "
        f"{at.micro_step} of {at.accumulation_steps}): {what}{more}"
    )
    began = f"resumed after micro-step {difference.resumed_at}" if difference.resumed_at else "begun afresh"
    console.print(f"seen in: {difference.life.name}, {began}")
    if report.diagnosis is not None:
        console.print(f"diagnosis: {report.diagnosis.code}: {report.diagnosis.where}", style="bold")
        console.print(f"cause: {report.diagnosis.cause}")
        console.print(f"fix: {report.diagnosis.fix}")
        if report.diagnosis.also:
            console.print(f"look also at: {', '.join(report.diagnosis.also)}")


def _as_json(report: Report) -> dict[str, Any]:
    difference = report.difference
    return {
        "exact": difference is None,
        "steps": report.steps,
        "compared": report.compared,
        "values": report.values,
        "lives": [_life_as_json(life) for life in report.lives],
        "difference": None
        if difference is None
        else {
            "step": difference.step,
            "resumed_at": difference.resumed_at,
            "life": difference.life.name,
            "names": list(difference.names),
            "progress": difference.expected.progress.model_dump(),
        },
        "diagnosis": None if report.diagnosis is None else dataclasses.asdict(report.diagnosis),
        "other_losses": list(report.other_losses),
        "notes": list(report.notes),
    }


def _life_as_json(life: Life) -> dict[str, Any]:
    return {
        "name": life.name,
        "began_at": life.begun.step if life.begun is not None else None,
        "ended_at": life.last_step,
        "killed_after": life.planned_kill,
        "exit_code": life.exit_code,
    }
