"""From an ordinary ``Model.train`` to an exact resume in a few changed lines; ``try_it.py`` goes the whole way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from docs.newcomer.changed_lines import SCRIPTS, changed_lines

sys.path.insert(0, str(SCRIPTS))  # try_it.py is run as a program, from there
import try_it


@pytest.mark.parametrize(("script", "most"), [("after.py", 9), ("plain.py", 4)])
def test_few_lines_change(script: str, most: int) -> None:
    changed = changed_lines(SCRIPTS / "before.py", SCRIPTS / script)
    assert 0 < len(changed) <= most, changed


@pytest.mark.extended  # CI goes the way of `try_it.py`
def test_mindspore_train_cell_resumes_exactly(tmp_path: Path) -> None:
    newcomer = try_it.Newcomer(Path(sys.executable).parent)
    try_it.prepare(newcomer, tmp_path)
    try_it.resume_exactly(newcomer, "plain.py", tmp_path)


def test_readmes_first_screen_installs_and_shows() -> None:
    assert try_it.first_screen(try_it.REPOSITORY / "README.md") == ["pip install .", "ckptkit demo"]
