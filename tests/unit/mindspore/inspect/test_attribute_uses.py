"""Which attributes a class only shows or changes, and which may have an effect elsewhere."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

from ckptkit.mindspore.inspect.attribute_uses import carried_by, changed_in_place, only_shown

SHARED: list[float] = []


class Logged:
    def __init__(self, table):
        self.losses, self.seen, self.high, self.begun, self.width = [], {}, False, None, 8
        self.table = table

    def step_begin(self):
        self.begun = time.time()

    def step_end(self, loss, by):
        cost = time.time() - self.begun
        self.losses.append(float(np.abs(loss).mean()))
        self.seen["step"] = self.seen.get("step", 0) + 1
        self.high = by > 1
        if self.high:
            print("high", cost)

    def epoch_end(self, log):
        last = [round(one, 3) for one in self.losses]
        log.info("losses %s", last)
        sys.stdout.write(f"{len(last)} of {self.width}\r")
        sys.stdout.flush()
        print(f"{max(last):{self.width}}", "high" if self.high else "low", dict(self.seen))
        self.losses.clear()


class Returned(Logged):
    def mean(self):
        return sum(self.losses)


class PassedOn(Logged):
    def stop(self, model):
        model.stop(self.seen)


class Decides(Logged):
    def stop(self, model):
        if self.high:
            model.stop()


class ByAVariable(Logged):
    def stop(self, model):
        last = self.losses[-1]
        half = last / 2
        model.stop(half)


class Leaves(Logged):
    def step_begin(self, model):
        if not self.seen:
            return
        model.train()


class DrawsWhileItPrints:
    def __init__(self, rng):
        self.rng = rng

    def step(self):
        print(self.rng.normal())


class ChangesWhatOthersHave:
    def __init__(self, weights):
        self.weights, self.shared, self.rate = weights, SHARED, 1.0

    def step(self, loss):
        self.rate = self.rate * 0.9
        self.weights[0] = loss * self.rate
        for one in self.shared:
            one[:] = [self.rate]


class TakesItLater:
    def __init__(self):
        self.kept = []

    def step(self, model):
        self.kept = model.history
        self.kept.append(1)


def test_what_is_only_printed_logged_or_changed_is_found():
    assert only_shown(Logged) == {"losses", "seen", "high", "begun", "width"}


@pytest.mark.parametrize(
    ("kind", "used"),
    [
        (Returned, {"losses"}),
        (PassedOn, {"seen"}),
        (Decides, {"high"}),
        (ByAVariable, {"losses"}),
        (Leaves, {"seen"}),
        (DrawsWhileItPrints, {"rng"}),
        (ChangesWhatOthersHave, {"weights", "shared", "rate"}),
        (TakesItLater, {"kept"}),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_any_other_use_counts(kind, used):
    assert only_shown(kind).isdisjoint(used)


def test_what_methods_change_in_place():
    assert changed_in_place(Logged) >= {"losses", "seen"}
    assert changed_in_place(Logged).isdisjoint({"high", "begun", "table", "width"})


class Buffered:
    def __init__(self):
        self.buffer, self.read = [], 0

    def __iter__(self):
        self.buffer.append(self.read)
        self.read += 1
        yield self.buffer.pop()

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


def test_what_methods_carry_from_call_to_call():
    assert carried_by(Buffered) == {"buffer", "read"}
