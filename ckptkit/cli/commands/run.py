"""Implements ``ckptkit run``: parses its limits, runs the supervisor, and shows what it says on stderr.

Exit codes: 0 the command is done, 2 it was called wrongly, 65 its code or data is at fault or a restart cannot help,
75 too many lives made no progress, 143 it was asked to end (130 by Ctrl-C before it could save).
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from ckptkit.cli.errors import WrongUsageError
from ckptkit.cli.output import visible
from ckptkit.cli.run_metrics import RunMetrics
from ckptkit.cli.run_root import open_root, parse_options, positive_duration
from ckptkit.errors import StorageError
from ckptkit.manager.heartbeat.record import Phase
from ckptkit.scrubber import scrub
from ckptkit.storage import Storage
from ckptkit.tools.supervisor.command import CannotStartError, Terminal, open_standard_descriptors
from ckptkit.tools.supervisor.hang import RunLimits
from ckptkit.tools.supervisor.life import Job
from ckptkit.tools.supervisor.supervisor import Supervisor

_JOINS = re.compile(r"--join[ =](?i:true)\b")


@dataclass(frozen=True)
class RunOptions:
    """Holds the options as they were typed: durations, ``PHASE=DURATION``, ``NAME=VALUE``, and a file for metrics."""

    lives_without_progress: int
    hang_after: str
    limits: Sequence[str]
    grace: str
    longest_pause: str
    storage: Sequence[str]
    metrics: Path | None = None


def run_command(command: Sequence[str], typed: RunOptions) -> int:
    """Run ``command`` under a supervisor; returns the exit code."""
    open_standard_descriptors()  # first: `_check` asks what stdin is
    _check(command)
    options = RunLimits(
        lives_without_progress=typed.lives_without_progress,
        hang_after=positive_duration("--hang-after", typed.hang_after),
        limits=dict(map(_limit, typed.limits)),
        grace=positive_duration("--grace", typed.grace),
        longest_pause=positive_duration("--longest-pause", typed.longest_pause),
    )
    parse_options(typed.storage)  # before the first life
    terminal = Terminal()

    def open_events(root: str) -> Storage:
        try:
            return open_root(root, typed.storage, writes=True)
        except WrongUsageError as error:
            raise StorageError(str(error)) from error

    def say(line: str) -> None:
        terminal.say(visible(scrub(line)))

    metrics = None if typed.metrics is None else RunMetrics(typed.metrics.absolute(), monotonic=time.monotonic, say=say)
    job = Job(
        command,
        os.environ,
        options,
        say=say,
        pass_on=terminal.pass_on,
        monotonic=time.monotonic,
        clock=lambda: datetime.now(timezone.utc),
        on_look=metrics.look if metrics is not None else lambda _: None,
    )
    supervisor = Supervisor(
        job,
        token=secrets.token_hex(16),
        open_root=open_events,
        on_life=metrics.end_life if metrics is not None else lambda _: None,
    )
    logging.getLogger().addHandler(log := logging.StreamHandler(terminal))
    try:
        return supervisor.run()
    except CannotStartError as error:
        raise WrongUsageError(str(error)) from error
    finally:
        logging.getLogger().removeHandler(log)
        terminal.close()


def _check(command: Sequence[str]) -> None:
    """Refuse commands that do something else in later lives, or that end before the processes that they start."""
    if not command:
        raise WrongUsageError("give the command that trains after two dashes: ckptkit run -- python train.py")
    if Path(command[0]).name == "msrun" and not _JOINS.search(" ".join(command)):
        raise WrongUsageError("msrun returns at once, and its workers go on unseen: give it --join=True")
    if "-" in command[1:] and stat.S_ISFIFO(os.fstat(0).st_mode):
        raise WrongUsageError("a script on stdin can be read once only: store it in a file, and give its name")


def _limit(text: str) -> tuple[Phase, timedelta]:
    name, equals, value = text.partition("=")
    phases = {phase.name.lower(): phase for phase in Phase if phase is not Phase.STARTING}
    if not equals or name not in phases:
        raise WrongUsageError(f"--limit takes PHASE=DURATION, where PHASE is one of {', '.join(phases)}; got {text!r}")
    return phases[name], positive_duration(f"--limit {name}", value)
