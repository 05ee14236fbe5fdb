"""Options reach what they are for."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
from datetime import timedelta
from pathlib import Path

from typer.testing import CliRunner
from unit.tools.interchange.test_interchange import weights

from ckptkit.cli import app
from ckptkit.cli import options as options_module
from ckptkit.cli.errors import WrongUsageError, in_options
from ckptkit.storage import LocalStorage
from ckptkit.storage.s3.options import OBS_ENDPOINTS, OBS_SECRETS
from ckptkit.tools.doctor.result import DoctorOptions

__all__ = ["weights"]

GOLDEN = Path(__file__).parents[2] / "exactness/golden/v1/numpy"


def given_to(monkeypatch, module: str, function: str, arguments: str) -> dict[str, object]:
    """What a command gives to the function that carries it out, by the names of the arguments."""
    owner = importlib.import_module(f"ckptkit.cli.commands.{module}")
    signature = inspect.signature(getattr(owner, function))
    told: dict[str, object] = {}

    def carry_out(*args, **kwargs):
        told.update(signature.bind(*args, **kwargs).arguments)
        raise WrongUsageError

    monkeypatch.setattr(owner, function, carry_out)
    done = CliRunner().invoke(app, arguments.split())
    assert done.exit_code == 2, done.output
    return told


OF_SHOW = ("show", "document_of")


OF_DOCTOR = ("doctor", "DoctorExamination")


OF_EXPORT = ("export_import", "export_weights")


GIVEN = {
    "show R": (OF_SHOW, {"rank": None, "lists_tensors": False, "tensor": None, "with_state": False}),
    "show R --tensors --state --rank 0": (OF_SHOW, {"rank": 0, "lists_tensors": True, "with_state": True}),
    "show R --tensor T --rank 2": (OF_SHOW, {"rank": 2, "tensor": "T"}),
    "doctor -- x --json": (OF_DOCTOR, {"command": ["x", "--json"], "options": DoctorOptions()}),
    "doctor --steps 9 --kills 4 --seed 5 --timeout 1.5 --json -- x": (
        OF_DOCTOR,
        {"command": ["x"], "options": DoctorOptions(9, 4, 5, timedelta(seconds=1.5))},
    ),
    "doctor --within 1.5m --own-saves -- x": (
        OF_DOCTOR,
        {"options": DoctorOptions(within=timedelta(seconds=90), own_saves=True)},
    ),
    "export R -o F --force": (OF_EXPORT, {"with_optimizer": False, "rank": 0, "overwrite": True}),
    "export R C -o F --with-optimizer --rank 2": (
        OF_EXPORT,
        {"checkpoint": "C", "with_optimizer": True, "rank": 2, "overwrite": False},
    ),
}


def test_what_was_typed_reaches_the_function(monkeypatch):
    for arguments, (where, expected) in GIVEN.items():
        with monkeypatch.context() as patch:
            given = given_to(patch, *where, arguments)
        assert {name: given[name] for name in expected} == expected, arguments


def test_roots_get_their_own_options_and_patience(tmp_path, monkeypatch, weights):
    """A command that writes waits longer for its storage than one that reads."""
    for name in ("run", "other"):
        shutil.copytree(GOLDEN, tmp_path / name)
    told = []

    def for_a_person(root, options, *, writes):
        told.append((root.rpartition("/")[2], options["region"], writes))
        return {}

    monkeypatch.setattr(options_module, "for_a_person", for_a_person)
    monkeypatch.setattr(options_module, "open_storage", lambda root, options: LocalStorage(root))
    read = [("run", "x", False)]
    for command, expected in {
        "ls {run} --option region=x": read,
        "show {run} --option region=x": read,
        "report {run} --json --option region=x": read,
        "verify {run} --option region=x": read,
        "diff {run} latest --option region=x": read,
        "diff {run} latest --option region=x --other-root {tmp}/other --other-option region=y": [
            *read,
            ("other", "y", False),
        ],
        "prune {run} --keep latest:9 --dry-run --option region=x": read,
        "prune {run} --keep latest:9 --yes --option region=x": [("run", "x", True)],
        "copy {run} {tmp}/new --source-option region=x --target-option region=y": [*read, ("new", "y", True)],
        "export {run} -o {tmp}/x.ckpt --option region=x": read,
        "import {tmp}/weights.safetensors {tmp}/begun --option region=x": [("begun", "x", True)],
    }.items():
        told.clear()
        done = CliRunner().invoke(app, command.format(run=tmp_path / "run", tmp=tmp_path).split())
        assert done.exit_code == 0, done.output
        assert told == expected, command


def test_verify_of_one_checkpoint_leaves_the_others(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "run")
    broken, newest = "a000001-c0000000000-m0002", "a000001-c0000000002-m0002"
    next((tmp_path / "run/checkpoints" / broken).glob("rank-00000/*")).write_bytes(b"")

    def verify(*what):
        return CliRunner().invoke(app, ["verify", str(tmp_path / "run"), *what]).exit_code

    assert [verify(newest), verify("latest"), verify(broken), verify()] == [0, 0, 1, 1]


# What a wrong command line prints, which a script would get in terms of its arguments.
SPOKEN = {
    "ls s3://bucket/run --option endpoint=x": "s3:// takes no --option endpoint; it takes key, secret",
    "ls s3://bucket/run --option key=x": "--option has only one of key and secret; give both, or neither",
    "ls s3://key:word@bucket/run": "must not contain keys: give key and secret in --option",
    "ls obs://bucket/run": "set OBS_ENDPOINT, or give --option endpoint_url=...",
    "ls obs://bucket/run --option endpoint_url=http://localhost": "or give key and secret in --option",
    "ls https://bucket.obs.cn-north-4.myhuaweicloud.com/run": (
        "write obs://bucket/run --option endpoint_url=https://obs.cn-north-4.myhuaweicloud.com"
    ),
    "ls RUN --option key=x": "a local run root, which takes no --option, got ['key']",
    "copy RUN obs://bucket/run": "or give --target-option endpoint_url=...",
    "copy obs://bucket/run OUT": "or give --source-option endpoint_url=...",
    "diff RUN latest --other-root obs://bucket/run": "or give --other-option endpoint_url=...",
    "show RUN 99": "there is no committed checkpoint '99'; there are: ",
    "verify RUN a000009": "Give the name or the step of one, or latest",
    "copy RUN OUT --checkpoint best": "Write best:METRIC:max or best:METRIC:min",
    "export RUN 99 -o OUT.ckpt": "there is no committed checkpoint '99'",
    "export RUN -o RUN/there.ckpt": "exists; name another file, or replace it with --force",
    "prune RUN --keep latest:0 --dry-run": "--keep latest:0: '0' is no number above 0; give latest:N,",
    "prune RUN --keep best:two:loss:min --dry-run": "'two' is no number above 0",
}
_ARGUMENT = re.compile(
    r"storage_options|\b(checkpoint|overwrite|rewind|keep|credentials|root)=|CheckpointCallback|KeepLatest"
)


def test_messages_speak_of_options_and_not_of_arguments(tmp_path, monkeypatch):
    for name in (*OBS_ENDPOINTS, *OBS_SECRETS, "OBS_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID", "ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    run = shutil.copytree(GOLDEN, tmp_path / "run")
    (run / "there.ckpt").touch()
    for line, said in SPOKEN.items():
        done = CliRunner().invoke(app, line.replace("RUN", str(run)).replace("OUT", str(tmp_path / "out")).split())
        assert done.exit_code in (1, 2, 3), done.output
        assert said in done.stderr
        assert not _ARGUMENT.search(done.stderr)
        assert len(done.stderr.splitlines()) <= 4


def test_missing_keys_are_asked_for_as_options():
    message = 'Set them: export AWS_ACCESS_KEY_ID=...; or give storage_options={"key": ..., "secret": ...}'
    assert in_options(message).endswith("; or give --option key=... --option secret=...")
    assert in_options("has expired: get a new one, or give credentials= a function") == "has expired: get a new one"
