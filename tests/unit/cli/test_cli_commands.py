"""``ckptkit ls``, ``verify``, ``diff`` and ``copy``: what they print beside ``words.txt``, and what they exit with."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from support.runs.rank_files import leaf, write_ranks
from support.runs.scenario import AT_6, AT_8, Life, committed, corrupt, history, name_at
from typer.testing import CliRunner
from unit.tools.test_diff import Stale, trained

from ckptkit.cli import app
from ckptkit.cli.commands import diff as diff_module
from ckptkit.cli.commands import verify as verify_module
from ckptkit.cli.commands.copy import run_copy
from ckptkit.cli.commands.diff import run_diff
from ckptkit.cli.commands.ls import run_ls
from ckptkit.cli.commands.verify import ENDS, run_verify
from ckptkit.cli.output import CheckpointBar
from ckptkit.errors import CheckpointNotFoundError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

AT_4 = name_at(1, 4)


@pytest.fixture
def root(tmp_path):
    history(tmp_path / "run")
    return tmp_path / "run"


def names_in(text: str) -> list[str]:
    return [line.split()[1] for line in text.splitlines() if " a0000" in line]


def test_older_checkpoints_are_counted_or_shown(capsys, monkeypatch):
    golden = str(Path(__file__).parents[2] / "exactness/golden/v1/numpy")
    for newest, left_out in (
        (3, ["2 older checkpoints are not shown; --all shows every one"]),
        (4, ["1 older checkpoint is not shown; --all shows every one"]),
        (5, []),
    ):
        monkeypatch.setattr("ckptkit.cli.commands.ls.NEWEST", newest)
        assert run_ls(golden, show_all=True) == 0
        names = names_in(capsys.readouterr().out)
        assert len(names) == 5
        assert run_ls(golden) == 0
        text = capsys.readouterr().out
        assert (names_in(text), [line for line in text.splitlines() if "older" in line]) == (names[-newest:], left_out)
        assert run_ls(golden, as_json=True) == 0
        printed = json.loads(capsys.readouterr().out)
        shown = [checkpoint["name"] for checkpoint in printed["checkpoints"]]
        assert (shown, printed["left_out"]) == (names[-newest:], 5 - newest)


def test_missing_root_is_distinguished_from_empty_one(tmp_path, capsys):
    (tmp_path / ".DS_Store").touch()
    assert run_ls(str(tmp_path)) == 0
    assert "no committed checkpoint" in capsys.readouterr().out
    (tmp_path / "train.py").touch()
    with pytest.raises(CheckpointNotFoundError, match=r"holds files \(train\.py\), but no run"):
        run_ls(str(tmp_path))
    CheckpointManager(tmp_path).restore(NumpyRun())  # what else the job keeps there does not matter
    assert run_ls(str(tmp_path)) == 0


COMMANDS = (
    *("ls", "show", "show ROOT 2", "verify", "verify ROOT latest", "diff ROOT 1", "export ROOT -o OUT.ckpt", "goodput"),
    *("report ROOT -o OUT", "copy ROOT OUT", "copy ROOT OUT --checkpoint 1", "prune ROOT --branches --dry-run"),
    "replay ROOT -- python train.py",
)


def test_folder_of_runs_lists_them_whatever_the_command(tmp_path):
    for name in ("vit-17", "vit-18", "vit-19", "vit-20"):
        CheckpointManager(tmp_path / "runs" / name).restore(NumpyRun())
    said = f"{tmp_path}/runs is not a run, but there are runs below it. Give the root of one:"
    for command in COMMANDS:
        line = (command if "ROOT" in command else f"{command} ROOT").replace("OUT", f"{tmp_path}/out")
        done = CliRunner().invoke(app, line.replace("ROOT", f"{tmp_path}/runs").split())
        assert done.exit_code == 1, command
        expected = [said, *(f"  {tmp_path}/runs/vit-{number}" for number in (17, 18))]
        assert done.stderr.splitlines()[:3] == expected, command
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def verified(root, capsys, *, code=0):
    assert run_verify(str(root)) == code
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
    assert lines[-1] == "Or name one of the whole checkpoints: resume(checkpoint=NAME)."
    corrupt(root, AT_6)
    lines = verified(root, capsys, code=1).out.splitlines()
    assert lines[-1].startswith("Bring the files named above back"), "none is whole"


def test_checkpoint_removed_meanwhile_is_no_problem(root, capsys, monkeypatch):
    life = Life(root)
    life.restore()
    life.saved_at(8)
    going_on = Fault(lambda: life.saved_at(10), operations={"read"}, key=f"*/{AT_6}/COMMIT")
    monkeypatch.setattr(verify_module, "open_root", lambda *_: FaultyStorage(LocalStorage(root), [going_on]))
    told = verified(root, capsys)
    assert "2 checkpoints: 1 whole, 1 removed" in told.out
    assert f"{AT_6} was removed during verification, which is not a problem" in told.out
    assert f"skipped, since it was removed meanwhile: {AT_6} (" in told.err


def test_bar_shows_checkpoints_and_bytes():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with CheckpointBar("listing", ENDS, console) as bar:
        bar.plan(3, 2 << 20)
        for _ in range(2):  # the speed is known from the second time on
            bar.advance(1 << 19)
        bar.end(AT_6, "corrupt")
    for words in ("1 of 3 checkpoints, 1 corrupt", "1.0/2.0 MiB", "iB/s"):
        assert words in console.file.getvalue()
    assert bar.read_bytes == 1 << 20


def test_ranks_and_long_states_are_told_shortly(capsys, monkeypatch):
    states = [{"rng": {f"{number:02d}": value for number in range(25)}} for value in (0, 1)]
    leaves = [leaf("w", np.zeros(2))]
    storages = {
        "one": write_ranks([leaves], states=states[:1]),
        "two": write_ranks([leaves, leaves], states=[states[1]] * 2),
    }
    monkeypatch.setattr(diff_module, "open_root", lambda root, *_, **__: storages[root])
    assert run_diff("one", "latest", "latest", other_root="two") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "ranks: 1 -> 2; what both have of the state is compared" in lines
    places = [line for line in lines if line.startswith("state: ")]
    assert len(places) == 21
    assert (places[0], places[-1]) == ("state: rank 0: rng/00: 0 -> 1", "state: 5 more places differ; --json shows all")


def test_mirrored_runs_alone_are_compared_at_their_newest(tmp_path, capsys):
    root, other = tmp_path / "root", tmp_path / "other"
    (a,), (b, newest) = trained(root, NumpyRun(), 4), trained(other, NumpyRun(), 4, 12)
    at_root, at_other = f"A: {a} at {root}\nB: ", f"{newest} at {other}\n"
    for arguments, options, shown in (
        ((root, str(other), None), {}, f"{at_root}{at_other}"),
        ((other, b, None), {}, f"A: {b} at {other}\nB: {at_other}"),  # one name alone: with the newest there
        ((root, a, None), {"other_root": str(other)}, f"{at_root}{at_other}"),
        ((root, "latest", None), {}, f"{at_root}{a} at {root}\n"),
    ):
        assert run_diff(str(arguments[0]), *arguments[1:], **options) == 0
        assert capsys.readouterr().out.startswith(shown), arguments
    assert run_diff(str(other), b, newest, exit_code=True) == 1
    assert run_diff(str(root), a, b, other_root=str(other), exit_code=True) == 0
    names = trained(tmp_path / "stale", Stale("weights", "moments", accumulation_steps=2), 4, 8)
    assert run_diff(str(tmp_path / "stale"), *names) == 1
    assert "SUSPICIOUS: 2 updates lie between the two" in capsys.readouterr().out


def test_corrupt_checkpoint_exits_1_and_others_are_copied(root, tmp_path, capsys):
    corrupt(root, AT_6)
    assert run_copy(str(root), str(tmp_path / "copy")) == 1
    told = capsys.readouterr()
    assert f"{tmp_path}/copy: 1 checkpoints, 1 of them copied now" in told.out
    assert f"copied {AT_4} (1 of 2 checkpoints)" in told.err
    assert f"not copied: {AT_6}: checkpoints/{AT_6}/rank-00000/weights-000.safetensors" in told.err
    assert committed(tmp_path / "copy") == [AT_4]


def test_interrupted_copy_is_completed_by_same_command(root, tmp_path, monkeypatch, capsys):
    write, writes = LocalStorage.write, []

    def interrupted(self, key, *arguments):
        writes.append(key)
        if len(writes) == 6:
            raise KeyboardInterrupt
        write(self, key, *arguments)

    monkeypatch.setattr(LocalStorage, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_copy(str(root), str(tmp_path / "copy"))
    assert "the same command copies the rest" in capsys.readouterr().err
    assert committed(tmp_path / "copy") != committed(root)
    assert run_copy(str(root), str(tmp_path / "copy")) == 0
    assert committed(tmp_path / "copy") == committed(root)
