"""Implements ``ckptkit run``: parses its limits, runs the supervisor, shows what it says on stderr, and writes metrics.

Exit codes: 0 the command is done, 1 it is, but a recovery was slow, 2 it was called wrongly, 65 its code or data is at
fault or a restart cannot help, 75 too many lives made no progress, 143 it was asked to end (130 by Ctrl-C before it
could save).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from ckptkit.cli.errors import WrongUsageError
from ckptkit.cli.options import Command, Options, open_root, parse_options, positive_duration
from ckptkit.cli.output import visible
from ckptkit.errors import StorageError
from ckptkit.format.events import LifeEnded
from ckptkit.manager.heartbeat import Phase, Record
from ckptkit.scrubber import scrub
from ckptkit.storage import Storage
from ckptkit.tools.supervisor.command import CannotStartError, Terminal, open_standard_descriptors
from ckptkit.tools.supervisor.hang import RunLimits
from ckptkit.tools.supervisor.life import Job
from ckptkit.tools.supervisor.life_log import leader_of
from ckptkit.tools.supervisor.supervisor import Supervisor

_JOINS = re.compile(r"--join[ =](?i:true)\b")
_EVERY = timedelta(seconds=5)  # the metrics are written at most so often


def run_run(
    command: Command = None,
    *,
    lives_without_progress: Annotated[
        int, typer.Option(min=1, help="End after so many lives in a row that committed nothing new.")
    ] = 3,
    hang_after: Annotated[
        str, typer.Option(metavar="DURATION", help="Without a micro-step for so long, or 20 slow ones, it hangs.")
    ] = "10m",
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PHASE=DURATION",
            help="The same for another phase, such as evaluating or first_step, instead of 1h; repeatable.",
        ),
    ] = None,
    grace: Annotated[str, typer.Option(metavar="DURATION", help="Time from SIGTERM to SIGKILL.")] = "30s",
    restart_within: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Exit with 1 if it took longer from a death to the next micro-step; for CI."
        ),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write metrics for a monitor there: FILE.prom (Prometheus) or FILE.json."),
    ] = None,
    options: Options = None,
) -> int:
    """Run a training command again and again until it is done; say why it died, and when a restart cannot help.

    Exits with 0 when it is done, 143 when it was asked to end, 65 if its code or data is at fault, 75 if too many lives
    made no progress, 2 if it was called wrongly, 1 if it is done but --restart-within was not kept.

    Examples:
        ckptkit run -- python train.py
        ckptkit run --hang-after 5m --limit evaluating=2h -- msrun --worker_num=8 --join=True train.py
    """
    open_standard_descriptors()  # first: it is asked below what stdin is
    # Refused is what does something else in later lives, or ends before the processes that it starts.
    if not command:
        raise WrongUsageError("give the command that trains after two dashes: ckptkit run -- python train.py")
    if Path(command[0]).name == "msrun" and not _JOINS.search(" ".join(command)):
        raise WrongUsageError("msrun returns at once, and its workers go on unseen: give it --join=True")
    if "-" in command[1:] and stat.S_ISFIFO(os.fstat(0).st_mode):
        raise WrongUsageError("a script on stdin can be read once only: store it in a file, and give its name")
    limits = RunLimits(
        lives_without_progress=lives_without_progress,
        hang_after=positive_duration("--hang-after", hang_after),
        limits=dict(map(_limit, limit or ())),
        grace=positive_duration("--grace", grace),
        restart_within=positive_duration("--restart-within", restart_within) if restart_within is not None else None,
    )
    parse_options(options)  # before the first life
    terminal = Terminal()

    def open_events(root: str) -> Storage:
        try:
            return open_root(root, options, writes=True)
        except WrongUsageError as error:
            raise StorageError(str(error)) from error

    def say(line: str) -> None:
        terminal.say(visible(scrub(line)))

    written = None if metrics is None else RunMetrics(metrics.absolute(), monotonic=time.monotonic, say=say)
    job = Job(
        command,
        os.environ,
        limits,
        say=say,
        pass_on=terminal.pass_on,
        monotonic=time.monotonic,
        clock=lambda: datetime.now(timezone.utc),
        on_poll=written.update if written is not None else lambda _: None,
    )
    supervisor = Supervisor(
        job,
        token=secrets.token_hex(16),
        open_root=open_events,
        on_life=written.end_life if written is not None else lambda _: None,
    )
    logging.getLogger().addHandler(log := logging.StreamHandler(terminal))
    try:
        return supervisor.run()
    except CannotStartError as error:
        raise WrongUsageError(str(error)) from error
    finally:
        logging.getLogger().removeHandler(log)
        terminal.close()


def _limit(text: str) -> tuple[Phase, timedelta]:
    name, equals, value = text.partition("=")
    phases = {phase.name.lower(): phase for phase in Phase if phase is not Phase.STARTING}
    if not equals or name not in phases:
        raise WrongUsageError(f"--limit takes PHASE=DURATION, where PHASE is one of {', '.join(phases)}; got {text!r}")
    return phases[name], positive_duration(f"--limit {name}", value)


class RunMetrics:
    """Writes what the job does to a file that a monitor reads, by its ending: Prometheus's text, or JSON.

    The file is replaced as a whole, at most every `_EVERY`, and after each life. One that cannot be written is told
    once, and never stops the job.
    """

    def __init__(self, path: Path, *, monotonic: Callable[[], float], say: Callable[[str], None]) -> None:
        if path.suffix not in (".prom", ".json"):
            raise WrongUsageError(
                f"--metrics takes a file that ends with .prom (Prometheus) or .json, got {str(path)!r}"
            )
        if path.suffix == ".prom":
            _client()  # says now what it needs, and not after the first life
        self._write: Callable[[Mapping[str, Any]], str] = _as_text if path.suffix == ".prom" else json.dumps
        self._path = path
        self._monotonic = monotonic
        self._say = say
        self._written_at = float("-inf")
        self._lives: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()  # of lives that have ended, by phase
        self._is_failure_known = False

    def update(self, records: Sequence[Record]) -> None:
        """Write what the ranks do now, unless that was done some seconds ago."""
        if self._monotonic() - self._written_at >= _EVERY.total_seconds():
            self._store(records)

    def end_life(self, life: LifeEnded) -> None:
        """Count a life that has ended, and write."""
        self._lives[life.cause] += 1
        self._seconds.update({**life.phases, "down": life.down_seconds})
        self._store(())

    def _store(self, records: Sequence[Record]) -> None:
        now = self._monotonic()
        self._written_at = now
        leader = leader_of(records)
        present = {phase.name.lower(): value for phase, value in leader.seconds(now).items()} if leader else {}
        values = {
            "lives": dict(self._lives),
            "seconds": dict(self._seconds + Counter({name: value for name, value in present.items() if value > 0})),
            "ranks": [
                {
                    "rank": max(0, record.rank),
                    "phase": record.phase.name.lower(),
                    "micro_step": max(0, record.micro_step),
                    "committed_step": max(0, record.restored_step, record.committed_step),
                    "mirror_lag": record.mirror_lag,
                    "seconds_since_sign": max(0.0, now - record.last_sign_at),
                }
                for record in records
            ],
        }
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            temporary.write_text(self._write(values), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            if not self._is_failure_known:
                self._is_failure_known = True
                self._say(f"could not write the metrics to {self._path}: {error}; the job goes on")


def _as_text(values: Mapping[str, Any]) -> str:
    client = _client()
    core = client.metrics_core
    lives = core.CounterMetricFamily("ckptkit_lives", "Lives that have ended.", labels=["cause"])
    for cause, count in values["lives"].items():
        lives.add_metric([cause], count)
    seconds = core.CounterMetricFamily("ckptkit_seconds", "Seconds of rank 0 by phase.", labels=["phase"])
    for phase, value in values["seconds"].items():
        seconds.add_metric([phase], value)
    families = [lives, seconds]
    for name, text in (
        ("micro_step", "Micro-steps since the run's first start."),
        ("committed_step", "The same of the newest checkpoint that this life has restored or committed."),
        ("mirror_lag", "Commits that the mirror that is farthest behind lacks; 0 without a mirror."),
        ("seconds_since_sign", "Seconds since the process got on last."),
    ):
        family = core.GaugeMetricFamily(f"ckptkit_{name}", text, labels=["rank", "phase"])
        for rank in values["ranks"]:
            family.add_metric([str(rank["rank"]), rank["phase"]], rank[name])
        families.append(family)
    registry = SimpleNamespace(collect=lambda: families)  # it asks no more of one
    return str(client.generate_latest(registry).decode())


def _client() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise WrongUsageError(
            "--metrics FILE.prom needs prometheus_client, which is not installed: "
            "pip install 'mindspore-ckptkit[prometheus]'. FILE.json works without it"
        ) from error
    return prometheus_client
