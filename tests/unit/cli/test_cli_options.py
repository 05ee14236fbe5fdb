"""Options reach what they are for."""

import importlib
import inspect
import json
import re
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.clock import Manual
from support.heartbeats import life_of, record_of
from typer.testing import CliRunner
from unit.tools.interchange.test_interchange import weights

from ckptkit.cli import app
from ckptkit.cli import options as options_module
from ckptkit.cli.commands import run as run_module
from ckptkit.cli.commands.copy import run_copy
from ckptkit.cli.commands.run import RunMetrics
from ckptkit.cli.errors import WrongUsageError
from ckptkit.manager.heartbeat import Phase
from ckptkit.scrubber import learn
from ckptkit.storage import LocalStorage
from ckptkit.storage.s3.options import OBS_ENDPOINTS, OBS_SECRETS
from ckptkit.tools.doctor.result import DoctorOptions
from ckptkit.tools.supervisor.diagnosis import RestartBudget, diagnose
from ckptkit.tools.supervisor.life_log import LifeLog

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


OF_SHOW, OF_DOCTOR = ("show", "document_of"), ("doctor", "DoctorExamination")
OF_EXPORT, OF_REPLAY = ("export_import", "export_weights"), ("replay", "open_root")
GIVEN = {
    "show R": (OF_SHOW, {"rank": None, "lists_tensors": False, "tensor": None, "with_state": False}),
    "show R --tensors --state --rank 0": (OF_SHOW, {"rank": 0, "lists_tensors": True, "with_state": True}),
    "doctor -- x --json": (OF_DOCTOR, {"command": ["x", "--json"], "options": DoctorOptions()}),
    "doctor --steps 9 --kills 4 --seed 5 --timeout 1.5 --json -- x": (
        OF_DOCTOR,
        {"command": ["x"], "options": DoctorOptions(9, 4, 5, timedelta(seconds=1.5))},
    ),
    "doctor --within 1.5m --own-saves -- x": (
        OF_DOCTOR,
        {"options": DoctorOptions(within=timedelta(seconds=90), own_saves=True)},
    ),
    "replay R --option region=x -- x": (OF_REPLAY, {"root": "R", "typed": ["region=x"]}),
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
        "verify {run} --option region=x": read,
        "goodput {run} --option region=x": read,
        "report {run} --json --option region=x": read,
        "report {run} --prometheus {tmp}/x.prom --option region=x": read,
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
    told.clear()
    said = []
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "Terminal", lambda: SimpleNamespace(say=said.append, pass_on=said.append))
        given = given_to(patch, "run", "Supervisor", "run --option region=x -- train")
    given["open_root"](str(tmp_path / "run"))
    assert told == [("run", "x", True)]
    learn("hunter2-secret")
    given["job"].say("no answer with hunter2-secret\x1b[2J")
    assert len(said) == 1
    assert "hunter2" not in said[0]
    assert said[0].isprintable()


OPTIONS = {
    "anon=false": False,
    "max_concurrency=4": 4,
    "retry_for=10": timedelta(seconds=10),
    "request_timeout=1.5m": timedelta(seconds=90),
    "key=0123": "0123",
    "token=true": "true",
    "timeout=30": 30,  # of a file system of fsspec, which wants seconds
    "ratio=-0.5": -0.5,
    "patience=2h": timedelta(hours=2),
    "account=007": "007",
    "endpoint_url=": "",
}


def test_options_have_the_types_that_storages_want(tmp_path, monkeypatch):
    given = []

    def open_storage(root, options):
        given.append(options)
        return LocalStorage(root)

    monkeypatch.setattr(options_module, "open_storage", open_storage)
    options = {"source_option": [*OPTIONS], "target_option": ["region=x"]}
    assert run_copy(str(GOLDEN), str(tmp_path / "copy"), **options) == 0
    assert given == [{option.partition("=")[0]: value for option, value in OPTIONS.items()}, {"region": "x"}]
    assert [type(value) for value in given[0].values()] == [type(value) for value in OPTIONS.values()]


def test_an_option_that_cannot_be_is_named(monkeypatch):
    options = "retry_for=soon settle=-1 max_concurrency=2.5 anon=perhaps credentials=mine client_kwargs={}"
    for option in (*options.split(), f"settle={'9' * 30}"):
        with pytest.raises(WrongUsageError, match=f"--target-option {option.partition('=')[0]}: "):
            run_copy(str(GOLDEN), "s3://bucket/copy", target_option=[option])

    def open_storage(root, options):
        raise TypeError("odd must be even")

    monkeypatch.setattr(options_module, "open_storage", open_storage)
    with pytest.raises(WrongUsageError, match="odd must be even"):
        run_copy(str(GOLDEN), "s3://bucket/copy", target_option=["odd=1"])


# What a wrong command line prints, which a script would get in terms of its arguments.
SPOKEN = {
    "ls s3://bucket/run --option endpoint=x": "s3:// takes no --option endpoint; it takes key, secret",
    "ls s3://key:word@bucket/run": "must not contain keys: give key and secret in --option",
    "ls obs://bucket/run": "set OBS_ENDPOINT, or give --option endpoint_url=...",
    "ls obs://bucket/run --option endpoint_url=http://localhost": "or give key and secret in --option",
    "ls RUN --option key=x": "a local run root, which takes no --option, got ['key']",
    "copy obs://bucket/run OUT": "or give --source-option endpoint_url=...",
    "diff RUN latest --other-root obs://bucket/run": "or give --other-option endpoint_url=...",
    "show RUN 99": "there is no committed checkpoint '99'; there are: ",
    "verify RUN a000009": "Give the name or the step of one, or latest",
    "copy RUN OUT --checkpoint best": "Write best:METRIC:max or best:METRIC:min",
    "export RUN -o RUN/there.ckpt": "exists; name another file, or replace it with --force",
    "prune RUN --keep latest:0 --dry-run": "--keep latest:0: '0' is no number above 0; give latest:N,",
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


def ended(cause_code):
    life = life_of(record_of(Phase.TRAINING, micro_step=7), returncode=cause_code)
    return LifeLog("0" * 32, pytest.fail, print).enter(life, RestartBudget(9).judge(life, diagnose(life)), 2.5)


def read(path, number="micro_step"):
    if path.suffix == ".json":
        values = json.loads(path.read_text())
        steps = {(rank["rank"], rank["phase"]): rank[number] for rank in values["ranks"]}
        return values["lives"], values["seconds"], steps
    families = {family.name: family.samples for family in text_string_to_metric_families(path.read_text())}
    lives = {sample.labels["cause"]: sample.value for sample in families["ckptkit_lives"]}
    seconds = {sample.labels["phase"]: sample.value for sample in families["ckptkit_seconds"]}
    steps = {
        (int(sample.labels["rank"]), sample.labels["phase"]): sample.value for sample in families[f"ckptkit_{number}"]
    }
    return lives, seconds, steps


@pytest.mark.parametrize("name", ["run.prom", "run.json"])
def test_ranks_and_lives_are_written(tmp_path, name):
    clock, path = Manual(), tmp_path / name
    metrics = RunMetrics(path, monotonic=clock, say=pytest.fail)
    ranks = [record_of(Phase.TRAINING, entered_at=-10.0, rank=at, ranks=2, micro_step=40 + at) for at in (0, 1)]
    metrics.update(ranks)
    lives, seconds, steps = read(path)
    assert (lives, seconds, steps) == ({}, {"training": 10.0}, {(0, "training"): 40, (1, "training"): 41})
    ranks[0].micro_step, ranks[0].restored_step = 50, 30
    metrics.update(ranks)
    assert read(path)[2][0, "training"] == 40  # not yet
    clock.now += 5
    metrics.update(ranks)
    assert read(path)[2][0, "training"] == 50
    assert read(path, "committed_step")[2][0, "training"] == 30  # this life has committed nothing yet
    event = ended(-9)
    metrics.end_life(event)
    lives, seconds, steps = read(path)
    assert (lives, steps, seconds["down"]) == ({"killed": 1}, {}, 2.5)
    metrics.end_life(event)
    assert read(path)[0] == {"killed": 2}
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_what_it_needs_is_said_before_the_first_life(tmp_path, monkeypatch):
    """And once, that the file cannot be written."""
    said = []
    metrics = RunMetrics(tmp_path / "missing" / "run.json", monotonic=Manual(), say=said.append)
    metrics.end_life(ended(-9))
    metrics.end_life(ended(-9))
    assert ["could not write the metrics" in message for message in said] == [True]
    with pytest.raises(WrongUsageError, match=r"\.prom \(Prometheus\) or \.json"):
        RunMetrics(tmp_path / "run.txt", monotonic=Manual(), say=print)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(WrongUsageError, match=r"pip install 'mindspore-ckptkit\[prometheus\]'"):
        RunMetrics(tmp_path / "run.prom", monotonic=Manual(), say=print)
