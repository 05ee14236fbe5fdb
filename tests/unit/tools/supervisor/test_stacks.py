import subprocess
import sys
import time

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
