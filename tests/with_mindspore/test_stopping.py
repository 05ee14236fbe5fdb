"""A request to stop is held back and made again, as `Model.train` sees it."""

from __future__ import annotations

import mindspore.train
import pytest
from mindspore.train import Callback, Model, RunContext
from training import Steps, Stop, accumulation_cell, pipeline

from ckptkit.mindspore.stopping import hold_back, may_stop


class Agreeing(Callback):
    """Stops ``later`` micro-steps after somebody asked for it."""

    def __init__(self, later):
        self.later = later
        self.held = None

    def on_train_step_end(self, run_context):
        step = run_context.original_args().cur_step_num
        if hold_back(run_context):
            self.held = step
        if self.held is not None and step == self.held + self.later:
            run_context.request_stop()


@pytest.mark.parametrize(("later", "begun"), [(0, 3), (2, 5), (100, 11)])
def test_training_stops_when_it_is_requested_again(later, begun):
    steps, agreeing = Steps(), Agreeing(later)
    Model(accumulation_cell()).train(1, pipeline(), callbacks=[steps, Stop(3), agreeing])
    assert agreeing.held == 3
    assert steps.begun == begun


def test_without_a_request_nothing_is_held_back():
    context = RunContext({})
    assert not hold_back(context)
    assert not context.get_stop_requested()


def test_a_request_that_is_kept_elsewhere_is_an_error():
    class Moved(mindspore.train.RunContext):
        def get_stop_requested(self):
            return True

    with pytest.raises(AttributeError, match="elsewhere"):
        hold_back(Moved({}))


def test_what_may_stop_is_told_by_its_very_type():
    class Mine(mindspore.train.LossMonitor):
        pass

    assert not any(map(may_stop, (mindspore.train.LossMonitor(), mindspore.train.TimeMonitor())))
    stopping = (Mine(), mindspore.train.EarlyStopping(), mindspore.train.LambdaCallback(), Callback())
    assert all(map(may_stop, stopping))
