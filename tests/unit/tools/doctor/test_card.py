"""The card of an examination: it says PASS or FAIL, what was compared, and no folder of the machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.doctor_lives import NUMPY_SCRIPT, life, run_doctor, stepped

from ckptkit.cli.errors import WrongUsageError
from ckptkit.tools.doctor.card import _kill, commit_of
from ckptkit.tools.doctor.lives.trace import SavedEvent
from ckptkit.tools.doctor.result import DoctorOptions


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A repository with ``train.py``, in which it runs."""
    (tmp_path / "train.py").write_text(NUMPY_SCRIPT)
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    git("add", "train.py")
    git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "one")
    return tmp_path


MIDDLE = {"epoch": 0, "batch": 2, "in_cycle": "2/4"}


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()  # noqa: S607


def card_of(here: Path, *what: str, kills: int = 2, code: int = 0) -> tuple[str, dict]:
    """The text and the fields of a card of ``train.py``, which is called by its whole path."""
    command = [sys.executable, str(here / "train.py"), *what]
    options = DoctorOptions(steps=9, kills=kills, own_saves="own" in what)
    assert run_doctor(command, options, keep=None, as_json=False, card=here / "cards/card.md") == code
    text = (here / "cards/card.md").read_text()
    block = re.search("```yaml\n(.*)\n```", text, re.DOTALL)
    assert block is not None
    return text, {
        name: json.loads(value) for name, _, value in (line.partition(": ") for line in block[1].splitlines())
    }


def test_card_of_exact_script_says_pass_and_what_was_compared(here):
    text, fields = card_of(here)
    assert text.startswith("# Resume card of train.py, none: PASS\n")
    assert "- exact: every interrupted life is the uninterrupted one, bit for bit" in text
    assert (fields["status"], fields["differences"], fields["sentinels_match"]) == ("verified", 0, True)
    assert (fields["absolute_tolerance"], fields["relative_tolerance"]) == (0, 0)
    assert fields["sentinel_steps"] == "every micro-step from 1 to 9"
    assert (fields["micro_steps_compared"], fields["values_per_micro_step"]) == (21, 3)
    assert fields["command"] == f"ckptkit doctor --steps 9 --kills 2 -- {Path(sys.executable).name} train.py"
    assert fields["commit"] == git("rev-parse", "HEAD")
    assert fields["mode"] == "none"
    assert [kill["after"] for kill in fields["kills"]] == [3, 7]
    assert fields["kills"][0] == {"after": 3, "own_saves": False, "resumed_after": 2, **MIDDLE}
    assert [0 < seconds < 60 for seconds in fields["seconds_to_new_micro_step"]] == [True, True]
    assert 0 <= fields["stall_seconds"] < 60


def test_card_of_other_script_says_fail_and_the_first_difference(here):
    """Its diagnosis is about run roots, whose folders are left out."""
    text, fields = card_of(here, "other-root", kills=1, code=1)
    assert text.startswith("# Resume card of train.py, none: FAIL\n")
    assert "- first difference: micro-step " in text
    assert "- diagnosis: never-resumed: " in text
    assert (fields["status"], fields["sentinels_match"]) == ("failed", False)
    assert re.fullmatch(r"from \d on", fields["differences"])
    assert fields["seconds_to_new_micro_step"] == [None]
    assert re.search(r"(?<![\w.~:/])/\w", text) is None, text


def test_card_names_no_folder_of_the_command_and_has_own_saves(here):
    folders = [str(here / "with a space/data"), f"--data={here}/x", f"{here}/sub/y.bin", "s3://bucket/deep/key"]
    text, fields = card_of(here, "own", *folders, kills=1)
    assert str(here) not in text
    assert "--own-saves" in fields["command"]
    assert fields["command"].endswith("train.py own data --data=x y.bin s3://bucket/deep/key")
    assert [kill["own_saves"] for kill in fields["kills"]] == [False, True]


def test_kill_of_one_rank_names_it():
    lines = [stepped(1), stepped(2), stepped(3), SavedEvent(step=2)]
    ranks = tuple(life(lines, planned_kill=3, killed_ranks=(1,), rank=rank) for rank in (0, 1))
    kill = _kill(life(lines, planned_kill=3, killed_ranks=(1,), ranks=ranks))
    where = {"epoch": 0, "batch": 2, "in_cycle": "2/3"}
    assert kill == {"after": 3, "rank": 1, "own_saves": False, "resumed_after": 2, **where}
    assert _kill(life([stepped(1)], planned_kill=1, ranks=ranks))["rank"] == "all"


def test_failed_examination_leaves_no_card(here):
    (here / "cards").mkdir()
    (here / "cards/card.md").write_text("# Resume card of train.py: PASS\n")
    options = DoctorOptions(steps=9, kills=1)
    command = [sys.executable, "train.py", "crashes"]
    assert run_doctor(command, options, keep=None, as_json=False, card=Path("cards/card.md")) == 1
    assert [*(here / "cards").iterdir()] == []
    (here / "README.md").write_text("# Mine\n")
    with pytest.raises(WrongUsageError, match=r"--card: README.md exists and is no earlier result"):
        run_doctor(command, options, keep=None, as_json=False, card=Path("README.md"))
    assert (here / "README.md").read_text() == "# Mine\n"


def test_commit_tells_whether_the_repository_was_modified(here, tmp_path_factory):
    commit = git("rev-parse", "HEAD")
    assert [commit_of(here / "train.py"), commit_of(Path("train.py")), commit_of(Path())] == [commit] * 3
    (here / "other.py").write_text("")
    assert commit_of(here / "train.py") == commit
    assert commit_of(here / "other.py") is None  # no commit has it
    (here / "train.py").write_text("changed")
    assert commit_of(here / "train.py") == f"{commit} modified"
    assert commit_of(tmp_path_factory.mktemp("bare") / "train.py") is None
