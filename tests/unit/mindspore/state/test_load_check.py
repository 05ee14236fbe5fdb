"""An object that does not take over the state that it is given back is refused, or named."""

import contextlib
import itertools
import re

import pytest
from mindspore.train import Callback
from support.memory import contents_of
from support.training import accumulation_cell, begin_process

import ckptkit as ck


class Counter:
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


@pytest.mark.parametrize(
    ("kind", "lost", "is_refused"),
    [
        (Forgetful, "count, rows", True),
        *(
            (kind, lost, False)
            for kind, lost in ((Partial, "rows"), (Later, "count, rows"), (LaterCallback, "count, rows"))
        ),
        *((kind, None, False) for kind in (Counter, Clock, Nothing)),
    ],
)
def test_object_that_takes_no_state_is_refused(shown, kind, lost, is_refused):
    """And named if it takes a part; a state that was moved by training is given to a new object of the kind."""
    begin_process()
    one = kind()
    state = ck.StateManager(accumulation_cell(), held=one)
    state.begin("runs/taking")
    one.count, one.rows = 3, [1, 2]
    contents = contents_of(state.capture(), "a000001-c0000000000-m0000")
    named = rf"state_dict\(\) of held \({kind.__name__}\) is not what was stored: {lost}"
    if is_refused:
        named = rf"load_state_dict\(\) of held \({kind.__name__}\) changed nothing.*\({lost}"
    for strict in (False, True):
        training = ck.Training(ignore=["test_*"])
        given = ck.StateManager(accumulation_cell(), held=kind(), strict=strict, training=training)
        with (
            pytest.raises(ck.ResumeError, match=named) if is_refused or (lost and strict) else contextlib.nullcontext()
        ):
            given.apply(contents)
    assert (re.search(named, shown()) is not None) == (lost is not None and not is_refused)
    assert lost is not None or "load_state_dict" not in shown()
