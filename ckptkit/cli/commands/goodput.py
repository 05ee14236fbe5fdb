"""Implements ``ckptkit goodput``: what the seconds of a run went to, as a table or as JSON.

``docs/goodput.md`` describes the JSON. Reads the run and never writes to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from ckptkit.cli.errors import FINE, PROBLEM
from ckptkit.cli.output import print_result
from ckptkit.cli.run_root import open_root


def run_goodput(root: str, options: Iterable[str] = (), *, now: datetime, as_json: bool = False) -> int:
    """Print the account at the time ``now``; returns the exit code."""
    from ckptkit.tools.report.goodput import numbers_of, table_of
    from ckptkit.tools.report.story import read_story

    story = read_story(open_root(root, options), now)
    problems = [f"{problem.key} cannot be used: {problem.reason}" for problem in story.problems]
    print_result({"root": story.root, **numbers_of(story)}, (*table_of(story), *problems), as_json=as_json)
    return PROBLEM if story.problems else FINE
