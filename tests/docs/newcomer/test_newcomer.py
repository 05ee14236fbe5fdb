"""From an ordinary ``Model.train`` to an exact resume in a few changed lines; ``try_it.py`` goes the whole way."""

from __future__ import annotations

import ast
import difflib
import sys
from pathlib import Path

import pytest

from docs.documents import run
from docs.newcomer.try_it import SCRIPTS, Newcomer, resume_exactly


def code_of(script: str) -> list[str]:
    text = (SCRIPTS / script).read_text(encoding="utf-8")
    docstring = ast.parse(text).body[0]
    return text.splitlines()[docstring.end_lineno :]


@pytest.mark.parametrize(
    ("before", "script", "most"),
    [
        ("before.py", "plain.py", 4),
        ("loop.py", "loop_resumed.py", 4),
        ("model_checkpoint.py", "migrated.py", 6),
    ],
)
def test_few_lines_change(before: str, script: str, most: int) -> None:
    difference = difflib.ndiff(code_of(before), code_of(script))
    changed = [line for line in difference if line[0] in "+-" and line[1:].strip()]
    assert 0 < len(changed) <= most, changed


@pytest.mark.extended  # CI goes the way of `try_it.py`
@pytest.mark.parametrize(("script", "commits"), [("plain.py", 2), ("loop_resumed.py", 1)])
def test_scripts_of_the_readme_resume_exactly(tmp_path: Path, script: str, commits: int) -> None:
    resume_exactly(Newcomer(Path(sys.executable).parent), script, tmp_path, commits=commits)


@pytest.mark.extended  # docs/migration.md shows what changes from one to the other
def test_script_of_modelcheckpoint_resumes_once_migrated(tmp_path: Path) -> None:
    run([sys.executable, str(SCRIPTS / "model_checkpoint.py")], tmp_path)
    assert (tmp_path / "checkpoints/digits-2_30.ckpt").exists()
    text = (SCRIPTS / "migrated.py").read_text(encoding="utf-8")
    for epochs in (1, 2):
        (tmp_path / "migrated.py").write_text(text.replace("ckpt.train(model, 2,", f"ckpt.train(model, {epochs},"))
        said = run([sys.executable, "migrated.py"], tmp_path)
    assert "resuming from a000001-c0000000030-m0000: epoch 1, batch 0" in said, said
