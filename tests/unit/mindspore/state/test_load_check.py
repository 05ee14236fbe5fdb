"""An object that does not take over the state that it is given back is refused, or named."""

from __future__ import annotations

import itertools

import pytest
from mindspore.train import Callback
from support.memory import contents_of
from support.options import grouped
from support.training import accumulation_cell, begin_process

import ckptkit as ck


class Counter:
    """Takes over what it is given."""

    def __init__(self):
        self.count, self.rows = 0, []

    def state_dict(self):
        return {"count": self.count, "rows": self.rows, "kind": "counter"}

    def load_state_dict(self, state):
        self.count, self.rows = state["count"], state["rows"]


class Forgetful(Counter):
    def load_state_dict(self, state):
        state["count"] = 9  # of a copy


class Partial(Counter):
    def load_state_dict(self, state):
        self.count = state["count"]


class Clock(Counter):
    ticks = itertools.count()

    def state_dict(self):
        return {**super().state_dict(), "now": next(self.ticks)}


class Later(Counter):
    """Takes its state over when it is iterated."""

    def load_state_dict(self, state):
        self.pending = state

    def __iter__(self):
        self.count = self.pending["count"]
        return iter(())


class LaterCallback(Callback, Counter):
    def __init__(self):
        Counter.__init__(self)

    def load_state_dict(self, state):
        self.pending = state


class Nothing:
    def state_dict(self):
        return None

    def load_state_dict(self, state):
        pass


def resumed(kind, **options):
    """A state that was moved by training, given to a new object of the kind."""
    begin_process()
    one = kind()
    state = ck.StateManager(accumulation_cell(), held=one)
    state.begin("runs/taking")
    one.count, one.rows = 3, [1, 2]
    contents = contents_of(state.capture(), "a000001-c0000000000-m0000")
    one = kind()
    ck.StateManager(accumulation_cell(), held=one, **grouped(ignore=["test_*"], **options)).apply(contents)


def test_object_that_takes_no_state_is_refused():
    with pytest.raises(
        ck.ResumeError, match=r"load_state_dict\(\) of held \(Forgetful\) changed nothing.*\(count, rows"
    ):
        resumed(Forgetful)


def test_what_was_not_taken_is_named(shown):
    for kind, places in [(Partial, "rows"), (Later, "count, rows"), (LaterCallback, "count, rows")]:
        resumed(kind)
        assert f"state_dict() of held ({kind.__name__}) is not what was stored: {places}" in shown()
        with pytest.raises(ck.ResumeError, match="is not what was stored"):
            resumed(kind, strict=True)


def test_state_that_was_taken_is_not_doubted(shown):
    for kind in (Counter, Clock, Nothing):
        resumed(kind, strict=True)
        assert "load_state_dict" not in shown(), kind
