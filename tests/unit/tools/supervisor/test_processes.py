import contextlib
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

from ckptkit.core.worker import Worker
from ckptkit.tools.supervisor import command as module
from ckptkit.tools.supervisor.command import Terminal
from ckptkit.tools.supervisor.hang import take_stacks
from ckptkit.tools.supervisor.processes import (
    Requests,
    descendants,
    end_all,
    has_ended,
    oom_kills,
    watch_end,
)
from ckptkit.tools.supervisor.supervisor import heartbeat_folder


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
        others = [pid for pid in descendants(os.getpid()) if pid != ended.pid]
        waits = []

        def wait(timeout):
            waits.append(ended.poll())
            return False

        assert end_all(timedelta(0), monotonic=time.monotonic, wait=wait, spared=others, keep=ended.pid) == []
        assert waits
        assert ended.wait() == -signal.SIGKILL
        assert spared.poll() is None
        spared.kill()
    with subprocess.Popen(sleep) as stopped:
        stopped.send_signal(signal.SIGSTOP)
        grace = timedelta(seconds=10)
        assert end_all(grace, monotonic=time.monotonic, wait=wait, spared=others, keep=stopped.pid) == []
        assert stopped.wait() == -signal.SIGTERM, "it could not act on the request"


def test_oom_kills_are_counted(tmp_path):
    for number, (groups, file, text, count) in enumerate(
        (
            ("0::/job\n", "job/memory.events", "low 0\noom 3\noom_kill 2\n", 2),
            ("0::/job\n", "memory.events", "oom_kill 5\n", 5),
            ("9:cpu:/\n4:memory:/job\n0::/\n", "memory/job/memory.oom_control", "under_oom 0\noom_kill 1\n", 1),
            ("0::/job\n", "job/memory.events", "oom_kill\n", None),
        )
    ):
        path = tmp_path / str(number) / file
        path.parent.mkdir(parents=True)
        path.write_text(text)
        (tmp_path / "own").write_text(groups)
        assert oom_kills(tmp_path / str(number), tmp_path / "own") == count, groups


LONG = timedelta(seconds=60)


def test_order_of_signals_is_kept():
    with contextlib.closing(Requests()) as requests:
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
        requests = Requests()
        os.kill(os.getpid(), signal.SIGHUP)
        assert requests.take() == []
        requests.close()
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


def test_folder_is_private_and_removed_at_the_end(tmp_path):
    """What a killed supervisor left is removed too, and what is in use is not."""
    (tmp_path / "ckptkit-run-7-abc").mkdir()
    (tmp_path / "ckptkit-run-7-abc" / "7.heartbeat").write_bytes(b"x")
    (tmp_path / "other").write_text("")
    with heartbeat_folder(tmp_path) as first, heartbeat_folder(tmp_path) as second:
        assert {*tmp_path.iterdir()} == {first, second, tmp_path / "other"}
        assert first.stat().st_mode & 0o777 == 0o700
        (first / "1").mkdir()
    assert [*tmp_path.iterdir()] == [tmp_path / "other"]
    for place in (tmp_path / "missing", tmp_path / "other"):  # where it cannot be written, another place is taken
        with heartbeat_folder(place) as folder:
            assert folder.is_dir()
            assert folder.parent != place


@pytest.mark.parametrize(
    ("before", "written"),
    [(b"", "[ckptkit run] x\n"), (b"a\n", "a\n[ckptkit run] x\n"), (b"\r50 %", "\r50 %\n[ckptkit run] x\n")],
)
def test_line_of_the_supervisor_begins_a_line(capfd, before, written):
    terminal = Terminal()
    if before:
        terminal.pass_on(before)
    terminal.say("x")
    terminal.close()
    assert os.fsencode(capfd.readouterr().err) == os.fsencode(written)


@pytest.fixture
def ear(monkeypatch):
    """The end from which the terminal's stderr, which is a pipe, can be read."""
    ear, mouth = os.pipe()
    monkeypatch.setattr(module, "_STDERR", mouth)
    yield ear
    os.close(ear)
    os.close(mouth)


def test_stderr_that_nobody_reads_holds_nobody_up(monkeypatch, ear):
    """What does not fit is left out, and told where it would be; the supervisor's lines have room of their own."""
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(module, "_MOST_BYTES", 1 << 18)
    terminal = Terminal()
    for at in range(40):
        terminal.pass_on(b"%07d\n" % at * (1 << 13))
    terminal.say("life 1 ended")
    terminal.close()  # none of these has waited for a reader
    read = bytearray()
    while b"life 1 ended" not in read:
        read += os.read(ear, 1 << 16)
    lines = read.decode().splitlines()
    passed = sorted({line for line in lines if line.isdigit()})
    assert passed == [f"{at:07d}" for at in range(len(passed))]
    assert len(passed) * (1 << 16) in range(1 << 18, (1 << 18) + (1 << 18))
    missing = f"{(40 - len(passed)) / 16:.3g} MiB of stderr are missing here, because nobody read them in time"
    assert lines[-2:] == [f"[ckptkit run] {missing}", "[ckptkit run] life 1 ended"]


def test_slow_reader_misses_nothing(monkeypatch, ear):
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 60)
    monkeypatch.setattr(module, "_MOST_BYTES", 1 << 17)
    terminal = Terminal()
    written = [b"%07d\n" % at * (1 << 13) for at in range(20)]
    writer = Worker(lambda: [terminal.pass_on(data) for data in written] and terminal.close(), "writer")
    writer.start()
    read = bytearray()
    while len(read) < 20 << 16:
        read += os.read(ear, 1 << 12)
    writer.join()
    assert read == b"".join(written)
