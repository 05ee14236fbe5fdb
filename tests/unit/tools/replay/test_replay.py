"""A stretch of a run that is trained again is certified, or what differs is named with its cause."""

from __future__ import annotations

import json
import re
import sys

import pytest
from support.junit import cases_of, read_junit
from support.process import python
from typer.testing import CliRunner

from ckptkit.cli import app
from ckptkit.cli.commands.ls import run_ls
from ckptkit.cli.commands.replay import run_replay
from ckptkit.cli.commands.verify import run_verify
from ckptkit.cli.errors import WrongUsageError
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError
from ckptkit.run.catalog import list_checkpoints
from ckptkit.storage import open_storage
from ckptkit.tools import replay
from ckptkit.tools.replay import stretch_of

# Saves after 4, 8, 12 and 16 of 18 micro-steps. FLIP is where the hardware computes wrongly, once.
SCRIPT = """
import os, sys
import numpy as np
import ckptkit as ck
from ckptkit.testing.state import NumpyRun

class Run(NumpyRun):
    def observer(self):
        return self
    def observe(self):
        return {"weights/w": self.digest()}, {}
    def environment(self):
        return {}
    def drawing_in_state_dict(self):
        return []
    def suspects(self):
        return []

what = sys.argv[1:]
run = Run(accumulation_steps=2)
root, keep = "elsewhere" if "elsewhere" in what else "run", ck.KeepLatest(2 if "few" in what else 9)
with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=4), keep=keep) as manager:
    manager.restore(run)
    if "crashes" in what:
        raise SystemExit("out of luck")
    while run.batches < (10 if "stops" in what else 18):
        run.train_step()
        if run.batches == int(os.environ.get("FLIP", -1)):
            run.weights.view(np.uint32).reshape(-1)[3] ^= 1 << 20
        if "noisy" in what and run.batches == 10:
            run.weights.reshape(-1)[0] = np.frombuffer(os.urandom(2), np.uint16)[0]
        if "saves" not in what:
            manager.step(run)
        manager.wait()
        if "evaluates" in what and run.batches % 8 == 0 or "saves" in what and run.batches % 4 == 0:
            np.random.random()
            run.moments.reshape(-1)[0] += 1  # what the evaluation changes, after the step
            if run.batches == int(os.environ.get("FLIP_LATER", -1)):
                run.weights.view(np.uint32).reshape(-1)[3] ^= 1 << 20
            manager.save(run, {"acc": 0.5})
            manager.wait()
    if "ends" in what:
        run.weights.reshape(-1)[0] += 1  # as a callback at the end of training does
        manager.save_final(run)
        open("exported", "w").close()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*what):
    return [sys.executable, "train.py", *what]


def trained(here, *what, **environment):
    python("train.py", *what, cwd=here, environment=environment)
    return names(here / "run")


def names(root):
    return [one.name for one in list_checkpoints(open_storage(root))]


def replayed(capsys, *what, **options):
    code = run_replay("run", command(*what), timeout=60, as_json=True, **options)
    out, said = capsys.readouterr()
    return code, json.loads(out) if out else said


def contents(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_record_names_beside_each_certified_checkpoint_where_it_began(here, capsys):
    """Up to the first that differs, as of hardware that computes wrongly once; the run goes on as before."""
    at = trained(here, FLIP="14")
    before = contents(here / "run")
    code, found = replayed(capsys, begin=at[0], record=True)
    assert (code, found["equal"], found["differing"], found["recorded"]) == (1, at[1:3], at[3], at[1:3])
    assert "weights" in [leaf["name"] for leaf in found["leaves"]]
    assert (found["deterministic"], found["versions"]) == (True, [])
    certificates = {f"checkpoints/{name}/receipts/certified-from-{at[0]}": b"" for name in at[1:3]}
    assert contents(here / "run") == {**before, **certificates}
    assert replayed(capsys, begin=at[1], end=at[2], record=True)[1]["recorded"] == [at[2]]
    assert run_verify("run", None, as_json=True) == 0
    capsys.readouterr()
    assert run_ls("run", as_json=True) == 0
    listed = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [one["certified_from"] for one in listed] == [[], [at[0]], at[:2], []]
    run_ls("run")
    lines = [line for line in capsys.readouterr().out.splitlines() if "a000001-" in line]
    assert [", certified" in line for line in lines] == [False, True, True, False]
    python("train.py", cwd=here)  # a start finds nothing wrong
    assert names(here / "run")[:4] == at


def test_noise_of_the_script_is_told_from_the_hardwares(here, capsys, monkeypatch):
    at = trained(here, "noisy")
    monkeypatch.setattr(replay, "changed", lambda recorded: [("numpy", "1.0", "2.0")])
    code, found = replayed(capsys, "noisy", begin=at[0])
    assert (code, found["differing"], found["deterministic"]) == (1, at[2], False)
    assert found["versions"] == [["numpy", "1.0", "2.0"]]


def test_last_stretch_is_replayed_by_default_whatever_the_script_keeps(here, capsys):
    """Without ``record``, nothing is stored; what was trained stays where it is wanted."""
    at = trained(here)
    (here / "run").rename(here / "real")
    (here / "run").symlink_to(here / "real")
    (here / "train.py").write_text(SCRIPT.replace('else "run"', 'else "real"'))
    _, found = replayed(capsys, "few", keep="kept")
    assert (found["begin"], found["equal"], found["recorded"]) == (at[-2], at[-1:], [])
    assert not list((here / "real").rglob("certified-*"))
    assert (here / "kept" / "run-1" / "checkpoints").is_dir()
    assert replayed(capsys, keep="kept")[0] == 2  # not empty
    _, found = replayed(capsys, "few", begin=at[0], end=at[2])
    assert found["equal"] == at[1:3]


def test_stretch_follows_the_lineage_of_its_end(here):
    """Of a run that was killed and went on, what a later attempt left behind is no part."""
    at = trained(here, "stops")
    python("train.py", cwd=here)
    storage = open_storage("run")
    whole = names("run")
    assert [str(end.name) for end in stretch_of(storage, at[0], "latest").ends] == whole[1:]
    assert [str(end.name) for end in stretch_of(storage, None, at[1]).ends] == at[1:]
    with pytest.raises(CheckpointNotFoundError, match="no committed checkpoint 'a000009"):
        stretch_of(storage, "a000009-c0000000001-m0000", "latest")
    with pytest.raises(CheckpointNotFoundError, match="there is nothing to begin at"):
        stretch_of(storage, None, at[0])
    for file in (here / "run" / "attempts").iterdir():
        file.unlink()
    with pytest.raises(CorruptCheckpointError, match="attempts/"):
        stretch_of(storage, None, whole[-1])


def test_script_that_cannot_be_replayed_is_refused(here, capsys):
    trained(here)
    for what, code, said in (
        ("elsewhere", 2, "the script trains the run at"),
        ("stops", 1, "of 16 micro-steps"),
        ("saves", 2, "where a000001-c0000000008-m0000 was taken"),
    ):
        if what == "saves":  # and is never at that micro-step
            (here / "train.py").write_text(SCRIPT.replace("run.batches % 4", "run.batches % 6"))
        found = replayed(capsys, what)
        assert found[0] == code, what
        assert said in found[1]


@pytest.mark.parametrize("what", [["saves"], ["evaluates", "ends"]])
def test_saves_that_the_script_makes_itself_are_compared_with_their_likes(here, capsys, what):
    """After an evaluation, without steps, or at the end; what the script does afterwards does not run."""
    at = trained(here, *what)
    (here / "exported").unlink(missing_ok=True)
    code, found = replayed(capsys, *what, begin=at[0])
    later = [name for name in at if name.partition("-t")[0] != at[0].partition("-t")[0]]
    assert (code, found["equal"]) == (0, later)
    assert not (here / "exported").exists()


def test_second_checkpoint_of_a_micro_step_is_compared_too(here, capsys):
    at = trained(here, "evaluates", FLIP_LATER="16")
    assert at[-1].endswith("-t02")
    code, found = replayed(capsys, "evaluates")
    assert (code, found["differing"]) == (1, at[-1])
    assert at[-2] in found["equal"]


def test_the_command_line_prints_a_verdict(here):
    """Each checkpoint is a case of JUnit; what comes after the one that differs is not known."""
    at = trained(here, FLIP="7")
    before = contents(here / "run")

    def said(begin, *what, end="latest"):
        options = ["replay", "run", "--from", begin, "--to", end, "--junit", "ci/replay.xml"]
        return CliRunner(env={"COLUMNS": "300"}).invoke(app, [*options, "--", *command(*what)])

    done = said(at[0])
    assert done.exit_code == 1
    assert f"DIFFERS: {at[1]}, and the difference came after {at[0]}" in done.stdout
    assert re.search("what differs: .*weights", done.stdout)
    assert "cause: two replays agree with each other and not with the run" in done.stdout
    assert [case[:2] for case in cases_of("ci/replay.xml")] == [
        (at[1], "failure"),
        (at[2], "skipped"),
        (at[3], "skipped"),
    ]
    done = said(at[1], end=at[2])
    assert done.exit_code == 0
    assert f"equal, bit for bit: {at[2]}\n" in done.stdout
    assert "certified: this stretch, trained again, is that of the run" in done.stdout
    assert [case[:2] for case in cases_of("ci/replay.xml")] == [(at[2], None)]
    assert said(at[0], "crashes").exit_code == 1
    (error,) = read_junit("ci/replay.xml").iter("error")
    assert "out of luck" in error.text
    assert contents(here / "run") == before
    with pytest.raises(WrongUsageError, match="after two dashes"):
        run_replay("run", [])
