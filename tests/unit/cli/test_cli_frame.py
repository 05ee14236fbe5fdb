"""What every command has in common: exit codes, messages, ``--debug``, help, completion, and that readers only read."""

import functools
import json
import signal
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
from support.junit import read_junit
from support.process import python
from support.runs.scenario import AT_6, history, name_at
from typer.testing import CliRunner

from ckptkit import errors
from ckptkit.cli import app
from ckptkit.cli.errors import CommandGroup, WrongUsageError
from ckptkit.cli.examination import Case, prepare, scratch_lives, write_junit
from ckptkit.cli.options import for_a_person
from ckptkit.errors import StorageError
from ckptkit.storage.s3.options import S3Options

RAISED = {
    "storage": (errors.StorageError, 3),
    "corrupt": (errors.CorruptCheckpointError, 1),
    "usage": (WrongUsageError, 2),
    "file": (PermissionError, 3),
}
SAID = "weights-000:x: [red]is gone[/red]\x1b[2J"
SHOWN = "weights-000:x: [red]is gone[/red]\\x1b[2J\n"  # no markup, emoji or command of the terminal is obeyed

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


@pytest.fixture
def kept(root) -> Path:
    history(root)
    return root


def test_error_is_one_message_with_exit_code():
    for kind, (_, exit_code) in RAISED.items():
        done = run("fail", kind, app=small)
        assert (done.exit_code, done.stderr, done.stdout) == (exit_code, SHOWN, ""), kind
    for kind in ("interrupt", "no answer"):
        done = run("fail", kind, app=small)
        assert (done.exit_code, done.stdout, done.stderr) == (130, "", ""), kind
    assert isinstance(run("fail", "no such kind", app=small).exception, KeyError), "a mistake in ckptkit itself"


def test_debug_shows_traceback_and_keeps_exit_code():
    for where in (("--debug", "fail", "storage"), ("fail", "--debug", "storage"), ("fail", "storage")):
        done = run(*where, app=small, CKPTKIT_DEBUG="" if "--debug" in where else "1")
        assert done.exit_code == 3, where
        assert "Traceback" in done.stderr, where
        assert done.stderr.endswith(f"\n{SHOWN}"), where
    done = run("wrap", "--", "train.py", "--debug", app=small)
    assert json.loads(done.stdout) == ["train.py", "--debug"]


def test_stdout_that_is_closed_or_read_by_nobody_is_no_error(kept):
    for arguments in (("ls",), ("show", "--json")):  # a table and a document
        command = [sys.executable, "-m", "ckptkit", *arguments, str(kept)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            process.stdout.close()
            assert process.stderr.read() == "", arguments
            assert process.wait(timeout=60) == 141, arguments
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "ckptkit", "ls", str(kept)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_command_help_shows_its_example():
    assert run("--version").stdout.startswith("ckptkit 0.")
    for argument in ("-h", "--help"):
        assert "Exit codes: 0 fine, 1 a problem was found, 2 wrong usage, 3" in run(argument).stdout
    for name in typer.main.get_command(app).commands:
        done = run(name, "--help")
        assert done.exit_code == 0, name
        below = done.stdout.partition("Example")[2]
        examples = [line.split() for line in below.splitlines() if line.strip().startswith("ckptkit ")]
        assert {example[1] for example in examples} == {name}


def test_wrong_usage_exits_2(kept):
    for arguments in (
        (),
        ("lz", kept),
        ("ls", kept, "--option", "region"),
        ("show", kept, "--rank", "1"),
        ("copy", kept, kept),
    ):
        done = run(*arguments)
        assert done.exit_code == 2, arguments
        assert "Traceback" not in done.output, arguments
        assert done.output, arguments
    assert "Did you mean 'show'" in run("shwo", kept).output


def test_completion_knows_the_checkpoints_of_a_local_root(kept, tmp_path):
    (kept / "checkpoints" / name_at(1, 9)).mkdir()  # not committed
    both = [AT_6, name_at(1, 4)]
    for line, offered in {
        f"show {kept} ": both,
        f"show {kept.as_uri()} ": both,
        f"show {kept} {AT_6[:-2]}": both,
        f"show {kept} {AT_6}": [AT_6],
        f"copy {kept} {tmp_path}/copy --checkpoint ": both,
        "copy --checkpoint ": [],
        "show s3://bucket/run ": [],
        "sho": ["show"],
    }.items():
        words = f"ckptkit {line}"
        asked = {"_CKPTKIT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = CliRunner(env=asked).invoke(app, [], prog_name="ckptkit")
        assert (done.stdout.split(), done.stderr) == (offered, ""), line


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


def test_readers_leave_a_local_root_as_it_is(kept):
    def snapshot() -> dict[str, tuple[int, int, bytes]]:
        paths = {path: path.stat() for path in (kept, *kept.rglob("*"))}
        return {
            str(path): (stat.st_mtime_ns, stat.st_ino, path.read_bytes() if path.is_file() else b"")
            for path, stat in paths.items()
        }

    before = snapshot()
    for name, *rest in READING:
        assert run(name, kept, *rest).exit_code == 0, name
    assert snapshot() == before


def test_json_names_roots_as_they_are(kept, monkeypatch):
    """Whatever was typed: absolute, so that another program finds them."""
    monkeypatch.chdir(kept.parent)
    kept.rename("run")
    save_file({"w": np.zeros(1)}, "weights.safetensors")
    for command, named in {
        "ls run/": {"root": "run"},
        "verify ./run": {"root": "run"},
        "prune run/ --keep latest:1 --dry-run": {"root": "run"},
        "export run/ -o run.safetensors": {"root": "run"},
        "diff run/ latest": {"a.root": "run", "b.root": "run"},
        "copy run/ ./copied": {"source": "run", "target": "copied"},
        "import weights.safetensors ./new": {"root": "new"},
    }.items():
        document = json.loads(run(*command.split(), "--json").stdout)
        roots = {name: functools.reduce(dict.__getitem__, name.split("."), document) for name in named}
        assert roots == {name: str(kept.parent / folder) for name, folder in named.items()}, command


def test_readers_leave_a_bucket_as_it_is(kept, bucket):
    keys = {"endpoint_url": bucket.endpoint, "key": "testing", "secret": "testing"}
    options = [f"--option={name}={value}" for name, value in keys.items()]
    target = [f"--target-option={name}={value}" for name, value in keys.items()]
    assert run("copy", kept, f"s3://{bucket.name}/run", *target).exit_code == 0

    def objects() -> dict[str, tuple[bytes, object]]:
        pages = bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]
        return {page["Key"]: (bucket.get(page["Key"]), page["LastModified"]) for page in pages}

    before = objects()
    for number, (name, *rest) in enumerate(READING):
        there = run(name, f"{('s3', 'obs')[number % 2]}://{bucket.name}/run", *rest, *options)
        assert there.exit_code == 0, there.stderr
        if "--json" in rest:
            here = json.loads(run(name, kept, *rest).stdout)
            assert {**json.loads(there.stdout), "root": str(kept)} == here, name
    assert objects() == before
    assert bucket.uploads() == []


def test_silent_endpoint_is_abandoned_within_seconds():
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        options = (
            f"--option=endpoint_url={endpoint}",
            "--option=anon=true",
            "--option=answer_within=1",
            "--option=request_timeout=1s",
        )
        begun = time.monotonic()
        done = run("ls", "s3://bucket/run", *options)
        took = time.monotonic() - begun
    assert done.exit_code == 3
    assert endpoint in done.stderr
    assert took < 16  # some seconds of silence; the rest is a busy machine


def test_commands_import_no_mindspore(kept, tmp_path):
    """Nor pandas, which plotly would take where it is there; nor, where the root is local, what only buckets need."""
    save_file({"w": np.zeros(1)}, tmp_path / "weights.safetensors")
    lines = [
        *(f"{name} {kept}" for name in ("ls", "show --tensors --state", "verify", "goodput", "report --json")),
        f"show {kept} --tensor weights",
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
        "print([name for name in ('mindspore', 'pandas', 'botocore', 'fsspec') if name in sys.modules])"
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


def test_only_the_first_answer_has_to_come_soon():
    patience, usual = (S3Options.of(given, "s3").patience for given in (for_a_person("s3://bucket/run", {}), {}))
    assert patience.first <= timedelta(seconds=6)
    assert (patience.request, patience.retrying) == (usual.request, usual.retrying)
    given = {"retry_for": timedelta(hours=1), "config_kwargs": {"connect_timeout": 60}}
    options = for_a_person("obs://bucket/run", given)
    assert options == {**given, "config_kwargs": {"connect_timeout": 60, "read_timeout": 9}}
    assert S3Options.of(options, "obs").patience.first == timedelta(hours=1)
    assert "read_timeout" not in for_a_person("s3://bucket/run", {}, writes=True)["config_kwargs"]
    slow = for_a_person("s3://bucket/run", {"request_timeout": timedelta(seconds=60)})
    assert slow["config_kwargs"] == {"connect_timeout": 5}
    assert (for_a_person("memory://run", {"a": 1}), for_a_person("runs/x", {})) == ({"a": 1}, {})


CASES = [
    Case("uninterrupted", 2.5),
    Case("killed", 1.25, "failure", "random-operator: net.drop", "cause: it draws\nfix: do not"),
    Case("examination", 0.0, "error", "no data"),
    Case("later", 0.0, "skipped", "an earlier one differs"),
]


def test_file_counts_cases_and_holds_why_they_failed(tmp_path):
    write_junit(tmp_path / "out.xml", "ckptkit doctor", CASES)
    written = read_junit(tmp_path / "out.xml")
    expected = {"tests": "4", "failures": "1", "errors": "1", "skipped": "1", "time": "3.750"}
    assert (written.tag, written.attrib) == ("testsuites", expected)
    (suite,) = written
    assert (suite.tag, suite.attrib) == ("testsuite", {"name": "ckptkit doctor", **expected})
    assert [path.name for path in tmp_path.iterdir()] == ["out.xml"]
    assert (tmp_path / "out.xml").read_text().startswith("<?xml version='1.0' encoding='utf-8'?>")
    assert [case.attrib for case in suite] == [
        {"classname": "ckptkit.doctor", "name": case.name, "time": f"{case.seconds:.3f}"} for case in CASES
    ]
    assert [[child.tag for child in case] for case in suite] == [[], ["failure"], ["error"], ["skipped"]]
    failure, error, skipped = (case[0] for case in suite[1:])
    assert failure.attrib == {"message": "random-operator: net.drop", "type": "random-operator"}
    assert failure.text == "cause: it draws\nfix: do not"
    assert (error.attrib["message"], error.text) == ("no data", "no data")
    assert (skipped.attrib, skipped.text) == ({"message": "an earlier one differs"}, None)
    # Whatever a script prints: colours go, and so do control characters; a name that is not UTF-8 is escaped.
    text = "\x1b[31mred\x1b[0m <&> \x00\x08\ufffe\ud800 \u4e2d\U0001f600\ttab\nline"
    write_junit(tmp_path / "out.xml", "s", [Case("n\x07", 0.0, "error", text, text)])
    (error,) = read_junit(tmp_path / "out.xml").iter("error")
    assert error.text == "red <&> \\ud800 \u4e2d\U0001f600\ttab\nline"


def test_examination_takes_only_signals_that_are_heard():
    """Under nohup, SIGHUP is ignored; afterwards all is as before."""

    def asked_to_end():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.raise_signal(signal.SIGTERM)

    before, term = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit, match="143"), scratch_lives(None, "ckptkit-") as (folder, _):
            asked_to_end()
        assert not folder.exists()
        assert signal.getsignal(signal.SIGTERM) is term
    finally:
        signal.signal(signal.SIGHUP, before)


def test_earlier_result_is_removed_before_the_work(tmp_path):
    """A command that is killed leaves none, rather than that of another day."""
    path = tmp_path / "results/deep/out.xml"
    prepare(path, "--junit")
    for old in ("<?xml version='1.0'?>", "<testsuites/>"):
        path.write_text(old)
        prepare(path, "--junit")
        assert not path.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        prepare(tmp_path / "file/out.xml", "--junit")
    with pytest.raises(StorageError, match=r"done, but .*/away/out\.xml could not be written: No such file or dir"):
        write_junit(tmp_path / "away/out.xml", "ckptkit doctor", CASES)  # its folder went meanwhile
    for text in ("import mindspore\n", "", "<html>"):  # two words in the wrong order must not cost a script
        (tmp_path / "train.py").write_text(text)
        with pytest.raises(WrongUsageError, match="is no earlier result"):
            prepare(tmp_path / "train.py", "--junit")
        assert (tmp_path / "train.py").read_text() == text
    with pytest.raises(WrongUsageError, match="results is a folder; name a file in it"):  # before hours of lives
        prepare(tmp_path / "results", "--card")
