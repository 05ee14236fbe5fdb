"""From an ordinary ``Model.train`` to an exact resume in a few changed lines; ``try_it.py`` goes the whole way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from docs.newcomer.changed_lines import SCRIPTS, changed_lines

sys.path.insert(0, str(SCRIPTS))  # try_it.py is run as a program, from there
import try_it


@pytest.mark.parametrize(
    ("before", "script", "most"),
    [("before.py", "after.py", 9), ("before.py", "plain.py", 4), ("loop.py", "loop_resumed.py", 8)],
)
def test_few_lines_change(before: str, script: str, most: int) -> None:
    changed = changed_lines(SCRIPTS / before, SCRIPTS / script)
    assert 0 < len(changed) <= most, changed


@pytest.mark.extended  # CI goes the way of `try_it.py`
@pytest.mark.parametrize(("script", "commits"), [("plain.py", 2), ("loop_resumed.py", 1)])
def test_scripts_of_the_readme_resume_exactly(tmp_path: Path, script: str, commits: int) -> None:
    newcomer = try_it.Newcomer(Path(sys.executable).parent)
    try_it.prepare(newcomer, tmp_path)
    try_it.resume_exactly(newcomer, script, tmp_path, commits=commits)


def test_readmes_first_screen_installs_and_shows() -> None:
    assert try_it.first_screen(try_it.REPOSITORY / "README.md") == ["pip install .", "ckptkit demo"]
