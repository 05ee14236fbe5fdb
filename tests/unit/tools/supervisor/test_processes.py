import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ckptkit.tools.supervisor.cgroup import oom_kills
from ckptkit.tools.supervisor.processes import catches, descendants, status

TREE = """
import subprocess, sys
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("up", flush=True)
sys.stdin.read()
"""


def test_descendants_include_those_in_other_sessions():
    with subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        below = descendants(parent.pid)
        assert len(below) == 1
        assert status(below[0]) is not None
        os.kill(below[0], signal.SIGKILL)


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


@pytest.mark.parametrize(
    ("groups", "file", "text", "count"),
    [
        ("0::/job\n", "job/memory.events", "low 0\noom 3\noom_kill 2\n", 2),
        ("0::/job\n", "memory.events", "oom_kill 5\n", 5),
        ("9:cpu:/\n4:memory:/job\n0::/\n", "memory/job/memory.oom_control", "under_oom 0\noom_kill 1\n", 1),
        ("0::/job\n", "job/memory.events", "oom_kill\n", None),
        ("0::/job\n", "elsewhere", "", None),
    ],
)
def test_oom_kills_are_counted(tmp_path: Path, groups, file, text, count):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    own = tmp_path / "own"
    own.write_text(groups)
    assert oom_kills(tmp_path, own) == count
