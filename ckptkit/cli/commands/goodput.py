"""Implements ``ckptkit goodput``: what the seconds of a run went to, as a table or as JSON.

``docs/goodput.md`` describes the JSON. Reads the run and never writes to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rich.console import Console

from ckptkit.cli.storage_option import open_root
from ckptkit.cli.text import print_json, print_line


def run_goodput(root: str, options: Iterable[str] = (), *, now: datetime, as_json: bool = False) -> int:
    """Print the account; returns the exit code.

    Args:
        root: A path or a URL.
        options: Options of its storage.
        now: Time of the report.
        as_json: Whether to print one JSON document instead of a table.

    Raises:
        WrongUsageError: If an option is invalid.
        CheckpointNotFoundError: If there is no run.
        StorageError: If the storage failed.
    """
    from ckptkit.tools.report.goodput import numbers_of, table_of
    from ckptkit.tools.report.reader import read_story

    story = read_story(open_root(root, options), now)
    if as_json:
        print_json({"root": story.root, **numbers_of(story)})
    else:
        console = Console()
        for line in table_of(story):
            print_line(console, line)
        for problem in story.problems:
            print_line(console, f"{problem.key} cannot be used: {problem.reason}")
    return 1 if story.problems else 0
