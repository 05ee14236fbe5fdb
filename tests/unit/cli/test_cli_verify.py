"""``ckptkit verify``: what it prints and what it exits with."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from support.process import python
from support.runs.scenario import AT_6, AT_8, Life, corrupt, history, name_at, tree

from ckptkit.cli.commands import verify
from ckptkit.cli.commands.verify import ENDS, run_verify
from ckptkit.cli.output import CheckpointBar
from ckptkit.errors import CheckpointNotFoundError
from ckptkit.format.documents import Void, digest_of, encode
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


def test_a_whole_run(root, capsys):
    told = verified(root, capsys)
    size_bytes = sum(len(data) for key, data in tree(root).items() if key.endswith(".safetensors"))
    assert "2 checkpoints: 2 whole" in told.out
    assert f"{size_bytes} B read, {size_bytes // 2} B/s" in told.out
    assert told.out.splitlines()[-1] == f"a start continues from {AT_6}"
    assert sorted(line.split()[1] for line in told.err.splitlines()) == [AT_4, AT_6]


def test_corrupt_newest_reports_start_and_advice(root, capsys):
    """It says what a start would do, and what the user can do."""
    corrupt(root, AT_6)
    told = verified(root, capsys, code=1)
    assert "2 checkpoints: 1 whole, 1 corrupt" in told.out
    assert f"{AT_6} is corrupt:" in told.out
    assert f"checkpoints/{AT_6}/rank-00000/weights-000.safetensors has the digest" in told.out
    assert "(in it: weights)" in told.out
    assert f"a start passes over {AT_6} and continues from {AT_4}" in told.out
    assert "from a copy of the run" in told.out.splitlines()[-1]


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


def test_damage_of_several_checkpoints_is_told_once(root, capsys):
    """What is no checkpoint's own comes first, and each checkpoint refers to it."""
    Life(root).restore()
    (root / "attempts/000002.json").write_bytes(b"{}")
    told = verified(root, capsys, code=1)
    assert "2 checkpoints: 2 whole" in told.out
    assert "attempts/000002.json is not" in told.out
    (root / "attempts/000001.json").write_bytes(b"{}")
    told = verified(root, capsys, code=1)
    lines = told.out.splitlines()
    assert lines[1].startswith("attempts/000001.json is not")
    assert told.out.count(lines[1]) == 2  # the other time as what a start would end with
    for name in (AT_4, AT_6):
        assert lines[lines.index(f"{name} is corrupt:") + 1] == "  attempts/000001.json (see above)"
    (root / "checkpoints").rename(root / "away")  # no checkpoint is there to be corrupt
    assert "a start on this run would end with an error" in verified(root, capsys, code=1).out


def test_uncommitted_and_void_folders_are_named(root, capsys):
    (root / f"checkpoints/{AT_6}/COMMIT").unlink()
    void = root / f"checkpoints/{name_at(1, 9)}"
    void.mkdir()
    (void / "COMMIT").write_bytes(encode(Void(void_by="1" * 32)))
    told = verified(root, capsys)
    assert f"without a COMMIT, so not a checkpoint: {AT_6}\n  a save that is under way" in told.out
    assert f"void, so never a checkpoint: {void.name}\n" in told.out
    assert told.out.splitlines()[-1] == f"a start continues from {AT_4}"
    (root / "run.json").write_bytes(b"{}")
    printed = as_json(root, capsys, code=1)
    assert (printed["uncommitted"], printed["void"]) == ([AT_6], [void.name])
    assert [one["file"] for one in printed["problems"]] == ["run.json"]


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


def as_json(root, capsys, *, code=0, checkpoint=None):
    assert run_verify(str(root), checkpoint, as_json=True) == code
    return json.loads(capsys.readouterr().out)


def sizes(root, name=""):
    """Of its shards, the shared ones included."""
    shards = {key: len(data) for key, data in tree(root).items() if key.endswith(".safetensors")}
    return sum(size for key, size in shards.items() if name in key or key.startswith("frozen/"))


def test_json_has_the_documented_fields(root, capsys):
    before = tree(root)
    corrupt(root, AT_6)
    printed = as_json(root, capsys, code=1)
    fields = "root checkpoints problems uncommitted void start files read_bytes"
    assert list(printed) == fields.split()
    assert printed["start"] == {"checkpoint": AT_4, "passed_over": [AT_6], "problem": None}
    assert [list(one) for one in printed["checkpoints"]] == [["name", "outcome", "size_bytes", "problems"]] * 2
    (problem,) = printed["checkpoints"][1]["problems"]
    assert list(problem) == ["file", "message", "tensors", "expected", "found"]
    assert problem["tensors"] == ["weights"]
    assert problem["file"] == f"checkpoints/{AT_6}/rank-00000/weights-000.safetensors"
    digests = [digest_of(files[problem["file"]]) for files in (before, tree(root))]
    assert [problem["expected"], problem["found"]] == digests
    outcomes = [(one["name"], one["outcome"], one["size_bytes"]) for one in printed["checkpoints"]]
    assert outcomes == [(AT_4, "whole", sizes(root, AT_4)), (AT_6, "corrupt", sizes(root, AT_6))]
    assert printed["files"] == sum(key.endswith(".safetensors") for key in before)
    assert printed["read_bytes"] == sizes(root) + len(before[problem["file"]]), "what is corrupt is read twice"
    printed = as_json(root, capsys, checkpoint=AT_4)
    assert [one["name"] for one in printed["checkpoints"]] == [AT_4]
    assert (printed["start"], printed["problems"], printed["read_bytes"]) == (None, [], sizes(root, AT_4))


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


def test_verify_program_only_reads_bucket(root, bucket, monkeypatch):
    """It needs no MindSpore."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    life = Life(root)
    life.restore()
    life.saved_at(8)
    for key, data in tree(root).items():
        bucket.client.put_object(Bucket=bucket.name, Key=f"run/{key}", Body=data)
    code = (
        "import sys; from ckptkit.cli import app\ntry: app(sys.argv[1:])\n"
        "finally: print([one for one in ('mindspore', 'numpy.testing') if one in sys.modules])"
    )
    done = python("-c", code, "verify", f"s3://{bucket.name}/run")
    assert f"a start continues from {name_at(2, 8)}" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
    listed = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix="")["Contents"]
    assert {one["Key"] for one in listed} == {f"run/{key}" for key in tree(root)}
