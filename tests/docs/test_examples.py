"""The examples run, resume after a SIGKILL to the same bits, and say so when they are complete."""

import json
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from support.process import Ended, run_python
from support.servers.fixtures import Bucket

from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.read import load
from ckptkit.run.index import Index
from ckptkit.storage import open_storage

EXAMPLES = Path(__file__).parents[2] / "examples"
ENGLISH, CHINESE = EXAMPLES / "README.md", EXAMPLES / "README.zh-CN.md"

# Steps and kills of `ckptkit doctor`: over the end of an epoch, each death in the middle of a cycle.
EXAMINED = {
    "mindcv_digits.py": (14, 1),
    "language_model.py": (20, 1),
    "lora_digits.py": (14, 2),
}
TRAINED_TO_THE_END = {"own_loop.py", "fit_digits.py", "lora_digits.py", "train_on_s3.py", "modelarts_obs.py"}
BY_RANKS = {"train_ranks.py", "msrun.sh", "slurm.sh"}  # tests/multirank/msrun/test_recipes.py

# Runs an example in a process that dies right after the n-th return of a method.
KILLED = """
import importlib, os, runpy, signal, sys

module, owner, name, times, *sys.argv = sys.argv[1:]
owner = getattr(importlib.import_module(module), owner)
method = getattr(owner, name)
done = 0

def call_then_die(*arguments):
    global done
    found = method(*arguments)
    done += 1
    if done == int(times):
        os.kill(os.getpid(), signal.SIGKILL)
    return found

setattr(owner, name, call_then_die)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
A_SAVE = ("ckptkit.run.saver", "Saver", "save")
AN_UPLOAD = ("ckptkit.run.upload", "Uploader", "upload")


def trained(script: str, folder: Path, *arguments: str) -> str:
    """What it said on its way to the end."""
    done = run(str(EXAMPLES / script), *arguments, folder=folder).expect(0)
    return done.stdout + done.stderr


def killed(after: tuple[str, str, str], times: int, script: str, folder: Path, *arguments: str) -> None:
    program = folder.with_name(f"{folder.name}-killed.py")
    program.write_text(KILLED)
    done = run(str(program), *after, str(times), str(EXAMPLES / script), *arguments, folder=folder)
    done.expect(-signal.SIGKILL)


def run(*arguments: str, folder: Path) -> Ended:
    return run_python(*arguments, folder=folder, timeout=500)


def contents(root: str) -> dict[str, bytes]:
    """Every tensor of the newest checkpoint, and what else it holds, but how the first start began: when and where."""
    storage = open_storage(root)
    index = Index(storage)
    name = [one for one in index.names if index.is_committed(one)][-1]
    loaded = load(storage, open_checkpoint(storage, name, index.document(name.attempt)))
    tensors = {name: array.tobytes() for name, array in loaded.tensors.items() if name != "observed/first"}
    observed = loaded.state.get("observed", {})
    state = {**loaded.state, "observed": [observed.get("slots"), observed.get("unstored")]}
    return {**tensors, "progress": repr(loaded.progress).encode(), "state": repr(state).encode()}


@pytest.mark.parametrize(
    ("script", "commits"), [("own_loop.py", 2), pytest.param("fit_digits.py", 5, marks=pytest.mark.extended)]
)
def test_a_killed_example_resumes_to_the_same_bits(script: str, commits: int, tmp_path: Path) -> None:
    alone, root = str(tmp_path / "alone"), str(tmp_path / "killed")
    trained(script, tmp_path, alone)
    killed(A_SAVE, commits, script, tmp_path, root)
    assert "resuming from" in trained(script, tmp_path, root)
    assert contents(root) == contents(alone)


@pytest.mark.extended
@pytest.mark.parametrize("script", EXAMINED)
def test_doctor_finds_example_exact_after_every_micro_step(script: str, tmp_path: Path) -> None:
    steps, kills = EXAMINED[script]
    doctor = ("-m", "ckptkit", "doctor", "--json", "--steps", str(steps), "--kills", str(kills))
    done = run(*doctor, "--", sys.executable, str(EXAMPLES / script), folder=tmp_path).expect(0)
    report = json.loads(done.stdout)
    assert (report["exact"], report["difference"], report["notes"]) == (True, None, [])
    assert [life["exit_code"] for life in report["lives"]] == [0, 0, *[-signal.SIGKILL] * kills, 0]
    assert report["lives"][-1]["began_at"] > 0
    assert report["lives"][-1]["ended_at"] == report["steps"] == steps


@pytest.mark.extended
@pytest.mark.usefixtures("moto_in_environment")
def test_a_run_on_s3_goes_on_from_there(bucket: Bucket, tmp_path: Path) -> None:
    alone, root = f"s3://{bucket.name}/alone", f"s3://{bucket.name}/killed"
    trained("train_on_s3.py", tmp_path, alone, "--encrypt", "AES256")
    killed(A_SAVE, 2, "train_on_s3.py", tmp_path, root)
    assert "resuming from" in trained("train_on_s3.py", tmp_path, root, "--endpoint", bucket.endpoint)
    assert contents(root) == contents(alone)
    assert list(tmp_path.iterdir()) == []
    stored = bucket.keys()
    (commit,) = [key for key in stored if re.search("alone/.*c0000000015-m0000/COMMIT", key)]
    assert bucket.client.head_object(Bucket=bucket.name, Key=commit)["ServerSideEncryption"] == "AES256"


@pytest.mark.extended
@pytest.mark.usefixtures("moto_in_environment")
def test_job_on_another_node_resumes_from_obs(bucket: Bucket, tmp_path: Path) -> None:
    alone, root = f"obs://{bucket.name}/alone", f"obs://{bucket.name}/job"
    trained("modelarts_obs.py", tmp_path, "--train_url", alone)
    assert list(tmp_path.iterdir()) == []
    job = ("--train_url", root, "--cache", str(tmp_path / "cache"), "--added_by=platform")
    killed(AN_UPLOAD, 1, "modelarts_obs.py", tmp_path, *job)
    shutil.rmtree(tmp_path / "cache")
    said = trained("modelarts_obs.py", tmp_path, *job)
    assert "resuming from a000001-" in said
    assert "not used: --added_by=platform" in said
    assert contents(root) == contents(str(tmp_path / "cache")) == contents(alone)


def test_every_example_is_listed_and_tested() -> None:
    scripts = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert scripts == {*EXAMINED, *TRAINED_TO_THE_END, *BY_RANKS}
    for page in (ENGLISH, CHINESE):
        rows = re.findall(r"^\| \[(\S+)\]\(\1\) \|", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert sorted(rows) == sorted(scripts)


def test_examples_are_short_and_explain_their_use() -> None:
    for script in EXAMPLES.glob("*.py"):
        text = script.read_text(encoding="utf-8")
        opening = text.split('"""')[1]
        assert len(text.splitlines()) < 120, script.name
        assert f"examples/{script.name}" in opening or "examples/msrun.sh" in opening
        assert "start it again" in opening, script.name
