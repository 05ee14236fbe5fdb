"""``ckptkit verify``: what it prints and what it exits with."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.runs.scenario import AT_6, AT_8, Life, corrupt, history, name_at

from ckptkit.cli.commands import verify
from ckptkit.cli.commands.verify import ENDS, run_verify
from ckptkit.cli.output import CheckpointBar
from ckptkit.errors import CheckpointNotFoundError
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage

AT_4 = name_at(1, 4)


@pytest.fixture
def root(tmp_path):
    history(tmp_path / "run")
    return tmp_path / "run"


def verified(root, capsys, *, code=0, checkpoint=None):
    ticks = iter([0.0, 2.0])
    assert run_verify(str(root), checkpoint, as_json=False, clock=lambda: next(ticks)) == code
    return capsys.readouterr()


def test_whole_checkpoint_off_the_lineage_is_recommended(root, capsys):
    life = Life(root)
    life.restore(AT_4)
    life.saved_at(8)
    corrupt(root, AT_4)
    corrupt(root, AT_8)
    lines = verified(root, capsys, code=1).out.splitlines()
    assert "3 checkpoints: 1 whole, 2 corrupt" in lines[0]
    assert lines[-3].startswith("a start on this run would end with an error")
    assert lines[-2].startswith("Bring the files named above back")
    assert lines[-1] == "Or name one of the whole checkpoints: resume(checkpoint=NAME)."
    corrupt(root, AT_6)
    lines = verified(root, capsys, code=1).out.splitlines()
    assert lines[-1].startswith("Bring the files named above back"), "none is whole"


def test_checkpoint_removed_meanwhile_is_no_problem(root, capsys, monkeypatch):
    life = Life(root)
    life.restore()
    life.saved_at(8)
    going_on = Fault(lambda: life.saved_at(10), operations={"read"}, key=f"*/{AT_6}/COMMIT")
    monkeypatch.setattr(verify, "open_root", lambda *_: FaultyStorage(LocalStorage(root), [going_on]))
    told = verified(root, capsys)
    assert "2 checkpoints: 1 whole, 1 removed" in told.out
    assert f"{AT_6} was removed during verification, which is not a problem" in told.out
    assert f"skipped, since it was removed meanwhile: {AT_6} (" in told.err


def test_run_without_commits_begins_afresh(tmp_path, capsys):
    Life(tmp_path / "run").restore()
    told = verified(tmp_path / "run", capsys)
    assert "no committed checkpoint; 0 files" in told.out
    assert told.out.splitlines()[-1] == "a start on this run begins afresh"
    with pytest.raises(CheckpointNotFoundError, match="does not exist"):
        run_verify(str(tmp_path / "typo"), None)


def test_bar_shows_checkpoints_and_bytes():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with CheckpointBar("listing", ENDS, console) as bar:
        bar.plan(3, 2 << 20)
        for _ in range(2):  # the speed is known from the second time on
            bar.advance(1 << 19)
        bar.end(AT_6, "corrupt")
        bar.end(AT_6, "removed")
    shown = console.file.getvalue()
    assert "2 of 3 checkpoints, 1 corrupt" in shown
    assert "1.0/2.0 MiB" in shown
    assert "iB/s" in shown
    assert bar.read_bytes == 1 << 20
