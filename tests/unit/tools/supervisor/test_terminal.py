import os

import pytest

from ckptkit.core.worker import Worker
from ckptkit.tools.supervisor import command as module
from ckptkit.tools.supervisor.command import Terminal


@pytest.mark.parametrize(
    ("before", "written"),
    [(b"", "[ckptkit run] x\n"), (b"a\n", "a\n[ckptkit run] x\n"), (b"\r50 %", "\r50 %\n[ckptkit run] x\n")],
)
def test_line_of_the_supervisor_begins_a_line(capfd, before, written):
    terminal = Terminal()
    terminal.pass_on(before) if before else None
    terminal.say("x")
    terminal.close()
    assert os.fsencode(capfd.readouterr().err) == os.fsencode(written)


def test_stderr_that_nobody_reads_holds_nobody_up(monkeypatch):
    """What does not fit is left out, and told where it would be; the supervisor's lines have room of their own."""
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(module, "_MOST_BYTES", 1 << 18)
    ear, mouth = os.pipe()
    monkeypatch.setattr(module, "_STDERR", mouth)
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
    os.close(ear)
    os.close(mouth)


def test_slow_reader_misses_nothing(monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 60)
    monkeypatch.setattr(module, "_MOST_BYTES", 1 << 17)
    ear, mouth = os.pipe()
    monkeypatch.setattr(module, "_STDERR", mouth)
    terminal = Terminal()
    written = [b"%07d\n" % at * (1 << 13) for at in range(20)]
    writer = Worker(lambda: [terminal.pass_on(data) for data in written] and terminal.close(), "writer")
    writer.start()
    read = bytearray()
    while len(read) < 20 << 16:
        read += os.read(ear, 1 << 12)
    writer.join()
    assert read == b"".join(written)
    os.close(ear)
    os.close(mouth)
