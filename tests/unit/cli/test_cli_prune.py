"""``ckptkit prune``: what it prints, what it asks, and what it exits with."""

import io
import json
import sys

import pytest
from support.runs.scenario import Life, committed, name_at, tree
from typer.testing import CliRunner

from ckptkit.checkpoint.receipts import post_certificate
from ckptkit.cli import app
from ckptkit.cli.commands.prune import asker, parse_keep, run_prune
from ckptkit.cli.errors import WrongUsageError
from ckptkit.errors import CheckpointNotFoundError, StorageError
from ckptkit.format.layout import CheckpointName
from ckptkit.run.keep_policy import KeepBest, KeepCertified, KeepEvery, KeepLatest
from ckptkit.storage import LocalStorage

NAMES = [name_at(1, batches) for batches in (2, 4, 6, 8)]


@pytest.fixture
def root(tmp_path):
    life = Life(tmp_path / "run", keep=KeepLatest(100))
    life.restore()
    for batches in (2, 4, 6, 8):
        life.saved_at(batches)
    assert committed(tmp_path / "run") == NAMES
    return tmp_path / "run"


def pruned(root, *keep, code=0, as_json=False, **options):
    assert run_prune(str(root), keep=list(keep), as_json=as_json, **options) == code


def test_policies_as_they_are_typed():
    assert {text: parse_keep(text) for text in POLICIES} == POLICIES
    wrong = "latest latest: latest:0 latest:x every:-1 best:2:accuracy best:2:max last:3 best:x:a:max"
    for text in ("", *wrong.split()):
        with pytest.raises(WrongUsageError) as refused:
            parse_keep(text)
        assert "latest:N, every:OPTIMIZER_STEPS, best:N:METRIC:max|min or certified:N" in str(refused.value), text


POLICIES = {
    "latest:3": KeepLatest(3),
    "every:1000": KeepEvery(optimizer_steps=1000),
    "best:2:accuracy:max": KeepBest(2, "accuracy", "max"),
    "best:1:top:5:min": KeepBest(1, "top:5", "min"),
    "certified:2": KeepCertified(2),
}


def test_it_asks_and_no_means_no(root, capsys, monkeypatch):
    asked = []

    def ask(question):
        asked.append(question)
        return len(asked) > 1

    monkeypatch.setattr("ckptkit.cli.commands.prune.asker", lambda: ask)
    pruned(root, "latest:2")
    assert "nothing was removed" in capsys.readouterr().out
    assert committed(root) == NAMES
    pruned(root, "latest:2")
    assert "2 checkpoints removed" in capsys.readouterr().out
    assert committed(root) == NAMES[2:]
    pruned(root, "latest:2")
    assert [question.startswith("Remove 2 checkpoints for good, ") for question in asked] == [True, True]


def test_question_is_asked_on_stderr_defaulting_no(capsys, monkeypatch):
    for answer, meant in (("y", True), ("n", False), ("", False)):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.StringIO(f"{answer}\n"))
            for stream in (sys.stdin, sys.stderr):
                assert asker() is None
                patch.setattr(stream, "isatty", lambda: True)
            assert asker()("Remove it?") is meant, answer
        told = capsys.readouterr()
        assert (told.out.strip(), told.err) == ("", "Remove it? [y/N]:")


def test_wrong_usage_removes_nothing(root, monkeypatch):
    """A typing error in a metric would remove the best ones; where none was saved yet, there is none to lose."""
    life = Life(root, keep=KeepLatest(100))
    life.restore()
    life.manager.save(life.run, metrics={"accuracy": 0.5}).result()
    before = tree(root)
    for keep, options, answer, words in (
        ((), {"yes": True}, None, "give --keep"),
        (("latest:2",), {}, None, "--yes removes without a question"),
        (("latest:2",), {"as_json": True}, True, "--yes removes without a question"),
    ):
        ask = None if answer is None else lambda question: True
        monkeypatch.setattr("ckptkit.cli.commands.prune.asker", lambda ask=ask: ask)
        with pytest.raises(WrongUsageError, match=words):
            pruned(root, *keep, **options)
    with pytest.raises(CheckpointNotFoundError, match=r"nothing was removed: .* 'acuracy'; there are: accuracy$"):
        pruned(root, "best:1:acuracy:max", yes=True)
    assert tree(root) == before


def test_branches_certified_and_unfinished_are_kept_as_asked(root, capsys):
    life = Life(root, keep=KeepLatest(100))
    life.restore(NAMES[0])
    newest = life.saved_at(3)
    pruned(root, "latest:9", yes=True)
    assert committed(root) == [*NAMES, newest]
    pruned(root, branches=True, yes=True)
    assert "3 checkpoints removed" in capsys.readouterr().out
    assert committed(root) == [NAMES[0], newest]
    newer = [life.saved_at(at) for at in (5, 7)]
    post_certificate(LocalStorage(root), CheckpointName.parse(NAMES[0]), CheckpointName(1, 0, 1))
    pruned(root, "certified:1", yes=True)
    assert committed(root) == [NAMES[0], *newer]
    under_way = root / f"checkpoints/{name_at(2, 9)}/rank-00000.json"
    under_way.parent.mkdir()
    under_way.write_text("{}")
    pruned(root, "latest:9", yes=True)
    assert under_way.exists()  # a job may be writing it
    capsys.readouterr()
    pruned(root, unfinished=True, yes=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["emptied"] == [name_at(2, 9)]
    assert not under_way.parent.exists()  # nor is there a void marker, which a full disk has no room for
    assert committed(root) == [NAMES[0], *newer]


def test_interrupted_prune_is_completed_by_same_command(root, monkeypatch, capsys):
    delete = LocalStorage.delete

    def failing(error, self, keys):
        if not keys[0].endswith("/COMMIT"):
            raise error
        delete(self, keys)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "delete", lambda *given: failing(KeyboardInterrupt, *given))
        with pytest.raises(KeyboardInterrupt):
            pruned(root, "latest:2", yes=True)
        assert "the same command removes the rest" in capsys.readouterr().err
        assert committed(root) == NAMES[2:]
        patch.setattr(LocalStorage, "delete", lambda *given: failing(StorageError("busy"), *given))
        pruned(root, "latest:2", code=1, yes=True)
        assert f"could not be removed, as the log says: {NAMES[0]}, {NAMES[1]}" in capsys.readouterr().err
    pruned(root, "latest:2", yes=True)
    told = capsys.readouterr().out
    assert f"remains of folders that never were, or no longer are, checkpoints: {NAMES[0]}, {NAMES[1]}" in told
    left = [key for key in tree(root) if NAMES[0] in key or NAMES[1] in key]
    assert left == [f"checkpoints/{name}/COMMIT" for name in NAMES[:2]]  # void


def test_copy_and_prune_work_on_a_bucket(root, bucket, tmp_path):
    url, keys = f"s3://{bucket.name}/run", (f"endpoint_url={bucket.endpoint}", "key=testing", "secret=testing")
    there = [f"--option={option}" for option in keys]

    def code_of(*arguments):
        return CliRunner().invoke(app, [*map(str, arguments)]).exit_code

    assert code_of("copy", root, url, *(f"--target-option={option}" for option in keys)) == 0
    for sure, code, left in (((), 2, NAMES), (("--yes",), 0, NAMES[2:])):  # there is no terminal
        assert code_of("prune", url, "--keep=latest:2", *sure, *there) == code
        back = tmp_path / f"back{code}"
        assert code_of("copy", url, back, *(f"--source-option={option}" for option in keys)) == 0
        assert committed(back) == left
