import errno
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest

from ckptkit.tools.supervisor.processes import (
    catches,
    descendants,
    end_all,
    has_ended,
    oom_kills,
    send,
    status,
    watch_end,
)

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


def test_status_of_no_process_is_none():
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert status(ended.pid) is None
    assert not catches(ended.pid, signal.SIGTERM)


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
