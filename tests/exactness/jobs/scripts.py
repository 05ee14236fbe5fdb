"""Trainings as scripts: in two stages, with callbacks that set the learning rate, and what no resume can continue."""

import mindspore as ms
from mindspore import nn, ops
from mindspore.train import Callback

from exactness.jobs.parts import BATCH, EPOCHS, FEATURES, STEPS, K, Loss, accumulating, adam, slices
from exactness.jobs.run import job

NEW_MEMORY = ("learning_rate got new memory", "ops.assign(parameter, value)")


@job("graph", kill=1, stage="large")
def larger_batches_in_a_run_of_their_own(run):
    """Killed at the beginning of the second stage, whose weights are those that the first one has left."""
    loss = Loss()
    for stage, batch in (("small", BATCH), ("large", 2 * BATCH)):
        run.enter(stage)
        run.train(accumulating(loss), 1, slices(batch), root=stage)


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


@job("pynative")
def rate_assigned_by_a_callback(run):
    train(run, ops.assign, steps=range(1, EPOCHS * STEPS), epochs=(1, 2))


@job("pynative", refused=NEW_MEMORY, trained=K)
def rate_set_by_set_data_after_the_first_update(run):
    train(run, ms.Parameter.set_data, steps=(K,))


@job("pynative", refused=NEW_MEMORY, by="resumed", kill=STEPS + 1, trained=K + 1)
def rate_set_by_set_data_at_an_epoch(run):
    """The killed process had not yet saved it; in the resumed one, the update would see it."""
    train(run, ms.Parameter.set_data, epochs=(2,))


@job("pynative", refused=("global_step", "by name"))
def two_optimizers_in_one_list(run):
    maker, critic = nn.Dense(4, FEATURES), nn.Dense(FEATURES, 1)
    critic.update_parameters_name("critic.")
    optimizers = [adam(maker), nn.RMSProp(critic.trainable_params(), 1e-2)]
    run.loop([maker, critic, *optimizers], slices(), lambda x, y: None)
