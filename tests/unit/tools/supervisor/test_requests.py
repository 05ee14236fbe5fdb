import os
import signal
from datetime import timedelta

import pytest
from support.process import python

from ckptkit.tools.supervisor.processes import Requests

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
