"""What cells, hooks and callbacks keep outside of themselves from call to call is named; caches and logs are not."""

from __future__ import annotations

import contextvars
import functools

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback, LambdaCallback, LearningRateScheduler
from training import begin_process

from ckptkit.mindspore.inspect import find_in_callbacks, find_in_calls
from ckptkit.mindspore.inspect.loops import objects

COUNTS = {"calls": 0}
DRAWS = np.random.default_rng(3)
TURN = contextvars.ContextVar("TURN", default=0)
LOSSES = []


class Weighed(nn.Cell):
    """Weighs its output by a function of the user's."""

    def __init__(self, weigh):
        super().__init__()
        self.out = nn.Dense(4, 3)
        self.weigh = weigh

    def construct(self, x):
        return self.weigh(self.out(x))


def closure():
    calls = 0

    def weigh(out):
        nonlocal calls
        calls += 1
        return out / calls

    return weigh


class Annealed:
    def __init__(self):
        self.at = 0

    def __call__(self, out):
        self.at += 1
        return out / self.at


def of_module(out):
    COUNTS["calls"] += 1
    return out / COUNTS["calls"]


def of_context(out):
    TURN.set(TURN.get() + 1)
    return out * TURN.get()


def drawn(out):
    return out * float(DRAWS.random())


def table():
    made = {}

    def weigh(out):
        if 3 not in made:
            made[3] = ms.Tensor(np.ones(3), ms.float32)
        return out * made[3]

    return weigh


def logging(out):
    LOSSES.append(float(out.sum()))
    return out


def hooked(hook):
    cell = Weighed(lambda out: out)
    cell.out.register_forward_hook(hook)
    return cell


def averaging():
    mean = [0.0]

    def hook(cell, inputs, output):
        mean[0] = 0.9 * mean[0] + 0.1 * float(output.mean())
        return output - mean[0]

    return hook


@pytest.fixture
def pynative():
    begin_process(mode="pynative")


def said(findings):
    return [f"{one.where}: {one.why}" for one in findings]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Weighed(closure()), "carries calls"),
        (lambda: Weighed(Annealed()), "carries at"),
        (lambda: Weighed(of_module), "carries calls"),
        (lambda: Weighed(of_context), "TURN"),
        (lambda: Weighed(drawn), "DRAWS"),
        (lambda: hooked(averaging()), "carries mean"),
    ],
    ids=["closure", "object", "module", "context", "generator", "hook"],
)
def test_what_calls_carry_is_named(pynative, make, words):
    found = said(find_in_calls([make()], []))
    assert [words in one for one in found] == [True], found


@pytest.mark.parametrize("weigh", [table(), logging, functools.partial(np.multiply, 2)], ids=["cache", "log", "pure"])
def test_caches_and_logs_are_not_named(pynative, weigh):
    assert said(find_in_calls([Weighed(weigh)], [])) == []


def test_what_is_given_by_name_is_not_named(pynative):
    weigh = Annealed()
    assert said(find_in_calls([Weighed(weigh)], [weigh])) == []


def test_a_graph_runs_no_python_code_to_name():
    begin_process(mode="graph")
    assert said(find_in_calls([Weighed(closure())], [])) == []


def set_rate(run_context, rate):
    run_context.original_args().train_network.optimizer.learning_rate.set_data(ms.Tensor(rate, ms.float32))


class OfClass(Callback):
    steps = 0

    def on_train_step_end(self, run_context):
        OfClass.steps += 1
        set_rate(run_context, 1 / OfClass.steps)


class Shows(Callback):
    def on_train_step_end(self, run_context):
        LOSSES.append(float(run_context.original_args().net_outputs))
        print(sum(LOSSES))


def falling():
    rates = []

    def rate(learning_rate, step):
        rates.append(learning_rate)
        return 0.05 / len(rates)

    return rate


def counting():
    seen = [0]

    def after(run_context):
        seen[0] += 1
        set_rate(run_context, 1 / seen[0])

    return after


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (OfClass(), "carries steps"),
        (LearningRateScheduler(falling()), "carries rates"),
        (LambdaCallback(on_train_step_end=counting()), "carries seen"),
    ],
    ids=["class", "schedule", "lambda"],
)
def test_what_callbacks_carry_is_named(callback, words):
    found = said(find_in_callbacks([callback], []))
    assert [words in one for one in found] == [True], found


def test_callback_that_only_shows_is_not_named():
    assert said(find_in_callbacks([Shows()], [])) == []


@pytest.mark.parametrize("kind", ["cells", "callbacks"])
def test_what_is_known_is_walked_once(pynative, monkeypatch, kind):
    """It may hold thousands of rows, and a network a thousand cells."""
    known, walked = [[1.0], [2.0]], []
    below = objects.below
    monkeypatch.setattr(objects, "below", lambda one: [*(walked.append(one) or ()), *below(one)])
    if kind == "cells":
        list(find_in_calls([nn.SequentialCell([hooked(averaging()) for _ in range(3)])], known))
    else:
        list(find_in_callbacks([Shows(), Shows(), Shows()], known))
    assert [id(one) for one in walked if any(one is each for each in known)] == [id(one) for one in known]
