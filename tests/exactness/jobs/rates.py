"""Callbacks that set the learning rate: in its memory, or by other memory that a compiled update does not see."""

from __future__ import annotations

import mindspore as ms
from mindspore import ops
from mindspore.train import Callback, LearningRateScheduler

from exactness.jobs.parts import EPOCHS, STEPS, K, accumulating, slices
from exactness.jobs.run import job

NEW_MEMORY = ("learning_rate got new memory", "ops.assign(parameter, value)")


class SetsRate(Callback):
    def __init__(self, change, *, steps=(), epochs=()):
        super().__init__()
        self.change, self.steps, self.epochs = change, steps, epochs

    def on_train_epoch_begin(self, run_context):
        args = run_context.original_args()
        if args.cur_epoch_num in self.epochs:
            self.change(args.train_network.optimizer.learning_rate, ms.Tensor(0.3, ms.float32))

    def on_train_step_end(self, run_context):
        args = run_context.original_args()
        if args.cur_step_num in self.steps:
            self.change(args.train_network.optimizer.learning_rate, ms.Tensor(0.1 / args.cur_step_num, ms.float32))


def train(run, change, **moments):
    run.train(accumulating(), EPOCHS, slices(), callbacks=[SetsRate(change, **moments)])


def set_data(rate, value):
    rate.set_data(value)


@job("pynative", default=True)
def rate_assigned_by_a_callback(run):
    train(run, ops.assign, steps=range(1, EPOCHS * STEPS), epochs=(1, 2))


@job("pynative", kill=2)
def rate_set_by_set_data_before_the_first_update(run):
    train(run, set_data, steps=(1,), epochs=(1,))


@job("graph")
def rate_set_by_set_data_in_a_graph(run):
    train(run, set_data, steps=range(1, EPOCHS * STEPS), epochs=(1, 2))


@job("pynative")
def rate_set_by_mindspore(run):
    run.train(accumulating(), EPOCHS, slices(), callbacks=[LearningRateScheduler(lambda rate, step: rate * 0.9)])


@job("pynative", refused=NEW_MEMORY, trained=K, default=True)
def rate_set_by_set_data_after_the_first_update(run):
    train(run, set_data, steps=(K,))


@job("pynative", refused=NEW_MEMORY, trained=K + 1)
def rate_set_by_set_data_after_the_second_micro_step_of_a_cycle(run):
    train(run, set_data, steps=(K + 1,))


@job("pynative", refused=NEW_MEMORY, by="resumed", kill=STEPS + 1, trained=K + 1, default=True)
def rate_set_by_set_data_at_an_epoch(run):
    """The killed process had not yet saved it; in the resumed one, the update would see it."""
    train(run, set_data, epochs=(2,))
