"""Optimizers, their rates and their decays."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops
from mindspore.experimental import optim

from exactness.jobs.parts import EPOCHS, Loss, accumulating, slices, updating
from exactness.jobs.run import job


@job("graph")
def adafactor(run):
    loss = Loss()
    weights = loss.trainable_params()
    optimizer = nn.AdaFactor(weights, learning_rate=1e-2, relative_step=False, scale_parameter=False)
    run.train(accumulating(loss, optimizer), EPOCHS, slices())


@job("graph")
def adamax_with_amsgrad_beside(run):
    """Two optimizers over the two halves of a network, in one loop."""
    loss = Loss().set_train()
    weights = loss.trainable_params()
    first, second = nn.AdaMax(weights[:2], 1e-2), nn.Adam(weights[2:], 1e-2, use_amsgrad=True)
    second.update_parameters_name("second.")
    gradients_of = ms.value_and_grad(loss, None, ms.ParameterTuple(weights))

    @ms.jit
    def step(x, y):
        value, gradients = gradients_of(x, y)
        value = ops.depend(value, first(gradients[:2]))
        return ops.depend(value, second(gradients[2:]))

    run.loop([loss, first], slices(), step, second=second)


class FallingDecay(nn.Cell):
    """Weight decay that falls with the steps."""

    def construct(self, step):
        return 0.01 / (1.0 + step.astype(ms.float32))


@job("graph")
def groups_with_rates_and_falling_decay(run):
    loss = Loss()
    weights = loss.trainable_params()
    groups = [
        {"params": weights[:2], "lr": nn.CosineDecayLR(1e-4, 1e-2, 5), "weight_decay": FallingDecay()},
        {"params": weights[2:], "lr": 1e-2},
        {"order_params": weights},
    ]
    run.train(accumulating(loss, nn.AdamWeightDecay(groups, 1e-3)), EPOCHS, slices())


class Counting(nn.learning_rate_schedule.LearningRateSchedule):
    """Counts its own calls, in a parameter."""

    def __init__(self):
        super().__init__()
        self.calls = ms.Parameter(ms.Tensor(0.0), name="schedule.calls", requires_grad=False)

    def construct(self, step):
        calls = self.calls + 1.0
        return ops.depend(0.05 / calls, ops.assign(self.calls, calls))


@job("graph")
def schedule_with_a_counter_of_its_own(run):
    loss = Loss()
    run.train(accumulating(loss, nn.SGD(loss.trainable_params(), Counting())), EPOCHS, slices())


def train_with_scheduler(run, make_scheduler, kind=optim.SGD, **options):
    """Two groups with rates of their own, and a scheduler of `mindspore.experimental`, given by name."""
    loss = Loss().set_train()
    weights = loss.trainable_params()
    optimizer = kind([{"params": weights[:2], "lr": 0.05}, {"params": weights[2:]}], 0.02, **options)
    scheduler = make_scheduler(optimizer)
    update = updating(loss, optimizer)

    def step(x, y):
        value = update(x, y)
        scheduler.step(*([value] if isinstance(scheduler, optim.lr_scheduler.ReduceLROnPlateau) else []))
        return value

    run.loop([loss, optimizer], slices(), step, scheduler=scheduler)


@job("pynative")
def warmup_followed_by_decay(run):
    def make(optimizer):
        warmup = optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
        decay = optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        return optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], [4])

    train_with_scheduler(run, make, optim.Adam)


@job("pynative")
def rate_that_falls_on_a_plateau(run):
    options = {"patience": 0, "factor": 0.5, "threshold": 0.5}
    train_with_scheduler(run, lambda sgd: optim.lr_scheduler.ReduceLROnPlateau(sgd, **options), momentum=0.9)
