"""``ckptkit copy``: what it prints, what it exits with, and that breaking it off loses nothing."""

from __future__ import annotations

import json
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from support.process import forked
from support.runs.scenario import AT_6, Life, committed, corrupt, digest_at, history, name_at, tree

from ckptkit.cli import options as options_module
from ckptkit.cli.commands import copy as copy_module
from ckptkit.cli.commands.copy import run_copy
from ckptkit.cli.errors import WrongUsageError
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage


@pytest.fixture
def source(tmp_path: Path) -> Path:
    history(tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return forked("-m", "ckptkit", "copy", *arguments, expect=None)


def test_copied_run_resumes_from_newest_checkpoint(source, target):
    done = run(source, target)
    assert done.returncode == 0, done.stderr
    assert f"{target}: 2 checkpoints, 2 of them copied now" in done.stdout
    assert f"copied {AT_6} (2 of 2 checkpoints)" in done.stderr
    assert committed(target) == committed(source)
    life = Life(target)
    assert life.restore().checkpoint == AT_6
    assert life.run.digest() == digest_at(6)


def test_json_has_documented_fields_and_recopies_nothing(source, target):
    """The JSON output has the documented fields, and a second run copies nothing."""
    first, second = (json.loads(run(source, target, "--json").stdout) for _ in range(2))
    assert list(first) == [
        "source",
        "target",
        "run_id",
        "checkpoint",
        "copied",
        "present",
        "kept",
        "pruned",
        "corrupt",
        "copied_bytes",
        "found_bytes",
    ]
    assert (first["source"], first["target"]) == (str(source), str(target))
    assert first["copied"] == second["present"] == committed(source)
    assert second["copied"] == []
    assert second["copied_bytes"] == 0 < first["copied_bytes"] == second["found_bytes"]


def test_one_checkpoint_becomes_a_run(source, target):
    done = run(source, target, "--checkpoint", "latest")
    assert done.returncode == 0, done.stderr
    assert f"continues from {AT_6}" in done.stdout
    assert committed(target) == [AT_6]


def test_corrupt_checkpoint_exits_1_and_others_are_copied(source, target):
    corrupt(source, AT_6)
    done = run(source, target, "--json")
    assert done.returncode == 1
    assert list(json.loads(done.stdout)["corrupt"]) == [AT_6]
    assert f"not copied: {AT_6}: checkpoints/{AT_6}/rank-00000/weights-000.safetensors" in done.stderr
    assert committed(target) == [name_at(1, 4)]


def test_foreign_destination_exits_1_and_stays_unchanged(source, target):
    history(target)
    before = tree(target)
    done = run(source, target)
    assert done.returncode == 1
    assert "holds a run that is not a copy" in done.stderr
    assert tree(target) == before


def test_an_empty_source_exits_1_and_creates_nothing(tmp_path, target):
    done = run(tmp_path / "nothing", target)
    assert done.returncode == 1
    assert "no committed checkpoint" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_wrong_usage_exits_2(source, target):
    for arguments in ((), (source,), (source, source), (source, ""), (source, target, "--target-option", "region")):
        done = run(*arguments)
        assert done.returncode == 2, arguments
    assert "NAME=VALUE" in done.stderr
    assert not target.exists()


OPTIONS = {
    "anon=false": False,
    "use_ssl=True": True,
    "max_concurrency=4": 4,
    "retry_for=10": timedelta(seconds=10),
    "request_timeout=1.5m": timedelta(seconds=90),
    "settle=0.5": timedelta(milliseconds=500),
    "answer_within=3s": timedelta(seconds=3),
    "key=0123": "0123",
    "secret=12e4=": "12e4=",
    "token=true": "true",
    "password=1234": "1234",
    "timeout=30": 30,  # of a file system of fsspec, which wants seconds
    "ratio=-0.5": -0.5,
    "blocks=false": False,
    "patience=2h": timedelta(hours=2),
    "account=007": "007",
    "version=1.2.3": "1.2.3",
    "endpoint_url=": "",
}


def test_options_have_the_types_that_storages_want(source, target, monkeypatch):
    told = []

    def open_storage(root, options):
        told.append(options)
        return LocalStorage(root)

    monkeypatch.setattr(options_module, "open_storage", open_storage)
    wanted = {"checkpoint": None, "target_option": ["region=x"], "as_json": True}
    assert run_copy(str(source), str(target), source_option=OPTIONS, **wanted) == 0
    assert told == [{one.partition("=")[0]: value for one, value in OPTIONS.items()}, {"region": "x"}]
    assert [type(value) for value in told[0].values()] == [type(value) for value in OPTIONS.values()]


@pytest.mark.parametrize(
    "option",
    [
        "retry_for=soon",
        "settle=-1",
        f"settle={'9' * 30}",
        "max_concurrency=2.5",
        "anon=perhaps",
        "credentials=mine",
        "client_kwargs={}",
    ],
)
def test_an_option_that_cannot_be_is_named(source, target, option):
    options = {"checkpoint": None, "source_option": [], "target_option": [option], "as_json": False}
    with pytest.raises(WrongUsageError, match=f"--target-option {option.partition('=')[0]}: "):
        run_copy(str(source), "s3://bucket/copy", **options)


def test_storage_type_error_is_wrong_usage(source, monkeypatch):
    options = {"checkpoint": None, "source_option": [], "target_option": ["odd=1"], "as_json": False}

    def open_storage(root, options):
        raise TypeError("odd must be even")

    monkeypatch.setattr(options_module, "open_storage", open_storage)
    with pytest.raises(WrongUsageError, match="odd must be even"):
        run_copy(str(source), "odd://bucket", **options)


def test_a_storage_that_cannot_be_reached_exits_3(source, target, tmp_path):
    done = run("gopher://host/run", target)
    assert done.returncode == 3
    assert "gopher" in done.stderr
    assert "the same command" not in done.stderr
    assert run(source, target, "--source-option", "region=x").returncode == 3
    (tmp_path / "file").write_text("")
    done = run(source, tmp_path / "file")
    assert done.returncode == 3
    assert "the same command copies the rest" in done.stderr


INTERRUPT = """
import signal, sys
from ckptkit.cli import app
from ckptkit.storage import LocalStorage

write, writes = LocalStorage.write, []

def interrupted(self, key, stream, size_bytes):
    writes.append(key)
    if len(writes) == 6:
        signal.raise_signal(signal.SIGINT)
    write(self, key, stream, size_bytes)

LocalStorage.write = interrupted
app(["copy", *sys.argv[1:]])
"""


def test_interrupted_copy_is_completed_by_same_command(source, target):
    """Ctrl-C exits with 130, says what to do, and the same command copies the rest."""
    done = forked("-c", INTERRUPT, source, target, expect=130)
    assert "interrupted" in done.stderr
    assert "the same command copies the rest" in done.stderr
    assert "Traceback" not in done.stderr
    assert committed(target) != committed(source)
    assert run(source, target).returncode == 0
    assert committed(target) == committed(source)


def test_checkpoint_removed_during_copy_is_named(source, target, capsys, monkeypatch):
    life = Life(source)
    life.restore()
    life.saved_at(8)
    going_on = Fault(lambda: life.saved_at(10), operations={"read_into"}, key=f"*/{AT_6}/*")
    storages = {str(source): FaultyStorage(LocalStorage(source), [going_on]), str(target): LocalStorage(target)}
    monkeypatch.setattr(copy_module, "open_root", lambda root, *_, **__: storages[root])
    options = {"checkpoint": None, "source_option": [], "target_option": [], "as_json": False}
    assert run_copy(str(source), str(target), **options) == 0
    told = capsys.readouterr().out.splitlines()
    assert f"skipped, since the source removed it meanwhile: {AT_6}" in told


def test_same_command_updates_copy_in_bucket(source, tmp_path, bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    target = f"s3://{bucket.name}/copy"
    assert run(source, target).returncode == 0
    life = Life(source)
    life.restore()
    newest = life.saved_at(9)
    options = ["anon=false", "max_concurrency=2", "retry_for=10", "request_timeout=5s"]
    done = run(source, target, *(f"--target-option={one}" for one in options))
    assert done.returncode == 0, done.stderr
    back = run(target, tmp_path / "back")
    assert back.returncode == 0, back.stderr
    again = Life(tmp_path / "back")
    assert again.restore().checkpoint == newest
    assert again.run.digest() == digest_at(9)
