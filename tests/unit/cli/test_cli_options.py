"""Every option of every command reaches what it is for, and the exit code comes back."""

from __future__ import annotations

import importlib
import inspect
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner
from unit.tools.interchange.test_interchange import weights

from ckptkit.cli import app, run_root
from ckptkit.cli.commands.export_import import ExportOptions, NameOptions
from ckptkit.cli.commands.show import Wanted
from ckptkit.storage import LocalStorage
from ckptkit.tools.doctor.report import DoctorOptions

__all__ = ["weights"]

GOLDEN = Path(__file__).parents[2] / "exactness/golden/v1/numpy"


def given_to(monkeypatch, module: str, function: str, arguments: list[str]) -> dict[str, object]:
    """What the command gives to the function that carries it out, by the names of the arguments."""
    owner = importlib.import_module(module)
    signature = inspect.signature(getattr(owner, function))
    told: dict[str, object] = {}

    def carry_out(*args, **kwargs):
        told.update(signature.bind(*args, **kwargs).arguments)
        return 7

    monkeypatch.setattr(owner, function, carry_out)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 7, done.output
    told.pop("now", None)
    return told


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("demo", {"root": None, "mode": "graph", "seed": 1}),
        ("demo --root R --mode pynative --seed 7", {"root": "R", "mode": "pynative", "seed": 7}),
        ("ls R", {"root": "R", "options": [], "as_json": False, "show_all": False}),
        ("ls R --all", {"root": "R", "options": [], "as_json": False, "show_all": True}),
        ("ls R --json --option a=1", {"root": "R", "options": ["a=1"], "as_json": True, "show_all": False}),
        ("show R", {"root": "R", "checkpoint": "latest", "options": [], "wanted": Wanted(), "as_json": False}),
        (
            "show R C --tensors --state --rank 0 --json --option a=1",
            {
                "root": "R",
                "checkpoint": "C",
                "options": ["a=1"],
                "wanted": Wanted(rank=0, tensors=True, state=True),
                "as_json": True,
            },
        ),
        (
            "show R --tensor T --histogram --rank 2",
            {
                "root": "R",
                "checkpoint": "latest",
                "options": [],
                "wanted": Wanted(rank=2, tensor="T", histogram=True),
                "as_json": False,
            },
        ),
        ("report R", {"root": "R", "options": [], "output": "report.html", "as_json": False}),
        (
            "report R -o P --json --option a=1",
            {"root": "R", "options": ["a=1"], "output": "P", "as_json": True},
        ),
        (
            "copy A B --checkpoint C --source-option a=1 --target-option b=2 --json",
            {
                "source": "A",
                "target": "B",
                "checkpoint": "C",
                "source_options": ["a=1"],
                "target_options": ["b=2"],
                "as_json": True,
            },
        ),
        ("verify R", {"root": "R", "checkpoint": None, "options": [], "everything": False, "as_json": False}),
        (
            "verify R C --all --json --option a=1",
            {"root": "R", "checkpoint": "C", "options": ["a=1"], "everything": True, "as_json": True},
        ),
        (
            "diff R A",
            {
                "root": "R",
                "a": "A",
                "b": None,
                "options": [],
                "other_root": None,
                "other_options": [],
                "top": 20,
                "exit_code": False,
                "as_json": False,
            },
        ),
        (
            "diff R A B --other-root O --top 0 --exit-code --option a=1 --other-option b=2 --json",
            {
                "root": "R",
                "a": "A",
                "b": "B",
                "options": ["a=1"],
                "other_root": "O",
                "other_options": ["b=2"],
                "top": 0,
                "exit_code": True,
                "as_json": True,
            },
        ),
        (
            "prune R --keep latest:3 --keep every:9 --branches --dry-run --option a=1",
            {
                "root": "R",
                "keep": ["latest:3", "every:9"],
                "options": ["a=1"],
                "branches": True,
                "unfinished": False,
                "dry_run": True,
                "yes": False,
                "as_json": False,
                "ask": None,
            },
        ),
        (
            "prune R --unfinished -y --json",
            {
                "root": "R",
                "keep": [],
                "options": [],
                "branches": False,
                "unfinished": True,
                "dry_run": False,
                "yes": True,
                "as_json": True,
                "ask": None,
            },
        ),
        (
            "doctor -- x --json",
            {
                "command": ["x", "--json"],
                "options": DoctorOptions(),
                "keep": None,
                "as_json": False,
                "junit": None,
            },
        ),
        (
            "doctor --steps 9 --kills 4 --seed 5 --timeout 1.5 --keep K --json -- x",
            {
                "command": ["x"],
                "options": DoctorOptions(9, 4, 5, timedelta(seconds=1.5)),
                "keep": "K",
                "as_json": True,
                "junit": None,
            },
        ),
        (
            "doctor --within 1.5m --own-saves --junit J -- x",
            {
                "command": ["x"],
                "options": DoctorOptions(within=timedelta(seconds=90), own_saves=True),
                "keep": None,
                "as_json": False,
                "junit": Path("J"),
            },
        ),
        (
            "export R -o F --force --option a=1",
            {
                "root": "R",
                "checkpoint": "latest",
                "options": ["a=1"],
                "wanted": ExportOptions("F", False, 0, True, NameOptions(None, [], [])),
                "as_json": False,
            },
        ),
        (
            "export R C -o F --with-optimizer --rank 2 --map M --rename a=b --drop c --json",
            {
                "root": "R",
                "checkpoint": "C",
                "options": [],
                "wanted": ExportOptions("F", True, 2, False, NameOptions("M", ["a=b"], ["c"])),
                "as_json": True,
            },
        ),
        (
            "import F R --map M --rename a=b --drop c --option a=1 --json",
            {
                "file": "F",
                "root": "R",
                "options": ["a=1"],
                "names": NameOptions("M", ["a=b"], ["c"]),
                "as_json": True,
            },
        ),
    ],
)
def test_every_option_reaches_its_command(monkeypatch, arguments, expected):
    name = arguments.partition(" ")[0]
    modules = {"doctor": "ckptkit.cli.commands.doctor", "export": "ckptkit.cli.commands.export_import"}
    modules["import"] = modules["export"]
    module = modules.get(name, f"ckptkit.cli.commands.{name}")
    assert given_to(monkeypatch, module, f"run_{name}", arguments.split()) == expected


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

    monkeypatch.setattr(run_root, "for_a_person", for_a_person)
    monkeypatch.setattr(run_root, "open_storage", lambda root, options: LocalStorage(root))
    done = CliRunner().invoke(app, command.format(run=tmp_path / "run", tmp=tmp_path).split())
    assert done.exit_code == 0, done.output
    assert told == expected


def test_verify_of_one_checkpoint_leaves_the_others(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "run")
    broken, newest = "a000001-c0000000000-m0002", "a000001-c0000000002-m0002"
    next((tmp_path / "run/checkpoints" / broken).glob("rank-00000/*")).write_bytes(b"")

    def verify(*what):
        return CliRunner().invoke(app, ["verify", str(tmp_path / "run"), *what]).exit_code

    assert [verify(newest), verify("latest"), verify(broken), verify("--all"), verify()] == [0, 0, 1, 1, 1]
