"""Implements ``ckptkit report``: reports a run as one HTML page that works offline, or as JSON.

``docs/report.md`` describes the JSON: the fields of `ckptkit.tools.report.history.RunStory` and its parts, times in ISO
8601, and the verdict of `ckptkit.tools.report.health`. Reads the run and never writes to it. With ``--json`` it draws
no page and does not need plotly.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console

from ckptkit.cli.errors import WrongUsageError
from ckptkit.cli.storage_option import open_root
from ckptkit.cli.text import visible
from ckptkit.errors import StorageError


def run_report(root: str, options: Iterable[str] = (), *, output: str, now: datetime, as_json: bool = False) -> int:
    """Write the page or print the JSON; returns the exit code.

    Args:
        root: A path or a URL.
        options: Options of its storage.
        output: File of the page; an existing page stays until the new one is complete.
        now: Time of the report.
        as_json: Whether to print one JSON document to stdout instead of writing a page.

    Raises:
        WrongUsageError: If an option is invalid, or the page needs plotly and it is not installed.
        CheckpointNotFoundError: If there is no run.
        StorageError: If the storage failed, or the page cannot be written.
    """
    from ckptkit.tools.report.goodput import numbers_of
    from ckptkit.tools.report.health import judge, lines_of
    from ckptkit.tools.report.reader import read_story

    if not as_json:
        _need_plotly()
    story = read_story(open_root(root, options), now)
    if as_json:
        numbers = {
            "step": story.step,
            "redone_steps": story.redone_steps,
            "stall_seconds": story.stall_seconds,
            "verdict": dataclasses.asdict(judge(story)),
        }
        told = {name: value for name, value in dataclasses.asdict(story).items() if name != "lives"}
        print(json.dumps({**told, **numbers, "goodput": numbers_of(story)}, default=_plain))
    else:
        from ckptkit.tools.report.page import page_of

        _write(page_of(story).encode(), Path(output))
        console = Console()
        for line in (*lines_of(story), f"The page is {output}"):
            console.print(visible(line), markup=False, highlight=False, soft_wrap=True)
    return 1 if story.problems else 0


def _write(page: bytes, path: Path) -> None:
    from ckptkit.tools.interchange.atomic_file import NewFile

    try:
        with NewFile(path.resolve(), len(page), overwrite=True) as file:  # resolved, so that a link stays a link
            file.put(memoryview(page), 0)
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


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, BaseModel):
        return value.model_dump()
    raise TypeError(f"{type(value).__name__} is not JSON")
