import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from support.heartbeats import record_of

from ckptkit.tools.supervisor.hang import crash_of, take_stacks
from ckptkit.tools.supervisor.processes import Requests

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


def test_stacks_of_a_live_process_are_taken(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER], cwd=tmp_path, stdout=subprocess.PIPE, stdin=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        requests = Requests()
        try:
            found = take_stacks(
                [record_of(pid=process.pid)],
                {one.name: one for one in tmp_path.iterdir()},
                monotonic=time.monotonic,
                wait=requests.wait,
            )
        finally:
            requests.close()
        assert process.stdin is not None
        process.stdin.close()
    (stack,) = found
    assert (stack.rank, stack.pid) == (0, process.pid)
    assert any(" in here" in line for line in stack.lines)


def test_process_without_a_handler_is_left_alone() -> None:
    code = "print('up', flush=True); import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        record = record_of(pid=process.pid)
        assert take_stacks([record], {}, monotonic=time.monotonic, wait=lambda _: None) == []
        assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0


def test_crash_is_read_from_its_file(tmp_path: Path) -> None:
    files = {"7.stacks": tmp_path / "7.stacks"}
    files["7.stacks"].write_text("earlier\nFatal Python error: Aborted\n\nThread 0x1:\n  File x\n")
    assert list(crash_of(7, files)) == ["Fatal Python error: Aborted", "", "Thread 0x1:", "  File x"]
    assert list(crash_of(8, files)) == []


def test_missing_process_has_no_stacks() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    wait = lambda _: timedelta(0)  # noqa: E731
    assert (
        take_stacks(
            [record_of(pid=process.pid)],
            {},
            monotonic=time.monotonic,
            wait=wait,
        )
        == []
    )
