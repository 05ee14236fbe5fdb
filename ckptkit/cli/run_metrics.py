"""Writes what a job under ``ckptkit run`` does to a file that a monitor reads: Prometheus's text, or JSON.

Guarantees: the file is replaced as a whole, at most every `_EVERY`, and after each life. One that cannot be written is
told once, and never stops the job. Prometheus's text is made by its own client library, for the textfile collector of
its node exporter. One thread.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from ckptkit.cli.errors import WrongUsageError
from ckptkit.format.events import LifeEnded
from ckptkit.manager.heartbeat.record import Record
from ckptkit.tools.supervisor.life_log import leader_of

_EVERY = timedelta(seconds=5)


class RunMetrics:
    """Writes the metrics of one ``ckptkit run``.

    Args:
        path: The file; its ending decides: ``.prom`` or ``.json``.
        monotonic: Gives seconds; the clock that the ranks use.
        say: Tells the user that the file cannot be written.

    Raises:
        WrongUsageError: If it has another ending, or the client library is not installed.
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
        self._told = False

    def look(self, records: Sequence[Record]) -> None:
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
            "ranks": [_rank(record, now) for record in records],
        }
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            temporary.write_text(self._write(values), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            if not self._told:
                self._told = True
                self._say(f"could not write the metrics to {self._path}: {error}; the job goes on")


def _rank(record: Record, now: float) -> dict[str, Any]:
    return {
        "rank": max(0, record.rank),
        "phase": record.phase.name.lower(),
        "micro_step": max(0, record.micro_step),
        "committed_step": max(0, record.restored_step, record.committed_step),
        "mirror_lag": record.mirror_lag,
        "seconds_since_sign": max(0.0, now - record.last_sign_at),
    }


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
    registry = client.CollectorRegistry()
    registry.register(_Collector(families))
    return str(client.generate_latest(registry).decode())


@dataclass(eq=False)
class _Collector:
    """Gives the client library its families."""

    families: Sequence[Any]

    def collect(self) -> Sequence[Any]:
        return self.families


def _client() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise WrongUsageError(
            "--metrics FILE.prom needs prometheus_client, which is not installed: "
            "pip install 'mindspore-ckptkit[prometheus]'. FILE.json works without it"
        ) from error
    return prometheus_client
