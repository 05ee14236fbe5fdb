"""Which callbacks of the user's reach no parameter within an epoch, so that no save copies everything for them."""

# ruff: noqa: PLC3002, PLW2901, SIM115 - callbacks as people write them

from __future__ import annotations

import collections
import contextlib
import csv
import datetime
import json
import logging
import math
import os
import sys
import time
import types
import weakref

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn
from mindspore.train import Callback, LambdaCallback, LossMonitor, Model
from support.training import accumulation_cell, pipeline

from ckptkit.mindspore.callback.parameter_writers import LEADS, is_idle, only_looks

HOOKS = ("step_begin", "step_end", "on_train_step_begin", "on_train_step_end")
logger = logging.getLogger(__name__)
NETWORK = nn.Dense(3, 3)
SEEN = []
RATE = 0.5


def number_of(outputs):
    if isinstance(outputs, (tuple, list)):
        outputs = outputs[0]
    return float(outputs.asnumpy().mean()) if isinstance(outputs, Tensor) else outputs


def halve(_):
    NETWORK.weight.set_data(NETWORK.weight * 0.5)


# Callbacks that only look


class Meter:
    """An object of the user's."""

    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)


class Losses(Callback):
    """Keeps losses, and a running mean."""

    def __init__(self, every=10):
        super().__init__()
        self.every, self.meters = every, {"loss": Meter()}
        self.last = collections.deque(maxlen=3)
        self.best = {"loss": math.inf, "step": None}

    def on_train_step_end(self, run_context):
        cb_params = run_context.original_args()
        loss = number_of(getattr(cb_params, "net_outputs", None))
        for meter in self.meters.values():
            meter.update(loss)
        self.last.append(loss)
        if loss < self.best["loss"]:
            self.best["loss"], self.best["step"] = loss, cb_params.cur_step_num
        if cb_params.cur_step_num % self.every == 0 and not math.isnan(loss):
            print(f"step {cb_params.cur_step_num:>6d} loss {sum(one for one in self.last) / len(self.last):.4f}")


class Clock(Callback):
    def __init__(self):
        self.began = None
        self.times = [0.0] * 50_000

    def on_train_begin(self, run_context):
        self.began = time.time()

    def on_train_step_begin(self, run_context):
        self.at = time.perf_counter()

    def on_train_step_end(self, run_context):
        self.times.append(time.perf_counter() - self.at)
        total = datetime.timedelta(seconds=time.time() - self.began)
        logger.info("%s: %.1f ms, %s", datetime.datetime.now().strftime("%H:%M"), 1000 * np.mean(self.times), total)


class Rows(Callback):
    """Writes a file."""

    def __init__(self, path):
        self._path = path
        self._file = open(os.devnull, "w")

    def step_end(self, run_context):
        params = run_context.original_args()
        self._file.write(json.dumps({"step": params.cur_step_num, "loss": self._loss(params.get("net_outputs"))}))
        with open(self._path + ".csv", "a", newline="") as other:
            csv.writer(other).writerow([params["cur_step_num"], params.batch_num])

    @staticmethod
    def _loss(outputs):
        return float(outputs.asnumpy())


class Derived(Losses):
    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)
        self.recent = [one / 2 for one in self.last if one > 0]


class Rate(Callback):
    def on_train_step_end(self, run_context):
        print("lr", run_context.original_args().optimizer.learning_rate.asnumpy(), RATE)


class Stops(Callback):
    def on_train_step_end(self, run_context):
        if not np.isfinite(run_context.original_args().net_outputs.asnumpy()).all():
            run_context.request_stop()


class Draws(Callback):
    def on_train_step_end(self, run_context):
        print(np.random.rand())


class EvaluatesAtEpochEnd(Callback):
    """Reaches the network between epochs only."""

    def __init__(self):
        self.network = NETWORK

    def on_train_step_end(self, run_context):
        print(run_context.original_args().cur_step_num)

    def on_train_epoch_end(self, run_context):
        halve(self.network)


class Monitor(LossMonitor):
    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)


def test_callback_that_reaches_no_parameter_only_looks():
    idle = [Losses(), Clock(), Rows("none/rows"), Derived()]
    for callback in (*idle, Rate(), Stops(), Draws(), EvaluatesAtEpochEnd(), Monitor()):
        assert only_looks(callback, HOOKS), type(callback).__name__
        assert is_idle(callback) == (callback in idle), type(callback).__name__


# Callbacks that write, or of which that is not known


def calls_what_writes(self, run_context):
    halve(run_context.original_args().cur_step_num)


def takes_the_network(self, run_context):
    for one in run_context.original_args().train_network.trainable_params():
        one.set_data(one * 0.5)


def takes_the_network_as_item(self, run_context):
    run_context.original_args()["train_network"].update()


def takes_the_network_by_get(self, run_context):
    getattr(run_context.original_args(), "network").weight.asnumpy()[0] = 1  # noqa: B009


def has_a_lambda(self, run_context):
    (lambda: halve(0))()


def asks_the_optimizer(self, run_context):
    optimizer = run_context.original_args().optimizer
    optimizer.parameters[0].asnumpy()[0] = 1


class Helper:
    """Holds nothing, and reaches the network by its module."""

    def update(self):
        halve(0)


HELPER = Helper()
sys.modules["weights_of_job"] = types.ModuleType("weights_of_job")
vars(sys.modules["weights_of_job"]).update(rate=RATE, halve=halve)


def uses_a_local_variable(self, run_context):
    helper = HELPER
    helper.update()


def imports_a_module(self, run_context):
    import weights_of_job as weights

    weights.halve(0)


def imports_names(self, run_context):
    from weights_of_job import halve as change
    from weights_of_job import rate

    change(rate)


class Timed(contextlib.ContextDecorator):
    def __enter__(self):
        return self

    def __exit__(self, *error):
        print(error)


@Timed()
def is_decorated(self, run_context):
    halve(0)


class Average:
    def __init__(self):
        self.values = [*NETWORK.trainable_params()]

    def update(self, value):
        for one in self.values:
            one *= value


class HoldsAverage(Callback):
    def __init__(self):
        self.averages = [Average()]

    def on_train_step_end(self, run_context):
        for one in self.averages:
            one.update(0.5)


class Given(Callback):
    def __init__(self):
        self.held = (NETWORK.weight,)

    def on_train_step_end(self, run_context):
        self.held[0].asnumpy()[0] = 1


class GivenAtTheBegin(Callback):
    """Another hook sets what this one uses."""

    def __init__(self):
        self.held = None

    def on_train_begin(self, run_context):
        self.held = run_context.original_args().train_network

    def on_train_step_end(self, run_context):
        self.held.weight.asnumpy()[0] = 1


class Weak(Callback):
    def __init__(self):
        self.held = weakref.proxy(NETWORK)

    def on_train_step_end(self, run_context):
        self.held.update()


class Hook(Callback):
    def __init__(self):
        self.on_train_step_end = halve


class ByParent(Callback):
    def on_train_step_end(self, run_context):
        self.update()

    def update(self):
        halve(0)


class ByChild(ByParent):
    def update(self):
        super().update()


class Mixed(Callback):
    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)


class MixedIn(Mixed, ByParent):
    pass


WRITES = [calls_what_writes, takes_the_network, takes_the_network_as_item, takes_the_network_by_get, has_a_lambda]
WRITES += [is_decorated, asks_the_optimizer, uses_a_local_variable, imports_a_module, imports_names]
KINDS = [type(one.__name__, (Callback,), {"on_train_step_end": one, "__module__": __name__}) for one in WRITES]
KINDS += [HoldsAverage, Given, GivenAtTheBegin, Weak, Hook, ByChild, MixedIn]


def test_callback_that_may_write_is_not_taken_for_one_that_looks():
    for kind in KINDS:
        callback = kind()
        if kind is GivenAtTheBegin:  # it is judged after this hook
            callback.held = NETWORK
        assert not only_looks(callback, HOOKS), kind.__name__
        assert not is_idle(callback), kind.__name__


def test_hook_of_the_base_class_that_was_exchanged_is_read(monkeypatch):
    monkeypatch.setattr(Callback, "step_end", calls_what_writes)
    assert not only_looks(Clock(), HOOKS)


def test_lambdas_are_read():
    assert only_looks(LambdaCallback(on_train_step_end=print), HOOKS)
    assert not only_looks(LambdaCallback(on_train_step_end=lambda run_context: halve(0)), HOOKS)


def test_arguments_of_hooks_are_known():
    """What a hook gets of `Model` and no name forbids holds no parameter."""
    seen = {}

    class Keeps(Callback):
        def on_train_step_end(self, run_context):
            seen.update(run_context.original_args())

    Model(accumulation_cell()).train(1, pipeline(), callbacks=[Keeps()], dataset_sink_mode=False)
    assert "train_network" in seen
    rest = {name: value for name, value in seen.items() if name not in LEADS | {"optimizer"}}
    holding = [name for name, one in rest.items() if isinstance(one, (nn.Cell, ms.Parameter, Callback, ds.Dataset))]
    assert holding == []
    assert all(isinstance(one, (int, str, type(None), Tensor, list, tuple, dict)) for one in rest.values()), rest
