"""Writes the values of a run to where people look: TensorBoard's files, an MLflow server, a file for Prometheus.

`series_of` lays them out over optimizer steps, as one training without interruption has them: steps never go back, and
what a later attempt did again is left out, so no step has two values of one name. As long as no attempt goes back, the
rows of a later reading begin with those of an earlier one. What was written before, by this process or another one, is
not repeated. Each monitor is written by the field's own client, which is imported only if it is asked for, and never in
the process that trains: MLflow's client draws from Python's random generator, whose state belongs to training.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ckptkit.core.text import escaped, message_of
from ckptkit.errors import StorageError
from ckptkit.run.goodput import Life, account_of, between, seconds_of
from ckptkit.tools.report.history import Attempt, RunStory

GOODPUT = "goodput"
STALL = "save/stall_seconds"
TOOK = "save/took_seconds"
SIZE = "save/size_bytes"

_OWN_FOLDER = "ckptkit"  # TensorBoard hides steps of all files of a folder alike: others' files are not among ours
_MOST_AT_ONCE = 1000  # metrics that MLflow takes in one call
_COURSE = "ckptkit.course"  # the tag by which a run is found again
_ENDS = {"finished": "FINISHED", "complete": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}  # else RUNNING


@dataclass(frozen=True)
class Row:
    """Holds what is known of one moment of the training."""

    step: int
    first: int  # step that the values are about, where they are means over several
    seconds: float  # since the epoch
    values: Mapping[str, float]  # by name; NaN where the training had one that is not finite


def series_of(story: RunStory) -> list[Row]:
    """Return the rows of the run, by step."""
    rows: list[Row] = []
    for place, attempt in enumerate(story.attempts):
        lives = story.lives[: place + 1]
        points = []
        for point in attempt.points:
            means = {
                name: math.nan if spread.mean is None or spread.not_finite else spread.mean
                for name, spread in point.values.items()
            }
            points.append(Row(point.last, point.first, seconds_of(point.at) or 0.0, means))
        kept = math.inf if attempt.redone_from is None else attempt.redone_from
        recorded = [*points, *_saves(attempt), *(_goodput(lives) if lives else ())]
        rows += [row for row in recorded if row.step <= kept]
    unique: list[Row] = []  # with the first value of a step alone: several saves may lie in one cycle
    known: set[tuple[int, str]] = set()
    for row in sorted(rows, key=lambda row: row.step):
        values = {name: value for name, value in row.values.items() if (row.step, name) not in known}
        known.update((row.step, name) for name in values)
        if values:
            unique.append(replace(row, values=values))
    return unique


def course_of(story: RunStory) -> str:
    """Return a name for the run since it last went back on request; other work may follow from there."""
    back = [attempt.number for attempt in story.attempts if attempt.branch is not None]
    run = story.run_id or story.root
    return f"{run}/{back[-1]}" if back else run


def _saves(attempt: Attempt) -> Iterator[Row]:
    for save in attempt.saves:
        values = {STALL: save.stall_seconds, TOOK: save.took_seconds, SIZE: save.size_bytes}
        if save.step is not None and save.took_seconds is not None:  # otherwise no event tells of it
            known = {name: float(value) for name, value in values.items() if value is not None}
            yield Row(save.step, save.step, save.at.timestamp() if save.at is not None else 0.0, known)


def _goodput(lives: Sequence[Life]) -> Iterator[Row]:
    """Yield the share of the run's time that counted, as of each save of the last of ``lives``."""
    life = lives[-1]
    saves = [save for save in life.taken if save.spent is not None]
    if not saves:
        return
    first = saves[0]
    until_first = replace(  # what was known of it then
        life, seen=first.at, spent=first.spent, to_batches=first.batches, taken=[first], how=None, watched=[]
    )
    before = account_of([*lives[:-1], until_first])
    trained = [(save.spent or {}).get("training", 0.0) for save in saves]
    ages = [between(life.born, save.at) or 0.0 for save in saves]
    trained_before, seconds_before = before.totals["trained"] - trained[0], before.seconds - ages[0]
    for save, own, age in zip(saves, trained, ages, strict=True):
        if seconds_before + age > 0:
            share = (trained_before + own) / (seconds_before + age)
            yield Row(save.step, save.step, save.at.wall or 0.0, {GOODPUT: share})


class MissingClientError(Exception):
    """Raised if a client is not installed; says what to install."""


class Monitor:
    """Takes the series of a run."""

    def put(self, story: RunStory, rows: Sequence[Row]) -> None:
        """Write what is new; raise StorageError if it cannot be written, and the next call tries it again."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what is open; nothing, where each call writes by itself."""


class TensorBoard(Monitor):
    """Writes files for TensorBoard; a later file hides from the step on that it names.

    ``folder`` is of this run alone; the files lie in a folder of their own below it.
    """

    def __init__(self, folder: str) -> None:
        # Not SummaryWriter: its thread ends at a full disk without a word, and the next call then waits for ever.
        self._client = _client("tensorboardX.event_file_writer", "tensorboard")
        events = _client("tensorboardX.proto.event_pb2", "tensorboard")
        self._event, self._session_log = events.Event, events.SessionLog
        self._summary = _client("tensorboardX.summary", "tensorboard")
        self._make_folder = _client("tensorboardX.record_writer", "tensorboard").directory_check
        self._folder = os.path.join(folder, _OWN_FOLDER)
        self._shown: list[Row] = []
        self._files = 0
        self._writer: Any = None

    def put(self, story: RunStory, rows: Sequence[Row]) -> None:
        """Write the new rows; begin a new file if rows that were written have changed."""
        same = _common(self._shown, rows)
        try:
            if self._writer is None or same < len(self._shown):
                same = self._begin_file(rows, same)
            for row in rows[same:]:
                for name, value in row.values.items():
                    self._write(row.seconds, step=row.step, summary=self._summary.scalar(name, value))
            self._writer.flush()
        except OSError as error:
            self._writer, self._shown = None, []
            raise StorageError(f"could not write TensorBoard's files to {self._folder}: {error}") from error
        self._shown = list(rows)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _begin_file(self, rows: Sequence[Row], same: int) -> int:
        """Begin a file that hides what differs, or everything of others; return the place of the first row for it."""
        hidden = min((row.step for row in (*self._shown[same:], *rows[same:])), default=0) if self._shown else 0
        self.close()
        self._make_folder(self._folder)
        self._files += 1  # in the name, because files of one second are read in the order of their names
        ending = f".ckptkit-{self._files:04d}"
        self._writer = self._client.EventsWriter(os.path.join(self._folder, "events"), ending)
        start = self._session_log(status=self._session_log.START)
        self._write(time.time(), step=hidden, session_log=start)
        return next((at for at, row in enumerate(rows) if row.step >= hidden), len(rows))

    def _write(self, seconds: float, **event: Any) -> None:
        self._writer.write_event(self._event(wall_time=seconds, **event))


class MLflow(Monitor):
    """Logs to the tracking server of MLflow's own settings (``MLFLOW_TRACKING_URI``); the run is found by a tag.

    A run that goes back to an earlier checkpoint on request continues as another run there, because MLflow forgets
    nothing.
    """

    def __init__(self, experiment: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would tell its makers of the use
        self._mlflow = _client("mlflow", "mlflow")
        self._metric = _client("mlflow.entities", "mlflow").Metric
        self._experiment = escaped(experiment)
        self._client: Any = None
        self._run: str | None = None
        self._course: str | None = None
        self._logged: dict[str, int] = {}  # the last step of each metric

    def put(self, story: RunStory, rows: Sequence[Row]) -> None:
        """Log what lies after the last step of each metric."""
        try:
            if self._run is None or self._course != course_of(story):
                self._find(story)
            new = []
            for row in rows:
                for name, value in row.values.items():
                    tag = re.sub(r"[^\w.\-/ ]", "_", name)  # what MLflow takes
                    if row.first > self._logged.get(tag, -1):
                        new.append(self._metric(tag, value, int(row.seconds * 1000), row.step))
            for at in range(0, len(new), _MOST_AT_ONCE):
                self._client.log_batch(self._run, metrics=new[at : at + _MOST_AT_ONCE])
            self._logged.update((metric.key, metric.step) for metric in new)
            self._client.update_run(self._run, status=_ENDS.get(story.last.how or "", "RUNNING"))
        except (OSError, self._mlflow.exceptions.MlflowException) as error:
            self._run = None  # a batch may have arrived: the next call asks what did
            raise StorageError(
                f"could not log to MLflow ({self._mlflow.get_tracking_uri()}): {message_of(error)}"
            ) from error

    def _find(self, story: RunStory) -> None:
        """Find the run that has this course, or make it, and see how far it is."""
        self._client, self._course = self._mlflow.MlflowClient(), course_of(story)
        known = self._client.get_experiment_by_name(self._experiment)
        experiment = self._client.create_experiment(self._experiment) if known is None else known.experiment_id
        runs = self._client.search_runs([experiment], f"tags.`{_COURSE}` = '{self._course}'", max_results=1)
        if not runs:
            tags = {_COURSE: self._course, "ckptkit.root": story.root}
            runs = [self._client.create_run(experiment, tags=tags, run_name=story.root.rstrip("/").rpartition("/")[2])]
        run = runs[0].info.run_id
        self._logged = {
            tag: max((metric.step for metric in self._client.get_metric_history(run, tag)), default=-1)
            for tag in runs[0].data.metrics
        }
        self._run = run


class Prometheus(Monitor):
    """Writes the newest values to a file for the textfile collector of Prometheus's node exporter.

    It is replaced as a whole; the collector reads those that end with ``.prom``.
    """

    def __init__(self, path: str) -> None:
        self._client = _client("prometheus_client", "prometheus")
        self._path = path

    def put(self, story: RunStory, rows: Sequence[Row]) -> None:
        newest = {name: value for row in rows for name, value in row.values.items()}
        share = story.account.share if newest.pop(GOODPUT, None) is not None else None  # the account's is of now
        known = {
            "optimizer_step": ("Optimizer steps; batches where K is not known.", float(story.step)),
            "save_stall_seconds": ("Time that the newest save kept training waiting.", newest.pop(STALL, None)),
            "save_took_seconds": ("Time from the call of the newest save to its commit.", newest.pop(TOOK, None)),
            "save_size_bytes": ("Bytes written for the newest save.", newest.pop(SIZE, None)),
            "goodput_ratio": ("Share of the time that was training that counted.", share),
        }
        registry = self._client.CollectorRegistry()
        for name, (text, value) in known.items():
            if value is not None:
                self._client.Gauge(f"ckptkit_{name}", text, ["root"], registry=registry).labels(story.root).set(value)
        values = self._client.Gauge("ckptkit_value", "What training recorded.", ["root", "name"], registry=registry)
        for name, value in newest.items():
            values.labels(story.root, name).set(value)
        try:
            path = os.path.realpath(self._path)  # a link stays
            if os.path.lexists(path) and not os.path.isfile(path):
                raise OSError("it exists, and is no regular file")
            self._client.write_to_textfile(path, registry)
        except OSError as error:
            raise StorageError(f"could not write the metrics to {self._path}: {error}") from error


def _common(rows: Sequence[Row], others: Sequence[Row]) -> int:
    """Return how many rows both begin with."""
    return next(
        (at for at, (mine, its) in enumerate(zip(rows, others, strict=False)) if mine != its),
        min(len(rows), len(others)),
    )


def _client(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingClientError(
            f"--{extra} needs {module.partition('.')[0]}, which is not installed or not whole: "
            f"pip install 'mindspore-ckptkit[{extra}]'"
        ) from error
