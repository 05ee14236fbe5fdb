"""What every command has in common: exit codes, messages, ``--debug``, help, completion, and that readers only read."""

from __future__ import annotations

import functools
import json
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import typer
from safetensors.numpy import save_file
from support.process import python
from support.runs.scenario import AT_6, corrupt, history, name_at
from typer.testing import CliRunner

from ckptkit import errors
from ckptkit.cli import app
from ckptkit.cli.errors import CommandGroup, WrongUsageError
from ckptkit.cli.options import open_root
from ckptkit.storage.s3.options import S3Options
from ckptkit.storage.url import for_a_person

RAISED = {
    "storage": (errors.StorageError, 3),
    "corrupt": (errors.CorruptCheckpointError, 1),
    "unusable": (errors.UnusableCheckpointError, 1),
    "missing": (errors.CheckpointNotFoundError, 1),
    "newer": (errors.FormatVersionError, 1),
    "mismatch": (errors.StateMismatchError, 1),
    "resume": (errors.ResumeError, 1),
    "stale": (errors.StaleAttemptError, 1),
    "save": (errors.SaveFailedError, 1),
    "usage": (WrongUsageError, 2),
    "file": (PermissionError, 3),
}
SAID = "weights-000 [red]is gone[/red]\x1b[2J"
SHOWN = "weights-000 [red]is gone[/red]\\x1b[2J\n"  # neither markup nor the terminal's commands are obeyed

small = typer.Typer(cls=CommandGroup, pretty_exceptions_enable=False)


@small.callback()
def main(*, debug: Annotated[bool, typer.Option("--debug", envvar="CKPTKIT_DEBUG")] = False) -> None:
    pass


@small.command()
def fail(kind: str) -> None:
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "no answer":
        raise typer.Abort
    raise RAISED[kind][0](SAID)


@small.command()
def wrap(command: list[str]) -> None:
    print(json.dumps(command))


def run(*arguments: str | Path, app: typer.Typer = app, **environment: str):
    return CliRunner(env={"COLUMNS": "100", **environment}).invoke(app, [*map(str, arguments)])


def program(*arguments: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return python("-m", "ckptkit", *arguments, expect=None, **options)


@pytest.fixture
def kept(root) -> Path:
    history(root)
    return root


@pytest.mark.parametrize("kind", RAISED)
def test_error_is_one_message_with_exit_code(kind):
    done = run("fail", kind, app=small)
    assert (done.exit_code, done.stderr, done.stdout) == (
        RAISED[kind][1],
        "weights-000 [red]is gone[/red]\\x1b[2J\n",
        "",
    )


@pytest.mark.parametrize("where", [("--debug", "fail", "storage"), ("fail", "--debug", "storage"), ("fail", "storage")])
def test_debug_shows_traceback_and_keeps_exit_code(where):
    done = run(*where, app=small, CKPTKIT_DEBUG="" if "--debug" in where else "1")
    assert done.exit_code == 3
    assert "Traceback" in done.stderr
    assert done.stderr.endswith(f"\n{SHOWN}")


def test_debug_after_dashes_belongs_to_wrapped_command():
    done = run("wrap", "--", "train.py", "--debug", app=small)
    assert json.loads(done.stdout) == ["train.py", "--debug"]


def test_a_mistake_in_ckptkit_itself_keeps_its_traceback():
    done = run("fail", "no such kind", app=small)
    assert isinstance(done.exception, KeyError)


@pytest.mark.parametrize("kind", ["interrupt", "no answer"])
def test_ctrl_c_ends_quietly_with_130(kind):
    done = run("fail", kind, app=small)
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("arguments", [("ls",), ("show", "--json")])
def test_a_reader_that_is_gone_is_no_error(kept, arguments):
    command = [sys.executable, "-m", "ckptkit", *arguments, str(kept)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 141


def test_a_stdout_that_is_closed_is_no_error(kept):
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "ckptkit", "ls", str(kept)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_version_and_help():
    assert run("--version").stdout.startswith("ckptkit 0.")
    for arguments in (("-h",), ("--help",)):
        done = run(*arguments)
        assert done.exit_code == 0
        assert "Exit codes: 0 fine, 1 a problem was found, 2 wrong usage, 3" in done.stdout
    assert run().exit_code == 2


@pytest.mark.parametrize("name", typer.main.get_command(app).commands)
def test_command_help_shows_its_example(name):
    done = run(name, "--help")
    assert done.exit_code == 0
    _, heading, below = done.stdout.partition("Example")
    assert heading
    examples = [line.strip() for line in below.splitlines() if line.strip().startswith("ckptkit ")]
    assert examples
    assert all(one.split()[1] == name for one in examples)


def test_without_arguments_a_command_shows_its_help():
    for name in ("ls", "show", "copy", "doctor"):
        done = run(name)
        assert done.exit_code == 2, name
        assert f"ckptkit {name}" in done.output


def test_wrong_usage_exits_2(kept):
    for arguments in (
        ("lz", kept),
        ("ls", kept, "--al"),
        ("ls", ""),
        ("ls", kept, "--option", "region"),
        ("show", kept, AT_6, "more"),
        ("show", kept, "--rank", "1"),
        ("show", kept, "--rank", "-1"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2, arguments
        assert "Traceback" not in done.output
    assert "Did you mean 'show'" in run("shwo", kept).output


def test_missing_target_exits_1_listing_alternatives(kept, tmp_path):
    for name in ("a000009-c0000000001-m0001", "newest"):
        done = run("show", kept, name)
        assert done.exit_code == 1
        assert f"{name_at(1, 4)}, {AT_6}" in done.stderr
    done = run("show", tmp_path / "nothing")
    assert done.exit_code == 1
    assert "no committed checkpoint" in done.stderr
    assert not (tmp_path / "nothing").exists()


def test_corrupt_checkpoint_exits_1_naming_file(kept):
    corrupt(kept, AT_6)
    assert run("show", kept).exit_code == 0  # the bytes of tensors are verify's
    done = run("show", kept, "--tensor", "weights")
    assert done.exit_code == 1
    assert f"checkpoints/{AT_6}/rank-00000/weights-000.safetensors" in done.stderr
    corrupt(kept, AT_6, "rank-00000.json")
    done = run("show", kept)
    assert done.exit_code == 1
    assert f"checkpoints/{AT_6}/rank-00000.json" in done.stderr
    assert done.stdout == ""


def test_completion_knows_the_checkpoints_of_a_local_root(kept, tmp_path):
    (kept / "checkpoints" / name_at(1, 9)).mkdir()  # not committed

    def complete(line: str) -> list[str]:
        words = line.split(" ")
        asked = {"_CKPTKIT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        done = CliRunner(env=asked).invoke(app, [], prog_name="ckptkit")
        assert done.stderr == ""
        return done.stdout.split()

    assert complete(f"ckptkit show {kept} ") == [AT_6, name_at(1, 4)]
    assert complete(f"ckptkit show {kept.as_uri()} ") == [AT_6, name_at(1, 4)]
    assert complete(f"ckptkit show {kept} {AT_6[:-2]}") == [AT_6, name_at(1, 4)]
    assert complete(f"ckptkit show {kept} {AT_6}") == [AT_6]
    assert complete(f"ckptkit copy {kept} {tmp_path}/copy --checkpoint ") == [AT_6, name_at(1, 4)]
    assert complete(f"ckptkit copy {kept} {tmp_path}/copy --checkpoint={AT_6}") == [AT_6]
    assert complete("ckptkit copy --checkpoint ") == []
    assert complete(f"ckptkit show {tmp_path}/nothing ") == []
    assert complete("ckptkit show s3://bucket/run ") == []
    assert complete("ckptkit sho") == ["show"]


READING = [
    ("ls",),
    ("ls", "--json", "--all"),
    ("show",),
    ("show", "--tensors", "--state"),
    ("show", "--tensor", "weights"),
    ("show", name_at(1, 4), "--json"),
    ("prune", "--keep", "latest:1", "--branches", "--dry-run"),
    ("verify",),
    ("diff", name_at(1, 4), "latest"),
]


def times(root: Path) -> dict[str, tuple[int, int]]:
    """When each file and folder was changed; files' own inodes change with anything that is put in their place."""
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in (root, *root.rglob("*"))}


def test_readers_leave_a_local_root_as_it_is(kept):
    before = times(kept), {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    for name, *rest in READING:
        assert run(name, kept, *rest).exit_code == 0
    assert (times(kept), {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}) == before


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("ls run/", ("root",)),
        ("show run", ("root",)),
        ("verify ./run", ("root",)),
        ("prune run/ --keep latest:1 --dry-run", ("root",)),
        ("report run/", ("root",)),
        ("export run/ -o run.safetensors", ("root",)),
        ("diff run/ latest", ("a.root", "b.root")),
        ("copy run/ ./copied", ("source", "target")),
        ("import weights.safetensors ./new", ("root",)),
    ],
)
def test_json_names_roots_as_they_are(kept, monkeypatch, command, names):
    """Whatever was typed: absolute, so that another program finds them."""
    monkeypatch.chdir(kept.parent)
    kept.rename("run")
    save_file({"w": np.zeros(1)}, "weights.safetensors")
    document = json.loads(run(*command.split(), "--json").stdout)
    roots = [functools.reduce(dict.__getitem__, name.split("."), document) for name in names]
    copied, new = kept.parent / "copied", kept.parent / "new"
    expected = {"copy": [kept.parent / "run", copied], "import": [new]}.get(command.split()[0])
    assert roots == [*map(str, expected or [kept.parent / "run"] * len(names))]


@pytest.mark.parametrize(("scheme", "commands"), [("s3", READING), ("obs", READING[1::3])])
def test_readers_leave_a_bucket_as_it_is(kept, bucket, scheme, commands):
    keys = {"endpoint_url": bucket.endpoint, "key": "testing", "secret": "testing"}
    options = [f"--option={name}={value}" for name, value in keys.items()]
    target = [f"--target-option={name}={value}" for name, value in keys.items()]
    url = f"{scheme}://{bucket.name}/run"
    assert run("copy", kept, url, *target).exit_code == 0

    def objects() -> dict[str, tuple[bytes, object]]:
        pages = bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]
        return {one["Key"]: (bucket.get(one["Key"]), one["LastModified"]) for one in pages}

    before = objects()
    for name, *rest in commands:
        there, here = run(name, url, *rest, *options), run(name, kept, *rest)
        assert there.exit_code == 0, there.stderr
        assert all(line.startswith("whole ") for line in there.stderr.splitlines())  # of verify, without a terminal
        if "--json" in rest:
            assert {**json.loads(there.stdout), "root": str(kept)} == json.loads(here.stdout)
    assert objects() == before
    assert bucket.uploads() == []


def test_local_root_imports_no_unneeded_modules(kept):
    code = (
        "import sys; from ckptkit.cli import app\ntry: app(sys.argv[1:])\n"
        "finally: print([one for one in ('mindspore', 'botocore', 'fsspec') if one in sys.modules])"
    )
    for arguments in (("ls",), ("show", "--tensors", "--tensor", "weights", "--state")):
        command = [sys.executable, "-c", code, *arguments, str(kept)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.splitlines()[-1] == "[]"


def test_commands_import_no_mindspore(kept, tmp_path):
    """Nor pandas, which plotly would take where it is there."""
    save_file({"w": np.zeros(1)}, tmp_path / "weights.safetensors")
    lines = [
        *(f"{name} {kept}" for name in ("ls", "show --tensors --state", "verify", "goodput", "report --json")),
        f"diff {kept} {AT_6} latest",
        f"prune {kept} --keep latest:2 --dry-run",
        f"copy {kept} {tmp_path}/copy",
        f"report {kept} -o {tmp_path}/page.html",
        *(f"export {kept} -o {tmp_path}/out.{end}" for end in ("ckpt", "safetensors")),
        f"import {tmp_path}/weights.safetensors {tmp_path}/new",
    ]
    code = (
        "import sys; from typer.testing import CliRunner; from ckptkit.cli import app\n"
        "for line in sys.argv[1:]:\n    done = CliRunner().invoke(app, line.split())\n"
        "    assert done.exit_code == 0, done.output\n"
        "print([name for name in ('mindspore', 'pandas') if name in sys.modules])"
    )
    assert python("-c", code, *lines).stdout == "[]\n"


def test_list_of_commands_loads_none_of_them():
    code = (
        "import sys; from ckptkit.cli import app\ntry: app(['--help'])\n"
        "finally: print([name for name in sys.modules if name.startswith(('ckptkit.cli.commands', 'numpy'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "List the newest committed checkpoints" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_silent_endpoint_is_abandoned_within_seconds():
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        begun = time.monotonic()
        options = (f"--option=endpoint_url={endpoint}", "--option=anon=true", "--option=answer_within=1")
        done = program("ls", "s3://bucket/run", *options)
        took = time.monotonic() - begun
    assert done.returncode == 3
    assert endpoint in done.stderr
    assert "Traceback" not in done.stderr
    assert took < 16  # some seconds of silence; the rest is a busy machine


def test_an_endpoint_that_is_not_there_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
    options = ["--option=anon=true", "--option=answer_within=0.5", f"--option=endpoint_url={endpoint}"]
    for name in ("ls", "show"):
        done = run(name, "s3://bucket/run", *options)
        assert done.exit_code == 3
        assert endpoint in done.stderr


def test_only_the_first_answer_has_to_come_soon():
    patience = S3Options.of(for_a_person("s3://bucket/run", {}), "s3").patience
    usual = S3Options.of({}, "s3").patience
    assert patience.first <= timedelta(seconds=6)
    assert (patience.request, patience.retrying) == (usual.request, usual.retrying)


def test_what_the_user_says_of_patience_counts():
    given = {"retry_for": timedelta(hours=1), "config_kwargs": {"connect_timeout": 60}}
    options = for_a_person("obs://bucket/run", given)
    assert options == {**given, "config_kwargs": {"connect_timeout": 60, "read_timeout": 9}}
    assert S3Options.of(options, "obs").patience.first == timedelta(hours=1)
    assert "read_timeout" not in for_a_person("s3://bucket/run", {}, writes=True)["config_kwargs"]
    assert for_a_person("s3://bucket/run", {"request_timeout": timedelta(seconds=60)})["config_kwargs"] == {
        "connect_timeout": 5
    }
    assert for_a_person("memory://run", {"a": 1}) == {"a": 1}
    assert for_a_person("runs/x", {}) == {}


def test_a_root_is_opened_without_sending_anything(kept):
    assert open_root(str(kept)).url == str(kept)
    assert open_root("s3://bucket/run", ["endpoint_url=http://127.0.0.1:1"]).is_remote
    with pytest.raises(WrongUsageError, match="empty"):
        open_root("")
