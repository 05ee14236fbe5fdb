"""The calls that a thread is in are found, among them those that a signal handler makes."""

from __future__ import annotations

import functools
import signal
import threading

import pytest

from ckptkit.core.stack import SignalHandlers


class Asks:
    """Asks for the running handler, in each form that Python accepts as one."""

    def __init__(self):
        self.handlers, self.found = SignalHandlers(), []

    def ask(self):
        self.handlers.look()
        self.found.append(self.handlers.running())

    def __call__(self, number, frame):
        self.ask()


@pytest.fixture
def installed():
    before = signal.getsignal(signal.SIGUSR2)
    yield lambda handler: signal.signal(signal.SIGUSR2, handler)
    signal.signal(signal.SIGUSR2, before)


class Inherits(Asks):
    pass


@pytest.mark.parametrize("form", ["function", "object", "inherited", "method", "partial"])
def test_running_handler_is_found(installed, form):
    asks = Inherits() if form == "inherited" else Asks()

    def function(number, frame):
        asks.ask()

    forms = {
        "object": asks,
        "inherited": asks,
        "method": asks.__call__,
        "partial": functools.partial(Asks.__call__, asks),
    }
    installed(forms.get(form, function))
    asks.ask()
    signal.raise_signal(signal.SIGUSR2)
    asks.ask()
    assert asks.found == [None, "function" if form == "function" else "__call__", None]


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler])
def test_handlers_that_are_not_written_in_python_are_none(installed, handler):
    asks = Asks()
    installed(handler)
    asks.ask()
    assert asks.found == [None]


def test_function_that_the_program_calls_itself_is_no_running_handler(installed):
    asks = Asks()

    def save_now(*given):
        asks.ask()

    installed(save_now)
    save_now()
    save_now(signal.SIGUSR2, None)
    signal.raise_signal(signal.SIGUSR2)
    assert asks.found == [None, None, "save_now"]


def test_program_that_runs_in_a_handler_is_no_handler_to_itself(installed):
    asks = Asks()
    inner = []

    def save(number, frame):
        asks.ask()

    def main(number, frame):
        asks.handlers.look()
        asks.handlers.note_running()
        asks.ask()
        signal.signal(signal.SIGUSR2, save)
        signal.raise_signal(signal.SIGUSR2)
        inner.extend(asks.found)

    installed(main)
    signal.raise_signal(signal.SIGUSR2)
    assert inner == [None, "save"]


def test_other_threads_run_no_handler(installed):
    asks = Asks()
    installed(asks)
    thread = threading.Thread(target=asks, args=(0, None))
    thread.start()
    thread.join()
    assert asks.found == [None]
