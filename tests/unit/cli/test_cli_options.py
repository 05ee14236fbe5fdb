"""Options reach what they are for."""

from __future__ import annotations

import importlib
import inspect
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner
from unit.tools.interchange.test_interchange import weights

from ckptkit.cli import app
from ckptkit.cli import options as options_module
from ckptkit.cli.errors import WrongUsageError
from ckptkit.storage import LocalStorage
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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("show R", (None, False, None, False)),
        ("show R --tensors --state --rank 0", (0, True, None, True)),
        ("show R --tensor T --rank 2", (2, False, "T", False)),
    ],
)
def test_show_reads_what_is_asked_for(monkeypatch, arguments, expected):
    given = given_to(monkeypatch, "show", "document_of", arguments)
    names = ("rank", "lists_tensors", "tensor", "with_state")
    assert tuple(given[name] for name in names) == expected


@pytest.mark.parametrize(
    ("arguments", "command", "options"),
    [
        ("doctor -- x --json", ["x", "--json"], DoctorOptions()),
        (
            "doctor --steps 9 --kills 4 --seed 5 --timeout 1.5 --json -- x",
            ["x"],
            DoctorOptions(9, 4, 5, timedelta(seconds=1.5)),
        ),
        ("doctor --within 1.5m --own-saves -- x", ["x"], DoctorOptions(within=timedelta(seconds=90), own_saves=True)),
    ],
)
def test_doctor_examines_as_asked(monkeypatch, arguments, command, options):
    given = given_to(monkeypatch, "doctor", "DoctorExamination", arguments)
    assert (given["command"], given["options"]) == (command, options)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-o F --force", {"with_optimizer": False, "rank": 0, "overwrite": True}),
        ("C -o F --with-optimizer --rank 2", {"checkpoint": "C", "with_optimizer": True, "rank": 2}),
    ],
)
def test_export_writes_what_is_asked_for(monkeypatch, tmp_path, arguments, expected):
    given = given_to(monkeypatch, "export_import", "export_weights", f"export {tmp_path} {arguments}")
    assert given.items() >= expected.items()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ls {run} --option region=x", [("run", "x", False)]),
        ("show {run} --option region=x", [("run", "x", False)]),
        ("report {run} --json --option region=x", [("run", "x", False)]),
        ("verify {run} --option region=x", [("run", "x", False)]),
        ("diff {run} latest --option region=x", [("run", "x", False)]),
        (
            "diff {run} latest --option region=x --other-root {tmp}/other --other-option region=y",
            [("run", "x", False), ("other", "y", False)],
        ),
        ("prune {run} --keep latest:9 --dry-run --option region=x", [("run", "x", False)]),
        ("prune {run} --keep latest:9 --yes --option region=x", [("run", "x", True)]),
        (
            "copy {run} {tmp}/new --source-option region=x --target-option region=y",
            [("run", "x", False), ("new", "y", True)],
        ),
        ("export {run} -o {tmp}/x.ckpt --option region=x", [("run", "x", False)]),
        ("import {tmp}/weights.safetensors {tmp}/new --option region=x", [("new", "x", True)]),
    ],
)
def test_roots_get_their_own_options_and_patience(tmp_path, monkeypatch, weights, command, expected):
    """A command that writes waits longer for its storage than one that reads."""
    for name in ("run", "other"):
        shutil.copytree(GOLDEN, tmp_path / name)
    told = []

    def for_a_person(root, options, *, writes):
        told.append((root.rpartition("/")[2], options["region"], writes))
        return {}

    monkeypatch.setattr(options_module, "for_a_person", for_a_person)
    monkeypatch.setattr(options_module, "open_storage", lambda root, options: LocalStorage(root))
    done = CliRunner().invoke(app, command.format(run=tmp_path / "run", tmp=tmp_path).split())
    assert done.exit_code == 0, done.output
    assert told == expected


def test_verify_of_one_checkpoint_leaves_the_others(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "run")
    broken, newest = "a000001-c0000000000-m0002", "a000001-c0000000002-m0002"
    next((tmp_path / "run/checkpoints" / broken).glob("rank-00000/*")).write_bytes(b"")

    def verify(*what):
        return CliRunner().invoke(app, ["verify", str(tmp_path / "run"), *what]).exit_code

    assert [verify(newest), verify("latest"), verify(broken), verify()] == [0, 0, 1, 1]
