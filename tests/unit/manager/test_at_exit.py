"""What is to happen when the interpreter exits."""

import pytest
from support.process import python

from ckptkit.manager.at_exit import AtExit


@pytest.mark.parametrize("error", [OSError("lost"), KeyboardInterrupt("lost"), SystemExit("lost")])
def test_each_callback_runs_whatever_others_raise(monkeypatch, error):
    monkeypatch.setattr("ckptkit.manager.at_exit.atexit.register", lambda _: None)
    at_exit, ran = AtExit(), []

    def failing():
        ran.append("failing")
        raise error

    for callback in (lambda: ran.append("first"), failing, lambda: ran.append("last")):
        at_exit.add(callback)
    with pytest.raises(type(error), match="lost"):
        at_exit.run()
    assert ran == ["last", "failing", "first"]
    at_exit.run()
    assert len(ran) == 3


def test_forked_process_runs_no_callback_of_its_parent():
    script = """
import os
from ckptkit.manager.at_exit import AT_EXIT
AT_EXIT.add(lambda: os.write(1, b"ran "))
if os.fork():
    os.wait()
"""
    assert python("-c", script).stdout == "ran "
