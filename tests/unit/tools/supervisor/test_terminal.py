import os

import pytest

from ckptkit.tools.supervisor.terminal import Terminal


@pytest.mark.parametrize(
    ("before", "written"),
    [(b"", "[ckptkit run] x\n"), (b"a\n", "a\n[ckptkit run] x\n"), (b"\r50 %", "\r50 %\n[ckptkit run] x\n")],
)
def test_line_of_the_supervisor_begins_a_line(capfd, before, written):
    terminal = Terminal()
    terminal.pass_on(before) if before else None
    terminal.say("x")
    assert os.fsencode(capfd.readouterr().err) == os.fsencode(written)
