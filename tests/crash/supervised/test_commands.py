"""Commands and terminals as they are in the field: pipes, wrappers, closed streams, signals, names of processes."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptkit.tools.supervisor.processes import descendants, status
from crash.supervised import supervised
from crash.supervised.job import TOTAL
from crash.supervised.supervised import JOB, SHARED, Supervised, lives_of, python_path

SHELL = "/bin/sh"
PYTHON = shlex.quote(sys.executable)
ENDLESS = """
import ckptkit as ck, sys
from ckptkit.testing.state import NumpyRun
run = NumpyRun()
with ck.CheckpointManager("root", preemption=ck.Preemption(then=sys.argv[1])) as manager:
    manager.restore(run)
    for _ in run.train_until(10**9):
        manager.step(run)
        if run.batches == 10:
            print("trains", flush=True)
        if manager.preempted:
            break
"""
SHORT = """
import ckptkit as ck, sys
from ckptkit.testing.state import NumpyRun
run = NumpyRun()
with ck.CheckpointManager(f"roots/{sys.argv[1]}") as manager:
    manager.restore(run)
    for _ in run.train_until(4):
        manager.step(run)
"""
SLOW_TO_END = """
import signal, sys, threading
asked = threading.Event()
def end(*_):
    threading.Timer(2, asked.set).start()
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while not asked.wait(0.1):
    pass
open("saved", "w").close()
sys.exit(143)
"""


def planned(folder: Path, *plan: tuple[str, int]) -> str:
    (folder / "plan.json").write_text(json.dumps(plan))
    return f"{PYTHON} {shlex.quote(str(JOB))} root plan.json"


def causes(folder: Path) -> list[str]:
    return [one.cause for one in lives_of(folder / "root")]


def run_with(folder: Path, command: list[str], **streams) -> int:
    environment = {**os.environ, **python_path()}
    whole = [sys.executable, "-m", "ckptkit", "run", "--", *command]
    done = subprocess.run(whole, cwd=folder, env=environment, timeout=120, check=False, **streams)
    return done.returncode


@pytest.mark.parametrize("stderr", [pytest.param("full", marks=pytest.mark.extended), "closed", "unread", "stuck"])
def test_stderr_that_cannot_be_written_stops_nothing(tmp_path: Path, stderr: str) -> None:
    command = shlex.split(planned(tmp_path, ("killed", 25)))
    if stderr == "closed":
        whole = shlex.join([sys.executable, "-m", "ckptkit", "run", "--", *command])
        environment = {**os.environ, **python_path()}
        code = subprocess.run([SHELL, "-c", f"{whole} 2>&-"], cwd=tmp_path, env=environment, check=False).returncode
    elif stderr == "full":
        with open("/dev/full", "wb") as full:
            code = run_with(tmp_path, command, stderr=full)
    else:
        with full_pipe() as (ear, mouth):
            if stderr == "unread":
                os.close(ear)
            code = run_with(tmp_path, command, stderr=mouth)
    assert code == 0
    assert causes(tmp_path) == ["killed", "finished"]


@contextlib.contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """A pipe into which nothing fits, so that the first write waits for a reader."""
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(mouth, b"x" * 4096):
            pass
    os.set_blocking(mouth, True)
    yield ear, mouth
    with contextlib.suppress(OSError):
        os.close(ear)
    os.close(mouth)


@pytest.mark.parametrize("kind", ["killed", pytest.param("exception", marks=pytest.mark.extended)])
def test_death_that_a_pipe_hides_is_seen(tmp_path: Path, kind: str) -> None:
    job = Supervised(["sh", "-c", f"{planned(tmp_path, (kind, 25))} | cat"], folder=tmp_path)
    assert job.end() == 0, job.stderr
    assert causes(tmp_path) == [kind, "finished"]
    assert lives_of(tmp_path / "root")[-1].last_step == TOTAL


@pytest.mark.extended
def test_rank_that_is_left_behind_is_waited_for(tmp_path: Path) -> None:
    job = Supervised(["sh", "-c", f"{planned(tmp_path)} & while [ ! -e root ]; do :; done"], folder=tmp_path)
    assert job.end() == 0, job.stderr
    assert [one.last_step for one in lives_of(tmp_path / "root")] == [TOTAL]


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


@pytest.mark.parametrize(
    "command",
    [
        "exec {python} endless.py return",
        pytest.param("{python} endless.py exit; echo exporting", marks=pytest.mark.extended),
    ],
    ids=["returns", "goes-on"],
)
def test_preemption_is_none_the_less_one_if_the_command_ends_well(tmp_path: Path, command: str) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    job = started(tmp_path, ["sh", "-c", command.format(python=PYTHON)])
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.stderr
    assert causes(tmp_path) == ["preempted"]


@pytest.mark.parametrize(("number", "cause"), [(signal.SIGTERM, "killed"), (signal.SIGUSR1, "preempted")])
def test_sigterm_past_the_supervisor_is_no_preemption(tmp_path: Path, number: signal.Signals, cause: str) -> None:
    """MindSpore and libraries send SIGTERM, but nobody sends SIGUSR1 who does not mean it."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    job = started(tmp_path, [sys.executable, "endless.py", "exit"])
    (below,) = descendants(job.process.pid)
    os.kill(below, number)
    if cause == "killed":
        line_of(job, "the next life begins")
        job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.stderr
    assert causes(tmp_path)[0] == cause


def test_sigterm_while_the_rest_of_a_life_ends_lets_no_other_begin(tmp_path: Path) -> None:
    """The command has failed, and a process that it leaves behind has the grace."""
    child = (
        "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
        "print('ready', flush=True)\nwhile True:\n    signal.pause()"
    )
    script = f"{PYTHON} -c {shlex.quote(child)} & read go < go; exit 1"
    os.mkfifo(tmp_path / "go")
    job = started(tmp_path, ["sh", "-c", script])
    (tmp_path / "go").write_text("go\n")
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == "asked\n"
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.stderr
    assert job.stderr.count("ended after") == 1
    assert job.left() == []


def test_sigterm_ends_a_job_whose_stderr_nobody_reads(tmp_path: Path) -> None:
    """It has written more there than the pipe, and what is held, have room for."""
    script = (
        "import os, signal\nfor _ in range(40):\n    os.write(2, b'x' * 65536)\nprint(1, flush=True)\nsignal.pause()"
    )
    job = started(tmp_path, [sys.executable, "-c", script], "--grace", "3s")
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(30) == 143
    job.end()


def test_script_below_a_shell_has_the_grace(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW_TO_END)
    job = started(tmp_path, ["bash", "-c", f"{PYTHON} slow.py; true"])
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.stderr
    assert (tmp_path / "saved").exists()


@pytest.mark.extended
@pytest.mark.parametrize("pause", [0.1, 1.0])
def test_second_signal_at_once_is_the_same_one(tmp_path: Path, pause: float) -> None:
    (tmp_path / "slow.py").write_text(SLOW_TO_END.replace("Timer(2", "Timer(8"))
    job = started(tmp_path, [sys.executable, "slow.py"])
    job.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        job.process.wait(pause)
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.stderr
    assert (tmp_path / "saved").exists() == (pause < 0.5)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGQUIT, 131), pytest.param(signal.SIGUSR1, 143, marks=pytest.mark.extended)],
    ids=["SIGQUIT", "SIGUSR1"],
)
def test_signal_that_nobody_below_knows_ends_the_job(tmp_path: Path, number: signal.Signals, code: int) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # a shell's background jobs ignore SIGQUIT, and so would the job
    try:
        job = started(tmp_path, ["sh", "-c", "echo ready; exec sleep 600"])
    finally:
        signal.signal(number, before)
    job.process.send_signal(number)
    assert job.end() == code, job.stderr
    assert f"interrupted: {number.name} ended it" in job.stderr
    assert job.left() == []


@pytest.mark.extended
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_other_signal_reaches_only_those_that_know_it(tmp_path: Path, is_known: bool) -> None:
    handler = "signal.signal(signal.SIGUSR2, lambda *_: print('heard', flush=True))" if is_known else ""
    script = f"import signal\n{handler}\nprint('ready', flush=True)\nwhile True:\n    signal.pause()\n"
    job = started(tmp_path, [sys.executable, "-c", script])
    job.process.send_signal(signal.SIGUSR2)
    if is_known:
        assert job.process.stdout is not None
        assert job.process.stdout.readline() == "heard\n"
    job.process.send_signal(signal.SIGXCPU)
    assert job.end() == 143, job.stderr
    assert "SIGXCPU ended it" in job.stderr


def test_stdin_that_is_closed_is_no_script(tmp_path: Path) -> None:
    whole = shlex.join([sys.executable, "-m", "ckptkit", "run", "--", "echo", "-"])
    environment = {**os.environ, **python_path()}
    done = subprocess.run(
        [SHELL, "-c", f"{whole} <&-"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "-\n"), done.stderr


def test_script_in_a_file_on_stdin_is_read_again_by_each_life(tmp_path: Path) -> None:
    planned(tmp_path, ("killed", 25))
    with JOB.open("rb") as script:
        code = run_with(tmp_path, [sys.executable, "-", "root", "plan.json"], stdin=script)
    assert code == 0
    assert [one.last_step for one in lives_of(tmp_path / "root")] == [24, TOTAL]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ([sys.executable, "-", "root"], "can be read once only"),
        (["msrun", "--worker_num=2", "train.py"], "give it --join=True"),
        (["./no-program"], "./no-program cannot be started: Exec format error"),
    ],
    ids=["pipe", "msrun", "no-program"],
)
def test_command_that_cannot_be_right_is_refused(tmp_path: Path, command: list[str], says: str) -> None:
    (tmp_path / "no-program").write_text("true")
    (tmp_path / "no-program").chmod(0o755)
    environment = {**os.environ, **python_path()}
    whole = [sys.executable, "-m", "ckptkit", "run", "--", *command]
    done = subprocess.run(whole, cwd=tmp_path, env=environment, input=b"", capture_output=True, check=False)
    assert (done.returncode, says in done.stderr.decode()) == (2, True), done.stderr


def test_wrong_option_is_refused_before_the_first_life(tmp_path: Path) -> None:
    job = Supervised(["touch", "began"], "--option", "endpoint", folder=tmp_path)
    assert job.end() == 2
    assert not (tmp_path / "began").exists()


def test_process_that_was_there_before_is_left_alone(tmp_path: Path) -> None:
    run = shlex.join([sys.executable, "-m", "ckptkit", "run", "--", "true"])
    script = f"sleep 600 >/dev/null 2>&1 & echo $!; exec {run} >/dev/null 2>&1"
    environment = {**os.environ, **python_path()}
    done = subprocess.run([SHELL, "-c", script], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, check=True)
    os.kill(int(done.stdout), signal.SIGKILL)  # raises if there is none


@pytest.mark.extended
def test_two_runs_in_one_command_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text("[]")
    plan = planned(tmp_path, *(("exception", at) for at in (35, 65, 95, 125)))
    first = f"{PYTHON} {shlex.quote(str(JOB))} first none.json"
    job = Supervised(["sh", "-c", f"{first} && {plan}"], "--lives-without-progress", "2", folder=tmp_path)
    assert job.end() == 0, job.stderr
    assert causes(tmp_path) == ["exception"] * 4 + ["finished"]
    assert "before the end of micro-step 35 " in job.stderr


@pytest.mark.extended
def test_kernel_without_descriptors_of_processes_will_do(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import errno, os\ndef pidfd_open(pid, flags=0):\n    raise OSError(errno.ENOSYS, 'not here')\n"
        "os.pidfd_open = pidfd_open\n"
    )
    path = {**python_path(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{python_path()['PYTHONPATH']}"}
    monkeypatch.setattr(supervised, "python_path", lambda: path)
    command = shlex.split(planned(tmp_path, ("killed", 25), ("hang", 55), ("exception", 85)))
    job = Supervised(command, "--hang-after", "1s", folder=tmp_path)
    assert job.end() == 0, job.stderr
    assert causes(tmp_path) == ["killed", "hang", "exception", "finished"]
    assert job.left() == []


def cpu_ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def test_suspended_job_goes_on_where_it_stood(tmp_path: Path) -> None:
    """Ctrl-Z stops the job too, for longer than a hang would be."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    job = Supervised([sys.executable, "endless.py", "return"], "--hang-after", "1s", folder=tmp_path)
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == "trains\n"
    (below,) = descendants(job.process.pid)
    job.process.send_signal(signal.SIGTSTP)
    os.waitid(os.P_PID, job.process.pid, os.WSTOPPED)
    while status(below) != ("T", job.process.pid):
        os.sched_yield()
    used = cpu_ticks(below)
    threading.Event().wait(3)  # a hang of a second would be found meanwhile
    assert cpu_ticks(below) == used
    job.process.send_signal(signal.SIGCONT)
    while cpu_ticks(below) == used:
        os.sched_yield()
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.stderr
    assert causes(tmp_path) == ["preempted"]


@pytest.mark.extended
def test_files_of_processes_that_have_ended_are_closed(tmp_path: Path) -> None:
    """A command may train a thousand times in one life."""
    (tmp_path / "short.py").write_text(SHORT)
    command = f"ulimit -n 30; exec {sys.executable} -m ckptkit run -- sh -c '"
    script = "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do {} short.py $n || exit 9; done'"
    done = subprocess.run(
        ["/bin/sh", "-c", command + script.format(sys.executable)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "roots").iterdir())) == 16


def test_folder_that_somebody_removes_is_made_again(tmp_path: Path) -> None:
    """What a logout does to it: hangs are noticed none the less, progress counts, and the next life has a new one."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    job = Supervised([sys.executable, "endless.py", "exit"], "--hang-after", "1s", folder=tmp_path)
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == "trains\n"
    descriptors, (folder,) = Path(f"/proc/{job.process.pid}/fd"), SHARED.glob(f"ckptkit-run-{job.process.pid}-*")
    while not any(str(file.resolve()).endswith(".heartbeat") for file in descriptors.iterdir()):
        os.sched_yield()  # it has not looked yet
    shutil.rmtree(folder)
    while not folder.exists():
        os.sched_yield()
    (below,) = descendants(job.process.pid)
    os.kill(below, signal.SIGSTOP)
    line_of(job, "the next life begins")
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.stderr
    first = lives_of(tmp_path / "root")[0]
    assert (first.cause, first.committed_step) == ("hang", first.last_step)
    assert job.left() == []
