"""Implements ``ckptkit report`` and ``ckptkit goodput``; ``docs/report.md`` and ``docs/goodput.md`` have their JSON.

Reads the run and never writes to it. With ``--json``, or for a monitor, it draws no page and does not need plotly.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ckptkit.cli.errors import FINE, PROBLEM, WrongUsageError
from ckptkit.cli.examination import refuse_other
from ckptkit.cli.options import AsJson, Options, Root, open_root, positive_duration
from ckptkit.cli.output import plain, print_parts, print_result
from ckptkit.errors import CheckpointNotFoundError, StorageError
from ckptkit.storage import Storage
from ckptkit.tools.interchange.atomic_file import new_file
from ckptkit.tools.report.goodput import numbers_of, table_of
from ckptkit.tools.report.health import judge, lines_of
from ckptkit.tools.report.history import RunStory, read_story
from ckptkit.tools.report.monitors import MissingClientError, MLflow, Monitor, Prometheus, TensorBoard, series_of


def run_report(
    root: Root,
    *,
    output: Annotated[str, typer.Option("--output", "-o", help="Where to write the page.")] = "report.html",
    tensorboard: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write the curves there for TensorBoard, and no page.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="EXPERIMENT", help="Log the curves to MLflow, and write no page.")
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option(metavar="FILE.prom", help="Write the newest values for Prometheus, and no page.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Repeat that, such as every 30s, until the run has finished.")
    ] = None,
    options: Options = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, and write no page.")] = False,
) -> int:
    """Draw a run as a page that works offline: attempts, loss across restarts, what saves cost, what was removed.

    Exits with 1 if a file of the run is corrupt; the page shows the rest.

    Examples:
        ckptkit report runs/vit-17
        ckptkit report s3://bucket/vit-17 -o vit.html
        ckptkit report runs/vit-17 --tensorboard logs/vit-17 --every 30s
    """
    if tensorboard or mlflow or prometheus:
        if as_json:
            raise WrongUsageError("--json prints a document; call it without --tensorboard, --mlflow and --prometheus")
        seconds = None if every is None else positive_duration("--every", every).total_seconds()
        with contextlib.ExitStack() as stack:
            monitors = [
                stack.enter_context(contextlib.closing(monitor))
                for monitor in _monitors(tensorboard, mlflow, prometheus)
            ]
            put = partial(_put, open_root(root, options), monitors)
            story = put() if seconds is None else _follow(put, seconds)
        print(f"written up to step {story.step}")
        return PROBLEM if story.problems else FINE
    if every is not None:
        raise WrongUsageError("--every goes with --tensorboard, --mlflow or --prometheus")
    if not as_json:
        refuse_other(Path(output), "--output")
        try:
            import plotly.graph_objects  # noqa: F401 - checks that the optional dependency is installed and complete
        except ImportError as error:
            raise WrongUsageError(
                "the page needs plotly, which is not installed: pip install 'mindspore-ckptkit[report]'. "
                "--json works without it"
            ) from error
    story = read_story(open_root(root, options), datetime.now(timezone.utc))
    if as_json:
        numbers = {
            "step": story.step,
            "redone_steps": story.redone_steps,
            "stall_seconds": story.account.stall_seconds,
            "verdict": judge(story),
            "goodput": numbers_of(story),
        }
        document = {**plain(story), **numbers}
        del document["lives"]  # their seconds are in ``goodput``
        print_result(document, (), as_json=True)
    else:
        from plotly.offline import get_plotlyjs

        from ckptkit.tools.report.page import PLOTLY, page_of

        _write(get_plotlyjs().encode(), Path(output).parent / PLOTLY)  # first: the page needs it
        _write(page_of(story).encode(), Path(output))
        print_parts((*lines_of(story), f"The page needs {PLOTLY} beside it", f"The page is {output}"))
    return PROBLEM if story.problems else FINE


def run_goodput(root: Root, *, options: Options = None, as_json: AsJson = False) -> int:
    """Show what the seconds of a run went to, what its deaths cost, and what other intervals of saves would cost.

    Exits with 1 if a file of the run is corrupt; the rest is shown.

    Examples:
        ckptkit goodput runs/vit-17
        ckptkit goodput runs/vit-17 --json
    """
    story = read_story(open_root(root, options), datetime.now(timezone.utc))
    problems = [f"{problem.key} cannot be used: {problem.reason}" for problem in story.problems]
    print_result({"root": story.root, **numbers_of(story)}, (*table_of(story), *problems), as_json=as_json)
    return PROBLEM if story.problems else FINE


def _monitors(tensorboard: str | None, mlflow: str | None, prometheus: str | None) -> Sequence[Monitor]:
    wanted = (TensorBoard, tensorboard), (MLflow, mlflow), (Prometheus, prometheus)
    try:
        return [monitor(where) for monitor, where in wanted if where]
    except MissingClientError as error:
        raise WrongUsageError(str(error)) from error


def _follow(put: Callable[[], RunStory], seconds: float) -> RunStory:
    """Write again and again until the run has finished; an error is told once, until there is none."""
    printed: set[str] = set()
    while True:
        try:
            story = put()
        except (CheckpointNotFoundError, StorageError) as error:
            if str(error) not in printed:
                print(f"{error}; trying again", file=sys.stderr)
            printed.add(str(error))
        else:
            printed.clear()
            if story.last.how in ("finished", "complete"):
                return story
        time.sleep(seconds)


def _put(storage: Storage, monitors: Sequence[Monitor]) -> RunStory:
    """Write to all monitors, also to those after one that fails."""
    story = read_story(storage, datetime.now(timezone.utc))
    rows, failed = series_of(story), None
    for monitor in monitors:
        try:
            monitor.put(story, rows)
        except StorageError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return story


def _write(page: bytes, path: Path) -> None:
    try:
        with new_file(path.resolve(), overwrite=True) as file:  # resolved, so that a link stays a link
            file.put(page)
    except ValueError as error:  # about the path
        raise StorageError(str(error)) from error
