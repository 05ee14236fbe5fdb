import errno
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest
from support.heartbeats import record_of
from support.process import python

from ckptkit.tools.supervisor.hang import crash_of, take_stacks
from ckptkit.tools.supervisor.processes import (
    Requests,
    catches,
    descendants,
    end_all,
    has_ended,
    oom_kills,
    send,
    status,
    watch_end,
)
from ckptkit.tools.supervisor.supervisor import heartbeat_folder

TREE = """
import subprocess, sys
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("up", flush=True)
sys.stdin.read()
"""


def test_descendants_include_those_in_other_sessions(monkeypatch):
    with subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as parent:
        parent.stdout.readline()
        (below,) = descendants(parent.pid)
        assert status(below) is not None
        os.kill(below, signal.SIGKILL)

    def refuse(pid, number):
        raise PermissionError(errno.EPERM, "not yours")

    monkeypatch.setattr(os, "kill", refuse)
    send([1], signal.SIGTERM)  # of another user: no signal, and no error


def test_handler_of_a_process_is_seen():
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert catches(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not catches(os.getpid(), signal.SIGUSR2)


@pytest.mark.parametrize("is_refused", [False, True], ids=["descriptor", "refused"])
def test_end_of_a_process_is_seen(monkeypatch, is_refused):
    def refuse(pid):
        raise OSError(errno.ENOSYS, "not here")

    if is_refused:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        descriptor = watch_end(process.pid)
        assert (descriptor is None) == is_refused
        assert not has_ended(process.pid, descriptor)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(process.pid, descriptor)
    with pytest.raises(ProcessLookupError):
        watch_end(process.pid)
    if descriptor is not None:
        os.close(descriptor)


def test_processes_that_were_there_before_are_spared():
    sleep = [sys.executable, "-c", "import signal; signal.pause()"]
    with subprocess.Popen(sleep) as spared, subprocess.Popen(sleep) as ended:
        others = [one for one in descendants(os.getpid()) if one != ended.pid]
        waits = []

        def wait(timeout):
            waits.append(ended.poll())
            return False

        assert end_all(timedelta(0), monotonic=time.monotonic, wait=wait, spared=others, keep=ended.pid) == []
        assert waits
        assert ended.wait() == -signal.SIGKILL
        assert spared.poll() is None
        spared.kill()


def test_grace_ends_when_it_is_told_to():
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        others = [one for one in descendants(os.getpid()) if one != process.pid]

        def wait(timeout):
            process.poll()
            return True

        end_all(timedelta(hours=1), monotonic=time.monotonic, wait=wait, spared=others, keep=process.pid)
        assert process.wait() == -signal.SIGKILL


def test_oom_kills_are_counted(tmp_path):
    for number, (groups, file, text, count) in enumerate(
        (
            ("0::/job\n", "job/memory.events", "low 0\noom 3\noom_kill 2\n", 2),
            ("0::/job\n", "memory.events", "oom_kill 5\n", 5),
            ("9:cpu:/\n4:memory:/job\n0::/\n", "memory/job/memory.oom_control", "under_oom 0\noom_kill 1\n", 1),
            ("0::/job\n", "job/memory.events", "oom_kill\n", None),
            ("0::/job\n", "elsewhere", "", None),
        )
    ):
        path = tmp_path / str(number) / file
        path.parent.mkdir(parents=True)
        path.write_text(text)
        (tmp_path / "own").write_text(groups)
        assert oom_kills(tmp_path / str(number), tmp_path / "own") == count, groups


LONG = timedelta(seconds=60)


@pytest.fixture
def requests():
    one = Requests()
    yield one
    one.close()


def test_order_of_signals_is_kept(requests):
    for number in (signal.SIGTERM, signal.SIGUSR1):
        os.kill(os.getpid(), number)
        requests.wait(LONG)  # it ends the wait
    assert requests.take() == [signal.SIGTERM, signal.SIGUSR1]
    assert requests.take() == []
    ear, mouth = os.pipe()
    os.write(mouth, b"x")
    requests.wait(LONG, [ear])
    os.close(ear)
    os.close(mouth)


def test_handlers_come_back_and_ignored_signals_stay_so():
    before, term = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        one = Requests()
        os.kill(os.getpid(), signal.SIGHUP)
        assert one.take() == []
        one.close()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is term
    finally:
        signal.signal(signal.SIGHUP, before)


ENDING = """
import os, signal
from ckptkit.tools.supervisor.processes import Requests
requests = Requests()
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTSTP)
print([int(one) for one in requests.take()])
"""


def test_suspension_waits_for_no_job_that_is_ending():
    """A job that stood still in its grace would be killed before its last save."""
    assert python("-c", ENDING).stdout == f"[{int(signal.SIGTERM)}]\n"


SLEEPER = """
import faulthandler, os, signal, sys
from ckptkit.manager.heartbeat import STACKS_SIGNAL
file = open(f"{os.getpid()}.stacks", "w")
faulthandler.register(STACKS_SIGNAL, file=file)
def here():
    print("up", flush=True)
    sys.stdin.read()
here()
"""


def test_stacks_of_a_live_process_are_taken(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER], cwd=tmp_path, stdout=subprocess.PIPE, stdin=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        requests = Requests()
        files = {file.name: file for file in tmp_path.iterdir()}
        try:
            found = take_stacks([record_of(pid=process.pid)], files, monotonic=time.monotonic, wait=requests.wait)
        finally:
            requests.close()
        process.stdin.close()
    (stack,) = found
    assert (stack.rank, stack.pid) == (0, process.pid)
    assert any(" in here" in line for line in stack.lines)


def test_process_without_a_handler_is_left_alone():
    code = "print('up', flush=True); import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        process.stdout.readline()
        record = record_of(pid=process.pid)
        assert take_stacks([record], {}, monotonic=time.monotonic, wait=lambda _: None) == []
        assert process.poll() is None
        process.stdin.close()
    assert process.returncode == 0
    assert take_stacks([record], {}, monotonic=time.monotonic, wait=lambda _: None) == [], "it has ended"


def test_crash_is_read_from_its_file(tmp_path):
    files = {"7.stacks": tmp_path / "7.stacks"}
    files["7.stacks"].write_text("earlier\nFatal Python error: Aborted\n\nThread 0x1:\n  File x\n")
    assert list(crash_of(7, files)) == ["Fatal Python error: Aborted", "", "Thread 0x1:", "  File x"]
    assert list(crash_of(8, files)) == []


def test_folder_is_private_and_removed_at_the_end(tmp_path):
    with heartbeat_folder(tmp_path) as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "1").mkdir()
    assert [*tmp_path.iterdir()] == []


def test_what_a_killed_supervisor_left_is_removed_and_what_is_in_use_is_not(tmp_path):
    (tmp_path / "ckptkit-run-7-abc").mkdir()
    (tmp_path / "ckptkit-run-7-abc" / "7.heartbeat").write_bytes(b"x")
    (tmp_path / "other").write_text("")
    with heartbeat_folder(tmp_path) as first, heartbeat_folder(tmp_path) as second:
        assert {*tmp_path.iterdir()} == {first, second, tmp_path / "other"}
    for place in (tmp_path / "missing", tmp_path / "other"):  # where it cannot be written, another place is taken
        with heartbeat_folder(place) as folder:
            assert folder.is_dir()
            assert folder.parent != place
