"""``ckptkit report``: a run as one HTML page that works offline, or as JSON.

The JSON is ``{"root": str, "run_id": str or null, "copied_from": str or null, "told_at": str, "attempts": [...],
"latest": str or null, "problems": [...], "step": int, "redone_steps": int, "stall_seconds": float, "verdict": {...}}``
with the fields of `ckptkit.report.story`; times are ISO 8601. Reads, never writes to the run. With ``--json`` nothing
is drawn, and plotly is not needed.
"""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timezone
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console

from ckptkit.errors import CkptKitError, StorageError
from ckptkit.storage import open_storage

_INSTALL = "the page needs plotly, which is not installed here: pip install 'ckptkit[report]'"


def run_report(root: str, output: str, *, as_json: bool) -> int:
    """Write the page or print the JSON; returns the exit code."""
    from ckptkit.report.judge import judge
    from ckptkit.report.tell import read_story

    if not as_json and not _can_draw():
        return _complain(_INSTALL, 2)
    try:
        story = read_story(open_storage(root), lambda: datetime.now(timezone.utc))
    except StorageError as error:
        return _complain(str(error), 3)
    except CkptKitError as error:
        return _complain(str(error), 1)
    if as_json:
        numbers = {
            "step": story.step,
            "redone_steps": story.redone_steps,
            "stall_seconds": story.stall_seconds,
            "verdict": dataclasses.asdict(judge(story)),
        }
        print(json.dumps({**dataclasses.asdict(story), **numbers}, default=_plain))
        return 1 if story.problems else 0
    from ckptkit.report.page import lines_of, page_of

    try:
        Path(output).write_text(page_of(story), encoding="utf-8")
    except OSError as error:
        return _complain(f"{output} could not be written: {error}. Name another file with -o", 2)
    console = Console()
    for line in lines_of(story):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"The page is {output}", markup=False, highlight=False, soft_wrap=True)
    return 1 if story.problems else 0


def _can_draw() -> bool:
    try:
        import plotly.graph_objects  # noqa: F401 - an optional dependency: whether it is there, and whole
    except ImportError:
        return False
    return True


def _complain(message: str, code: int) -> int:
    Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)
    return code


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, BaseModel):
        return value.model_dump()
    raise TypeError(f"{type(value).__name__} is not JSON")
