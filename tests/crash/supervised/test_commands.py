"""Commands and terminals as they are in the field: pipes, wrappers, closed streams, signals, SLURM."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ckptkit.tools.supervisor.processes import descendants
from crash.supervised.job import TOTAL
from crash.supervised.supervised import Supervised, lives_of, planned, python_path

PROJECT = Path(__file__).parents[3]
PYTHON = shlex.quote(sys.executable)
ENDLESS = """
import ckptkit as ck
from ckptkit.testing.state import NumpyRun
run = NumpyRun()
with ck.CheckpointManager("root") as manager:
    manager.restore(run)
    for _ in run.train_until(10**9):
        manager.step(run)
        if run.batches == 10:
            print("trains", flush=True)
"""


def causes(folder: Path) -> list[str]:
    return [one.cause for one in lives_of(folder / "root")]


@pytest.mark.parametrize(
    ("command", "within"),
    [("{}", ["sh", "-c", 'exec "$@" 2>&-', "sh"]), ("{} | cat", [])],
    ids=["closed stderr", "pipe"],
)
def test_death_that_a_shell_hides_is_seen(tmp_path: Path, command: str, within: list[str]) -> None:
    whole = command.format(shlex.join(planned(tmp_path, ("killed", 25))))
    job = Supervised(["sh", "-c", whole], folder=tmp_path, within=within)
    assert job.end() == 0, job.stderr
    assert causes(tmp_path) == ["killed", "finished"]
    assert lives_of(tmp_path / "root")[-1].last_step == TOTAL


def started(folder: Path, command: list[str], *options: str) -> Supervised:
    """A job that has written its first line."""
    job = Supervised(command, *options, folder=folder)
    assert job.process.stdout is not None
    assert job.process.stdout.readline()
    return job


def line_of(job: Supervised, part: str) -> str:
    """Wait for a line of its stderr that has ``part``, and return it."""
    assert job.process.stderr is not None
    return next(line for line in job.process.stderr if part in line)


@pytest.mark.parametrize(("number", "cause"), [(signal.SIGTERM, "killed"), (signal.SIGUSR1, "preempted")])
def test_sigterm_past_the_supervisor_is_no_preemption(tmp_path: Path, number: signal.Signals, cause: str) -> None:
    """MindSpore and libraries send SIGTERM, but nobody sends SIGUSR1 who does not mean it."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    job = started(tmp_path, [sys.executable, "endless.py"])
    (below,) = descendants(job.process.pid)
    os.kill(below, number)
    if cause == "killed":
        line_of(job, "the next life begins")
        job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.stderr
    assert causes(tmp_path)[0] == cause


def test_signal_between_lives_is_the_end(tmp_path: Path) -> None:
    for number, word, exit_code in ((signal.SIGUSR1, "SIGUSR1", 143), (signal.SIGINT, "Ctrl-C", 130)):
        job = Supervised(["sh", "-c", "exit 3"], folder=tmp_path)
        line_of(job, "the next life begins in 1 s")
        job.process.send_signal(number)
        assert job.end() == exit_code, job.stderr
        assert f"{word} arrived: no other life begins" in job.stderr
    # And while what a dead command has started is ended.
    stays = "trap 'echo is asked to end >&2' TERM; : > ready; while :; do sleep 60 & wait; done"
    job = Supervised(["sh", "-c", f"mkfifo ready; ({stays}) & read _ < ready; exit 3"], folder=tmp_path)
    line_of(job, "is asked to end")
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.stderr
    assert "no other life begins" in job.stderr
    assert job.left() == []


def test_sigterm_is_passed_on_and_not_followed_by_a_life(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    job = started(tmp_path, ["sh", "-c", f"{PYTHON} endless.py; exit $?"])
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.stderr
    (life,) = lives_of(tmp_path / "root")
    assert (life.cause, life.then) == ("preempted", "stop")
    assert life.committed_step == life.last_step
    assert job.left() == []


def test_signal_that_nobody_below_knows_ends_the_job(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it, and so would the job
    try:
        job = started(tmp_path, ["sh", "-c", "echo ready; exec sleep 600"])
    finally:
        signal.signal(signal.SIGINT, before)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 128 + signal.SIGINT, job.stderr
    assert "Ctrl-C: it ended without a last save" in job.stderr
    assert "SIGINT" not in job.stderr
    assert job.left() == []


REFUSED = [
    ([sys.executable, "-", "root"], (), "can be read once only"),
    (["msrun", "--worker_num=2", "train.py"], (), "give it --join=True"),
    (["./no-program"], (), "./no-program cannot be started: Exec format error"),
    (["./missing"], (), "./missing cannot be started"),
    (["touch", "began"], ("--option", "endpoint"), ""),
]


def test_command_that_cannot_be_right_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no-program").write_text("true")
    (tmp_path / "no-program").chmod(0o755)
    for command, options, says in REFUSED:
        whole, environment = [sys.executable, "-m", "ckptkit", "run", *options, "--", *command], python_path()
        streams = {"input": b"", "capture_output": True}
        done = subprocess.run(whole, cwd=tmp_path, env={**os.environ, **environment}, check=False, **streams)
        assert (done.returncode, says in done.stderr.decode()) == (2, True), done.stderr
    assert not (tmp_path / "began").exists()


@pytest.mark.extended
@pytest.mark.parametrize(
    ("plan", "code", "requeued"),
    [([], 0, False), ([("bad-batch", 25)], 65, False), ([("killed", 3), ("killed", 4), ("killed", 5)], 75, True)],
    ids=["complete", "bad-batch", "no-progress"],
)
def test_slurm_requeues_what_another_machine_may_do_better(tmp_path: Path, plan, code, requeued) -> None:
    """The recipe in docs/run.md, with stand-ins for ``srun`` and ``scontrol``."""
    (script,) = re.findall(r"```text\n(#!/bin/bash\n#SBATCH.*?)```", (PROJECT / "docs/run.md").read_text(), re.DOTALL)
    (tmp_path / "job.sh").write_text(script.replace("python train.py", shlex.join(planned(tmp_path, *plan))))
    (tmp_path / "ckptkit").write_text(f'#!/bin/sh\nexec {sys.executable} -m ckptkit "$@"\n')
    (tmp_path / "ckptkit").chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "STAND_IN": str(tmp_path)}
    path = os.pathsep.join([str(tmp_path), str(PROJECT / "tests/multirank/msrun/slurm"), os.environ["PATH"]])
    environment = {**os.environ, **python_path(), **slurm, "PATH": path}
    streams = {"capture_output": True, "text": True}
    done = subprocess.run(["/bin/bash", "job.sh"], cwd=tmp_path, env=environment, check=False, timeout=120, **streams)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "requeued").exists() == requeued
