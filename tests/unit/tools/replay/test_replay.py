"""A stretch of a run that is trained again is certified, or what differs is named with its cause."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone

import pytest
from support.junit import cases_of, read_junit
from support.process import python

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


def replayed(capsys, *what, begin=None, end="latest", keep=None, record=False):
    code = run_replay(
        "run",
        command(*what),
        begin=begin,
        end=end,
        keep=keep,
        timeout=60,
        as_json=True,
        record=record,
    )
    out, said = capsys.readouterr()
    return code, json.loads(out) if out else said


def test_every_checkpoint_is_a_case_of_junit(here, capsys):
    """What comes after the one that differs is not known."""
    at = trained(here, FLIP="7")
    junit = here / "ci/replay.xml"
    chosen = {"end": "latest", "keep": None, "timeout": 60, "as_json": True, "junit": junit}
    outcomes = []
    for begin in at[:2]:
        code = run_replay("run", command(), begin=begin, **chosen)
        outcomes.append((code, [(name, outcome) for name, outcome, _ in cases_of(junit)]))
    assert outcomes == [
        (1, [(at[1], "failure"), (at[2], "skipped"), (at[3], "skipped")]),
        (0, [(at[2], None), (at[3], None)]),
    ]
    assert run_replay("run", command("crashes"), begin=at[0], **chosen) == 1
    (error,) = read_junit(junit).iter("error")
    assert "out of luck" in error.text


def test_sound_stretch_is_certified_and_the_run_is_untouched(here, capsys):
    at = trained(here)
    before = {path: path.stat().st_mtime_ns for path in (here / "run").rglob("*")}
    code, found = replayed(capsys, begin=at[0])
    assert code == 0
    assert found["equal"] == at[1:]
    assert found["differing"] is None
    assert {path: path.stat().st_mtime_ns for path in (here / "run").rglob("*")} == before


@pytest.mark.parametrize("flip", [5, 9, 12, 14])
def test_flipped_bit_is_in_the_first_checkpoint_after_it(here, capsys, flip):
    """As of hardware that computes wrongly once: two replays agree, with the versions of the run."""
    at = trained(here, FLIP=str(flip))
    code, found = replayed(capsys, begin=at[0])
    first = next(one for one, step in zip(at, (4, 8, 12, 16), strict=True) if step >= flip)
    assert code == 1
    assert found["differing"] == first
    assert found["equal"] == at[1 : at.index(first)]
    assert "weights" in [one["name"] for one in found["leaves"]]
    assert (found["deterministic"], found["versions"]) == (True, [])


def contents(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_record_names_beside_each_certified_checkpoint_where_it_began(here, capsys):
    """Up to the first that differs; nothing else in the run changes, and it goes on as before."""
    at = trained(here, FLIP="14")
    before = contents(here / "run")
    _, found = replayed(capsys, begin=at[0], record=True)
    assert found["recorded"] == at[1:3]
    certificates = {f"checkpoints/{one}/receipts/certified-from-{at[0]}": b"" for one in at[1:3]}
    assert contents(here / "run") == {**before, **certificates}
    assert replayed(capsys, begin=at[1], end=at[2], record=True)[1]["recorded"] == [at[2]]
    assert run_verify("run", None, as_json=True) == 0
    capsys.readouterr()
    assert run_ls("run", now=datetime.now(timezone.utc), as_json=True) == 0
    listed = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [one["certified_from"] for one in listed] == [[], [at[0]], at[:2], []]
    run_ls("run", now=datetime.now(timezone.utc))
    assert [", certified" in line for line in capsys.readouterr().out.splitlines() if "a000001-" in line] == [
        *(False, True, True, False)
    ]
    python("train.py", cwd=here)  # a start finds nothing wrong
    assert names(here / "run")[:4] == at


def test_without_record_nothing_is_said_of_it(here, capsys):
    trained(here)
    assert replayed(capsys)[1]["recorded"] == []
    assert not list((here / "run").rglob("certified-*"))


def test_noise_of_the_script_is_told_from_the_hardwares(here, capsys):
    at = trained(here, "noisy")
    code, found = replayed(capsys, "noisy", begin=at[0])
    assert (code, found["differing"], found["deterministic"]) == (1, at[2], False)


def test_other_versions_are_named(here, capsys, monkeypatch):
    trained(here, FLIP="14")
    monkeypatch.setattr(replay, "changed", lambda recorded: [("numpy", "1.0", "2.0")])
    code, found = replayed(capsys)
    assert (code, found["versions"]) == (1, [["numpy", "1.0", "2.0"]])


def test_last_stretch_is_replayed_by_default_whatever_the_script_keeps(here, capsys):
    at = trained(here)
    _, found = replayed(capsys, "few")
    assert (found["begin"], found["equal"]) == (at[-2], at[-1:])
    _, found = replayed(capsys, "few", begin=at[0], end=at[2])
    assert found["equal"] == at[1:3]


def test_stretch_follows_the_lineage_of_its_end(here):
    """Of a run that was killed and went on, what a later attempt left behind is no part."""
    at = trained(here, "stops")
    python("train.py", cwd=here)
    storage = open_storage("run")
    whole = names("run")
    stretch = stretch_of(storage, at[0], "latest")
    assert [str(one.name) for one in stretch.ends] == whole[1:]
    assert [str(one.name) for one in stretch_of(storage, None, at[1]).ends] == at[1:]
    with pytest.raises(CheckpointNotFoundError, match="did not begin at a000009"):
        stretch_of(storage, "a000009-c0000000001-m0000", "latest")
    with pytest.raises(CheckpointNotFoundError, match="there is nothing to begin at"):
        stretch_of(storage, None, at[0])


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("elsewhere", 2, "the script trains the run at"),
        ("crashes", 1, "out of luck"),
        ("stops", 1, "of 16 micro-steps"),
    ],
)
def test_script_that_cannot_be_replayed_is_refused(here, capsys, what, code, said):
    trained(here)
    found = replayed(capsys, what)
    assert found[0] == code
    assert said in found[1]


@pytest.mark.parametrize("what", [["evaluates"], ["saves"], ["ends"], ["evaluates", "ends"]])
def test_saves_that_the_script_makes_itself_are_compared_with_their_likes(here, capsys, what):
    """After an evaluation, without steps, or at the end; what the script does afterwards does not run."""
    at = trained(here, *what)
    (here / "exported").unlink(missing_ok=True)
    code, found = replayed(capsys, *what, begin=at[0])
    later = [one for one in at if one.partition("-t")[0] != at[0].partition("-t")[0]]
    assert (code, found["equal"]) == (0, later)
    assert not (here / "exported").exists()


def test_second_checkpoint_of_a_micro_step_is_compared_too(here, capsys):
    at = trained(here, "evaluates", FLIP_LATER="16")
    assert at[-1].endswith("-t02")
    code, found = replayed(capsys, "evaluates")
    assert (code, found["differing"]) == (1, at[-1])
    assert at[-2] in found["equal"]


def test_script_that_is_never_at_that_micro_step_cannot_be_replayed(here, capsys):
    trained(here)
    (here / "train.py").write_text(SCRIPT.replace("run.batches % 4", "run.batches % 6"))
    code, said = replayed(capsys, "saves")
    assert code == 2
    assert "where a000001-c0000000008-m0000 was taken" in said


def test_run_without_its_attempt_is_corrupt(here, capsys):
    at = trained(here)
    for one in (here / "run" / "attempts").iterdir():
        one.unlink()
    with pytest.raises(CorruptCheckpointError, match="attempts/"):
        replayed(capsys, end=at[-1])


def test_root_may_be_reached_by_a_link(here, capsys):
    at = trained(here)
    (here / "run").rename(here / "real")
    (here / "run").symlink_to(here / "real")
    (here / "train.py").write_text(SCRIPT.replace('else "run"', 'else "real"'))
    assert replayed(capsys)[1]["equal"] == at[-1:]


def test_what_was_trained_stays_where_it_is_wanted(here, capsys):
    trained(here)
    assert replayed(capsys, keep="kept")[0] == 0
    assert (here / "kept" / "run-1" / "checkpoints").is_dir()
    assert replayed(capsys, keep="kept")[0] == 2  # not empty


def test_the_command_line_prints_a_verdict(here):
    at = trained(here, FLIP="14")
    own = ["--", *command()]
    done = python("-m", "ckptkit", "replay", "run", "--to", at[2], *own, cwd=here)
    assert "certified: this stretch, trained again, is that of the run" in done.stdout
    done = python("-m", "ckptkit", "replay", "run", *own, cwd=here, expect=1)
    assert f"DIFFERS: {at[3]}, and the difference came after {at[2]}" in done.stdout
    assert "cause: two replays agree with each other and not with the run" in done.stdout
    with pytest.raises(WrongUsageError, match="after two dashes"):
        run_replay("run", [], begin=None, end="latest", keep=None, timeout=1, as_json=True)
