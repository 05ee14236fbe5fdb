"""``ckptkit copy``: what it prints, what it exits with, and that breaking it off loses nothing."""

from __future__ import annotations

import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from support.process import forked
from support.runs.scenario import AT_6, Life, committed, corrupt, digest_at, history, name_at

from ckptkit.cli import options as options_module
from ckptkit.cli.commands.copy import run_copy
from ckptkit.cli.errors import WrongUsageError
from ckptkit.storage import LocalStorage


@pytest.fixture
def source(tmp_path: Path) -> Path:
    history(tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return forked("-m", "ckptkit", "copy", *arguments, expect=None)


def test_corrupt_checkpoint_exits_1_and_others_are_copied(source, target):
    corrupt(source, AT_6)
    done = run(source, target)
    assert done.returncode == 1
    assert f"{target}: 1 checkpoints, 1 of them copied now" in done.stdout
    assert f"copied {name_at(1, 4)} (1 of 2 checkpoints)" in done.stderr
    assert f"not copied: {AT_6}: checkpoints/{AT_6}/rank-00000/weights-000.safetensors" in done.stderr
    assert committed(target) == [name_at(1, 4)]


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
    given = []

    def open_storage(root, options):
        given.append(options)
        return LocalStorage(root)

    monkeypatch.setattr(options_module, "open_storage", open_storage)
    assert run_copy(str(source), str(target), source_option=[*OPTIONS], target_option=["region=x"]) == 0
    assert given == [{option.partition("=")[0]: value for option, value in OPTIONS.items()}, {"region": "x"}]
    assert [type(value) for value in given[0].values()] == [type(value) for value in OPTIONS.values()]


def test_an_option_that_cannot_be_is_named(source, target, monkeypatch):
    def refusal_of(option):
        with pytest.raises(WrongUsageError) as refused:
            run_copy(str(source), "s3://bucket/copy", target_option=[option])
        return str(refused.value)

    options = "retry_for=soon settle=-1 max_concurrency=2.5 anon=perhaps credentials=mine client_kwargs={}"
    for option in (*options.split(), f"settle={'9' * 30}"):
        assert f"--target-option {option.partition('=')[0]}: " in refusal_of(option), option

    def open_storage(root, options):
        raise TypeError("odd must be even")

    monkeypatch.setattr(options_module, "open_storage", open_storage)
    assert "odd must be even" in refusal_of("odd=1")


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
    done = forked("-c", INTERRUPT, source, target, expect=130)
    assert "Ctrl-C came before the copy had ended" in done.stderr
    assert "the same command copies the rest" in done.stderr
    assert "Traceback" not in done.stderr
    assert committed(target) != committed(source)
    assert run(source, target).returncode == 0
    assert committed(target) == committed(source)


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
    done = run(source, target, *(f"--target-option={option}" for option in options))
    assert done.returncode == 0, done.stderr
    back = run(target, tmp_path / "back")
    assert back.returncode == 0, back.stderr
    copied = Life(tmp_path / "back")
    assert copied.restore().checkpoint == newest
    assert copied.run.digest() == digest_at(9)
