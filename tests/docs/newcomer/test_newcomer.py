"""From an ordinary ``Model.train`` to an exact resume in a few changed lines; ``try_it.py`` goes the whole way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from docs.documents import run
from docs.newcomer.changed_lines import SCRIPTS, changed_lines

sys.path.insert(0, str(SCRIPTS))  # try_it.py is run as a program, from there
import try_it


@pytest.mark.parametrize(
    ("before", "script", "most"),
    [
        ("before.py", "after.py", 9),
        ("before.py", "plain.py", 4),
        ("loop.py", "loop_resumed.py", 4),
        ("model_checkpoint.py", "migrated.py", 6),
    ],
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


@pytest.mark.extended  # docs/migration.md shows what changes from one to the other
def test_script_of_modelcheckpoint_resumes_once_migrated(tmp_path: Path) -> None:
    run([sys.executable, str(SCRIPTS / "model_checkpoint.py")], tmp_path)
    assert (tmp_path / "checkpoints/digits-2_30.ckpt").exists()
    text = (SCRIPTS / "migrated.py").read_text(encoding="utf-8")
    for epochs in (1, 2):
        (tmp_path / "migrated.py").write_text(text.replace("ckpt.train(model, 2,", f"ckpt.train(model, {epochs},"))
        said = run([sys.executable, "migrated.py"], tmp_path)
    assert "resuming from a000001-c0000000030-m0000: epoch 1, batch 0" in said, said


def test_readmes_first_screen_installs_and_shows() -> None:
    assert try_it.first_screen(try_it.REPOSITORY / "README.md") == ["pip install .", "ckptkit demo"]
