"""Which callbacks of the user's reach no parameter within an epoch, so that no save copies everything for them."""

import logging
import math

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
    return float(outputs.asnumpy().mean()) if isinstance(outputs, Tensor) else outputs


def halve(_):
    NETWORK.weight.set_data(NETWORK.weight * 0.5)


class Meter:
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)


class Losses(Callback):
    def __init__(self):
        super().__init__()
        self.meters, self.best = {"loss": Meter()}, {"loss": math.inf, "step": None}

    def on_train_step_end(self, run_context):
        cb_params = run_context.original_args()
        loss = number_of(getattr(cb_params, "net_outputs", None))
        for meter in self.meters.values():
            meter.update(loss)
        if loss < self.best["loss"]:
            self.best["loss"], self.best["step"] = loss, cb_params["cur_step_num"]
        logger.info("loss %s of %s", np.mean(loss), cb_params.get("net_outputs"))


class Monitor(LossMonitor):
    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)


def hooked(hook, name="on_train_step_end"):
    return type("Mine", (Callback,), {name: hook, "__module__": __name__})()


LOOKING = [
    lambda self, run_context: print("lr", run_context.original_args().optimizer.learning_rate.asnumpy(), RATE),
    lambda self, run_context: run_context.request_stop(),
    lambda self, run_context: print(np.random.rand()),
]
WRITING = [
    lambda self, run_context: halve(run_context.original_args().cur_step_num),
    lambda self, run_context: print(run_context.original_args().train_network.trainable_params()),
    lambda self, run_context: run_context.original_args()["train_network"].update(),
    lambda self, run_context: print(run_context.original_args().optimizer.parameters[0].asnumpy()),
]


def test_callback_that_reaches_no_parameter_only_looks():
    assert only_looks(Losses(), HOOKS)
    assert acting_among([Losses()]) == []
    for acting in (*map(hooked, LOOKING), hooked(WRITING[0], "on_train_epoch_end"), Monitor()):
        assert only_looks(acting, HOOKS)
        assert acting_among([acting]) == [acting]


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


HELD = [NETWORK, (NETWORK.weight,), {"by name": [Average()]}, Average().update, NETWORK.weight.asnumpy()]
HELD += [lambda rate, held=NETWORK: held, lambda rate, *, held=NETWORK: held, Model(NETWORK)]


def test_callback_that_may_write_is_not_taken_for_one_that_looks(monkeypatch):
    for number, hook in enumerate(WRITING):
        assert not only_looks(hooked(hook), HOOKS), number
        assert acting_among([hooked(hook)]), number
    for held in HELD:
        assert not only_looks(Given(held), HOOKS), held
    for held in (RATE, [RATE], np.zeros(3), Meter(), lambda rate, held=RATE: held):
        assert only_looks(Given(held), HOOKS), held
    assert only_looks(LambdaCallback(on_train_step_end=print), HOOKS)
    assert not only_looks(LambdaCallback(on_train_step_end=lambda run_context: halve(0)), HOOKS)
    monkeypatch.setattr(Callback, "step_end", WRITING[0])
    assert not only_looks(Losses(), HOOKS), "an exchanged hook"


def test_callback_that_acts_in_a_window_is_named():
    hooks = {name for name in dir(Callback) if name.startswith("on_")}
    for hook in (*hooks, "step_begin", "step_end", "epoch_begin", "epoch_end", "begin", "end"):
        callback = hooked(WRITING[0], hook)
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
    for item in rest.values():
        assert not isinstance(item, (nn.Cell, ms.Parameter, Callback, ds.Dataset)), rest
        assert isinstance(item, (int, str, type(None), Tensor, list, tuple, dict)), rest
