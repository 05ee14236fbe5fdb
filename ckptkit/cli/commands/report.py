"""Implements ``ckptkit report``: reports a run as one HTML page that works offline, as JSON, or to a monitor.

``docs/report.md`` describes the JSON: the fields of `ckptkit.tools.report.story.RunStory` and its parts, times in ISO
8601, and the verdict of `ckptkit.tools.report.health`. Reads the run and never writes to it. With ``--json``, or for a
monitor, it draws no page and does not need plotly.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckptkit.cli.errors import FINE, PROBLEM, WrongUsageError
from ckptkit.cli.output import plain, print_json, print_line
from ckptkit.cli.run_root import open_root, positive_duration
from ckptkit.errors import CheckpointNotFoundError, StorageError

if TYPE_CHECKING:
    from ckptkit.storage import Storage
    from ckptkit.tools.report.monitors import Monitor
    from ckptkit.tools.report.story import RunStory


@dataclass(frozen=True)
class Monitors:
    """Says where the values of a run go: a folder, an experiment, a file."""

    tensorboard: str | None = None
    mlflow: str | None = None
    prometheus: str | None = None

    def are_wanted(self, *, every: str | None, as_json: bool) -> bool:
        """Return whether any was named.

        Raises:
            WrongUsageError: If another option says something else.
        """
        are_named = any((self.tensorboard, self.mlflow, self.prometheus))
        if are_named and as_json:
            raise WrongUsageError("--json prints a document; call it without --tensorboard, --mlflow and --prometheus")
        if every is not None and not are_named:
            raise WrongUsageError("--every goes with --tensorboard, --mlflow or --prometheus")
        return are_named

    def sinks(self) -> list[Monitor]:
        """Return what writes there.

        Raises:
            WrongUsageError: If a client is not installed.
        """
        from ckptkit.tools.report import monitors as sinks

        wanted = (sinks.TensorBoard, self.tensorboard), (sinks.MLflow, self.mlflow), (sinks.Prometheus, self.prometheus)
        try:
            return [sink(where) for sink, where in wanted if where]
        except sinks.MissingClientError as error:
            raise WrongUsageError(str(error)) from error


def run_report(root: str, options: Iterable[str] = (), *, output: str, now: datetime, as_json: bool = False) -> int:
    """Write the page to ``output``, where an earlier one stays until it is complete, or print the JSON.

    Returns the exit code.
    """
    from ckptkit.tools.report.goodput import numbers_of
    from ckptkit.tools.report.health import judge, lines_of
    from ckptkit.tools.report.story import read_story

    if not as_json:
        _need_plotly()
    story = read_story(open_root(root, options), now)
    if as_json:
        numbers = {
            "step": story.step,
            "redone_steps": story.redone_steps,
            "stall_seconds": story.stall_seconds,
            "verdict": judge(story),
            "goodput": numbers_of(story),
        }
        document = {**plain(story), **numbers}
        del document["lives"]  # their seconds are in ``goodput``
        print_json(document)
    else:
        from ckptkit.tools.report.page import page_of

        _write(page_of(story).encode(), Path(output))
        for line in (*lines_of(story), f"The page is {output}"):
            print_line(line)
    return PROBLEM if story.problems else FINE


def run_monitors(
    root: str,
    options: Iterable[str] = (),
    *,
    monitors: Monitors,
    every: str | None,
    clock: Callable[[], datetime],
    wait: Callable[[float], object],
) -> int:
    """Write the values of the run to monitors, once or until it has finished; returns the exit code.

    With ``every``, a run that has not begun, a storage or a monitor that fails is told once, and tried again.
    """
    seconds = None if every is None else positive_duration("--every", every).total_seconds()
    with contextlib.ExitStack() as stack:
        sinks = [stack.enter_context(contextlib.closing(one)) for one in monitors.sinks()]
        storage = open_root(root, options)
        if seconds is None:
            story = _put(storage, sinks, clock())
        else:
            story = _follow(partial(_put, storage, sinks), clock, lambda: wait(seconds))
    print(f"written up to step {story.step}")
    return PROBLEM if story.problems else FINE


def _follow(put: Callable[[datetime], RunStory], clock: Callable[[], datetime], wait: Callable[[], object]) -> RunStory:
    """Write again and again until the run has finished; an error is told once, until there is none."""
    told: set[str] = set()
    while True:
        try:
            story = put(clock())
        except (CheckpointNotFoundError, StorageError) as error:
            if str(error) not in told:
                print(f"{error}; trying again", file=sys.stderr)
            told.add(str(error))
        else:
            told.clear()
            if story.last.how in ("finished", "complete"):
                return story
        wait()


def _put(storage: Storage, sinks: Sequence[Monitor], now: datetime) -> RunStory:
    """Write to all monitors, also to those after one that fails."""
    from ckptkit.tools.report.monitors import series_of
    from ckptkit.tools.report.story import read_story

    story = read_story(storage, now)
    rows, failed = series_of(story), None
    for sink in sinks:
        try:
            sink.put(story, rows)
        except StorageError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return story


def _write(page: bytes, path: Path) -> None:
    from ckptkit.tools.interchange.atomic_file import NewFile

    try:
        with NewFile(path.resolve(), overwrite=True) as file:  # resolved, so that a link stays a link
            file.put(page)
            file.publish()
    except ValueError as error:  # about the path
        raise StorageError(str(error)) from error


def _need_plotly() -> None:
    try:
        import plotly.graph_objects  # noqa: F401 - checks that the optional dependency is installed and complete
    except ImportError as error:
        raise WrongUsageError(
            "the page needs plotly, which is not installed: pip install 'mindspore-ckptkit[report]'. "
            "--json works without it"
        ) from error
