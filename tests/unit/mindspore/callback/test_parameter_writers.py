"""Which callbacks of the user's reach no parameter within an epoch, so that no save copies everything for them."""

from __future__ import annotations

import csv
import logging
import math
import time

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn
from mindspore.train import Callback, LambdaCallback, LossMonitor, Model
from support.training import accumulation_cell, pipeline

from ckptkit.mindspore.callback.parameter_writers import LEADS, acting_among, may_write_in_window, only_looks

HOOKS = ("step_begin", "step_end", "on_train_step_begin", "on_train_step_end")
logger = logging.getLogger(__name__)
NETWORK = nn.Dense(3, 3)
RATE = 0.5


def number_of(outputs):
    if isinstance(outputs, (tuple, list)):
        outputs = outputs[0]
    return float(outputs.asnumpy().mean()) if isinstance(outputs, Tensor) else outputs


def halve(_):
    NETWORK.weight.set_data(NETWORK.weight * 0.5)


class Meter:
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)


class Losses(Callback):
    def __init__(self, path="none/rows"):
        super().__init__()
        self.meters, self.times = {"loss": Meter()}, [0.0] * 50_000
        self.path, self.best = path, {"loss": math.inf, "step": None}

    def on_train_step_begin(self, run_context):
        self.at = time.perf_counter()

    def on_train_step_end(self, run_context):
        cb_params = run_context.original_args()
        loss = number_of(getattr(cb_params, "net_outputs", None))
        for meter in self.meters.values():
            meter.update(loss)
        self.times.append(time.perf_counter() - self.at)
        if loss < self.best["loss"]:
            self.best["loss"], self.best["step"] = loss, cb_params.cur_step_num
        logger.info("%.1f ms, loss %s", 1000 * np.mean(self.times), self._loss(cb_params.get("net_outputs")))
        with open(self.path, "a", newline="") as file:
            csv.writer(file).writerow([cb_params["cur_step_num"], cb_params.batch_num])

    @staticmethod
    def _loss(outputs):
        return float(outputs.asnumpy())


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
    for callback in (Losses(), Rate(), Stops(), Draws(), EvaluatesAtEpochEnd(), Monitor()):
        assert only_looks(callback, HOOKS), type(callback).__name__
        assert bool(acting_among([callback])) != isinstance(callback, Losses), type(callback).__name__


def calls_what_writes(self, run_context):
    halve(run_context.original_args().cur_step_num)


def takes_the_network(self, run_context):
    for weight in run_context.original_args().train_network.trainable_params():
        weight.set_data(weight * 0.5)


def takes_the_network_as_item(self, run_context):
    run_context.original_args()["train_network"].update()


def takes_the_network_by_get(self, run_context):
    getattr(run_context.original_args(), "network").weight.asnumpy()[0] = 1  # noqa: B009


def asks_the_optimizer(self, run_context):
    optimizer = run_context.original_args().optimizer
    optimizer.parameters[0].asnumpy()[0] = 1


class Average:
    def __init__(self):
        self.values = [*NETWORK.trainable_params()]

    def update(self):
        pass


class Given(Callback):
    """Uses what another hook, or the script, has given to it."""

    def __init__(self, held):
        self.held = held

    def on_train_step_end(self, run_context):
        print(self.held)


HOOKED = [calls_what_writes, takes_the_network, takes_the_network_as_item, takes_the_network_by_get, asks_the_optimizer]
HELD = [NETWORK, (NETWORK.weight,), {"by name": [Average()]}, Average().update, NETWORK.weight.asnumpy()]
HELD += [lambda rate, held=NETWORK: held, lambda rate, *, held=NETWORK: held, Model(NETWORK)]


def test_callback_that_may_write_is_not_taken_for_one_that_looks():
    for hook in HOOKED:
        callback = type(hook.__name__, (Callback,), {"on_train_step_end": hook, "__module__": __name__})()
        assert not only_looks(callback, HOOKS), hook.__name__
        assert acting_among([callback]), hook.__name__
    for held in HELD:
        assert not only_looks(Given(held), HOOKS), held
    for held in (RATE, [RATE], np.zeros(3), Meter(), lambda rate, held=RATE: held):
        assert only_looks(Given(held), HOOKS), held


def test_exchanged_hooks_and_lambdas_are_read(monkeypatch):
    assert only_looks(LambdaCallback(on_train_step_end=print), HOOKS)
    assert not only_looks(LambdaCallback(on_train_step_end=lambda run_context: halve(0)), HOOKS)
    monkeypatch.setattr(Callback, "step_end", calls_what_writes)
    assert not only_looks(Losses(), HOOKS)


def test_callback_that_acts_in_a_window_is_named():
    hooks = {name for name in dir(Callback) if name.startswith("on_")}
    for hook in (*hooks, "step_begin", "step_end", "epoch_begin", "epoch_end", "begin", "end"):
        callback = type("Mine", (Callback,), {hook: lambda self, run_context: halve(0)})()
        before = hook in ("on_train_begin", "begin")  # nothing was saved yet
        at_end = (hook.endswith("end") and "step" not in hook) or "eval" in hook
        assert may_write_in_window([callback], []) == ([] if before or at_end else ["Mine"]), hook
        for declared in (type(callback), Callback, callback):  # its class, one of its classes, itself
            assert may_write_in_window([callback], [declared]) == [], (hook, declared)


def test_arguments_of_hooks_are_known():
    """What a hook gets of `Model` and no name forbids holds no parameter."""
    seen = {}

    class Keeps(Callback):
        def on_train_step_end(self, run_context):
            seen.update(run_context.original_args())

    Model(accumulation_cell()).train(1, pipeline(), callbacks=[Keeps()], dataset_sink_mode=False)
    assert "train_network" in seen
    rest = {name: value for name, value in seen.items() if name not in LEADS | {"optimizer"}}
    holding = [name for name, item in rest.items() if isinstance(item, (nn.Cell, ms.Parameter, Callback, ds.Dataset))]
    assert holding == []
    assert all(isinstance(item, (int, str, type(None), Tensor, list, tuple, dict)) for item in rest.values()), rest
