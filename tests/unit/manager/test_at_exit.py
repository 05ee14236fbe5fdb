"""What is to happen when the interpreter exits."""

import pytest
from support.process import forked

from ckptkit.manager.process import AtExit


def test_each_callback_runs_whatever_others_raise(monkeypatch):
    monkeypatch.setattr("ckptkit.manager.process.atexit.register", lambda _: None)
    at_exit, ran = AtExit(), []

    def failing():
        ran.append("failing")
        raise KeyboardInterrupt("lost")

    for callback in (lambda: ran.append("first"), failing, lambda: ran.append("last")):
        at_exit.add(callback)
    with pytest.raises(KeyboardInterrupt, match="lost"):
        at_exit.run()
    assert ran == ["last", "failing", "first"]
    at_exit.run()
    assert len(ran) == 3


def test_forked_process_runs_no_callback_of_its_parent():
    script = """
import os
from ckptkit.manager.process import AT_EXIT
AT_EXIT.add(lambda: os.write(1, b"ran "))
if os.fork():
    os.wait()
"""
    assert forked("-c", script).stdout == "ran "


OWNER = """
from ckptkit.manager.process import AT_EXIT, LastCall

class Owner:
    def __init__(self, name):
        self.name = name
        self.call = LastCall(self.tell)
        AT_EXIT.add(self.call)

    def tell(self):
        print(self.name)

gone = Owner("gone")
stays = Owner("stays")
del gone
"""


def test_last_call_is_for_objects_that_still_exist():
    done = forked("-c", OWNER)
    assert (done.stdout, done.stderr) == ("stays\n", "")
