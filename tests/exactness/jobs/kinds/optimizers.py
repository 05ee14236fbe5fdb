"""Optimizers, their rates and their decays."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.experimental import optim

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Named, Refused, Told
from exactness.jobs.parts import EPOCHS, Loss, accumulating, adam, slices, train


class Layerwise(nn.Optimizer):
    """LAMB by hand: the step of each layer is as long as its weights are."""

    def __init__(self, weights, rate):
        super().__init__(rate, weights, weight_decay=0.01)
        self.first, self.second = self.parameters.clone("first", "zeros"), self.parameters.clone("second", "zeros")

    def construct(self, gradients):
        gradients = self.decay_weight(gradients)
        rate = self.get_lr()
        for weight, first, second, gradient in zip(self.parameters, self.first, self.second, gradients):  # noqa: B905
            ops.assign(first, 0.9 * first + 0.1 * gradient)
            ops.assign(second, 0.99 * second + 0.01 * gradient**2)
            update = first / (ops.sqrt(second) + 1e-6)
            trust = ops.sqrt((weight**2).sum()) / (ops.sqrt((update**2).sum()) + 1e-6)
            ops.assign_sub(weight, rate * trust * update)
        return True


@job(Exact(), "graph")
def layerwise_rates_by_hand(run):
    loss = Loss()
    train(run, loss, Layerwise(loss.trainable_params(), nn.WarmUpLR(1e-2, 3)))


@job(Exact(), "graph")
def adafactor(run):
    loss = Loss()
    train(
        run, loss, nn.AdaFactor(loss.trainable_params(), learning_rate=1e-2, relative_step=False, scale_parameter=False)
    )


@job(Exact(), "pynative")
def averaged_stochastic_descent(run):
    loss = Loss()
    train(run, loss, nn.ASGD(loss.trainable_params(), 0.05, t0=2.0))


@job(Exact(), "pynative")
def resilient_propagation(run):
    loss = Loss()
    train(run, loss, nn.Rprop(loss.trainable_params(), 0.01))


@job(Exact(), "graph")
def follow_the_regularized_leader(run):
    loss = Loss()
    train(run, loss, nn.FTRL(loss.trainable_params(), learning_rate=0.05, l1=1e-4))


@job(Exact(), "graph")
def adamax_with_amsgrad_beside(run):
    """Two optimizers over the two halves of a network, in one loop."""
    loss = Loss().set_train()
    weights = loss.trainable_params()
    first, second = nn.AdaMax(weights[:2], 1e-2), nn.Adam(weights[2:], 1e-2, use_amsgrad=True)
    second.update_parameters_name("second.")
    gradients = ms.value_and_grad(loss, None, ms.ParameterTuple(weights))

    @ms.jit
    def step(x, y):
        value, grads = gradients(x, y)
        value = ops.depend(value, first(grads[:2]))
        return ops.depend(value, second(grads[2:]))

    run.loop([loss, first], ck.data.resumable(slices(), EPOCHS), step, second=second)


class Decay(nn.Cell):
    """Weight decay that falls with the steps."""

    def construct(self, step):
        return 0.01 / (1.0 + step.astype(ms.float32))


@job(Exact(), "graph")
def groups_with_rates_and_falling_decay(run):
    loss = Loss()
    weights = loss.trainable_params()
    groups = [
        {"params": weights[:2], "lr": nn.CosineDecayLR(1e-4, 1e-2, 5), "weight_decay": Decay()},
        {"params": weights[2:], "lr": 1e-2},
        {"order_params": weights},
    ]
    train(run, loss, nn.AdamWeightDecay(groups, 1e-3))


class Counting(nn.learning_rate_schedule.LearningRateSchedule):
    """Counts its own calls, in a parameter."""

    def __init__(self):
        super().__init__()
        self.calls = ms.Parameter(ms.Tensor(0.0), name="schedule.calls", requires_grad=False)

    def construct(self, step):
        calls = self.calls + 1.0
        return ops.depend(0.05 / calls, ops.assign(self.calls, calls))


@job(Exact(), "graph")
def schedule_with_a_counter_of_its_own(run):
    loss = Loss()
    train(run, loss, nn.SGD(loss.trainable_params(), Counting()))


class Lookahead(nn.Cell):
    """Slow weights that the fast ones return to after each third step."""

    def __init__(self, loss, optimizer):
        super().__init__()
        self.loss, self.optimizer = loss, optimizer
        self.fast = optimizer.parameters
        self.slow = self.fast.clone("slow", "same")
        self.count = ms.Parameter(ms.Tensor(0, ms.int32), name="count", requires_grad=False)
        self.differentiate = ms.value_and_grad(loss, None, self.fast)

    def construct(self, x, y):
        value, gradients = self.differentiate(x, y)
        value = ops.depend(value, self.optimizer(gradients))
        ops.assign_add(self.count, ms.Tensor(1, ms.int32))
        if self.count % 3 == 0:
            for fast, slow in zip(self.fast, self.slow):  # noqa: B905 - GRAPH knows no strict=
                ops.assign(slow, slow + 0.5 * (fast - slow))
                ops.assign(fast, slow)
        return value


@job(Exact(), "pynative")
@job(Exact(), "graph")
def lookahead_in_the_train_cell(run):
    loss = Loss()
    cell = Lookahead(loss, adam(loss))
    run.train(ms.Model(cell), EPOCHS, slices())


class Sharpness(nn.TrainOneStepCell):
    """SAM: climbs first, and takes the gradients there."""

    def construct(self, x, y):
        value = self.network(x, y)
        first = self.grad(self.network, self.weights)(x, y, ops.fill(value.dtype, value.shape, 1.0))
        norm = ops.sqrt(sum([(one**2).sum() for one in first])) + 1e-12
        for weight, one in zip(self.weights, first):  # noqa: B905
            ops.assign_add(weight, 0.05 * one / norm)
        second = self.grad(self.network, self.weights)(x, y, ops.fill(value.dtype, value.shape, 1.0))
        for weight, one in zip(self.weights, first):  # noqa: B905
            ops.assign_sub(weight, 0.05 * one / norm)
        self.optimizer(second)
        return value


@job(Exact(), "pynative")
def sharpness_aware_in_two_passes(run):
    loss = Loss()
    run.train(ms.Model(Sharpness(loss, nn.Momentum(loss.trainable_params(), 0.05, 0.9))), EPOCHS, slices())


class Orthogonal(nn.Optimizer):
    """Momentum, made orthogonal by Newton-Schulz iterations where it is a matrix."""

    def __init__(self, weights, rate):
        super().__init__(rate, weights)
        self.moments = self.parameters.clone("moments", "zeros")

    def construct(self, gradients):
        for weight, moment, gradient in zip(self.parameters, self.moments, gradients):  # noqa: B905
            ops.assign(moment, 0.9 * moment + gradient)
            update = moment
            if moment.ndim == 2:
                update = moment / (ops.sqrt((moment**2).sum()) + 1e-7)
                for _ in range(3):
                    update = 1.5 * update - 0.5 * ops.matmul(ops.matmul(update, update.T), update)
            ops.assign_sub(weight, self.get_lr() * update)
        return True


@job(Exact(), "pynative")
def momentum_made_orthogonal(run):
    loss = Loss()
    train(run, loss, Orthogonal(loss.trainable_params(), 0.02))


def with_scheduler(run, make_scheduler, name="scheduler"):
    """A loop with an optimizer of `mindspore.experimental`."""
    loss = Loss().set_train()
    weights = loss.trainable_params()
    optimizer = optim.SGD([{"params": weights[:2], "lr": 0.05}, {"params": weights[2:]}], 0.02, momentum=0.9)
    scheduler = make_scheduler(optimizer)
    gradients = ms.value_and_grad(loss, None, optimizer.parameters)

    def step(x, y):
        value, grads = gradients(x, y)
        optimizer(grads)
        if isinstance(scheduler, optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(value)
        else:
            scheduler.step()
        return value

    run.loop([loss, optimizer], ck.data.resumable(slices(), EPOCHS), step, **({name: scheduler} if name else {}))


@job(Exact(), "pynative")
def cosine_with_warm_restarts(run):
    with_scheduler(run, lambda optimizer: optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3, 2))


@job(Exact(), "pynative")
def warmup_followed_by_decay(run):
    def make(optimizer):
        warmup = optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
        decay = optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        return optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], [4])

    with_scheduler(run, make)


@job(Exact(), "pynative")
def rate_that_falls_on_a_plateau(run):
    with_scheduler(
        run, lambda optimizer: optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=0.5)
    )


# With 7, a schedule that begins anew decays at other steps, from whichever save near the kill the run resumes.
@job(Named("scheduler"), "pynative")
def scheduler_that_was_not_given_by_name(run):
    with_scheduler(run, lambda optimizer: optim.lr_scheduler.StepLR(optimizer, 7, 0.5), name=None)


@job(Exact(), "pynative")
def decoupled_decay_of_experimental_adamw(run):
    loss = Loss().set_train()
    optimizer = optim.AdamW(loss.trainable_params(), 1e-2, weight_decay=0.1, amsgrad=True)
    gradients = ms.value_and_grad(loss, None, optimizer.parameters)

    def step(x, y):
        value, grads = gradients(x, y)
        optimizer(ops.clip_by_global_norm(grads, 0.1))
        return value

    run.loop([loss, optimizer], ck.data.resumable(slices(), EPOCHS), step)


def by_hand(run, name):
    """Adam written by hand, with its moments in a plain list."""
    loss = Loss().set_train()
    weights = loss.trainable_params()
    moments = [
        {key: ms.Parameter(ops.zeros_like(weight), name=f"{key}.{weight.name}") for key in ("m", "v")}
        for weight in weights
    ]
    gradients = ms.value_and_grad(loss, None, weights)
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        named = {name: ms.ParameterTuple([one for pair in moments for one in pair.values()])} if name else {}
        state = ck.StateManager([loss], batches, **named)
        run.begin(manager.restore(state))
        for x, y in batches:
            value, grads = gradients(x, y)
            for weight, moment, grad in zip(weights, moments, grads, strict=True):
                moment["m"].set_data(0.9 * moment["m"] + 0.1 * grad)
                moment["v"].set_data(0.99 * moment["v"] + 0.01 * grad**2)
                weight.set_data(weight - 0.01 * moment["m"] / (ops.sqrt(moment["v"]) + 1e-8))
            run.step((x, y), value, loss=loss, moments=moments)
            manager.step(state)


@job(Told("moments"), "pynative")
def adam_by_hand_with_forgotten_moments(run):
    by_hand(run, None)


@job(Exact(), "pynative")
def adam_by_hand_with_named_moments(run):
    by_hand(run, "moments")


class Scale:
    """A loss scale of somebody's own, a plain float."""

    def __init__(self):
        self.value = 1024.0


@job(Refused(("state_dict", "scale")), "pynative", default=True)
def scale_object_without_a_state(run):
    run.loop(accumulating(), ck.data.resumable(slices(), EPOCHS), scale=Scale())


@job(Exact(), "graph")
def rate_by_mindspores_scheduler_callback(run):
    def rate(rate, step):
        return 0.01 * (1 + np.cos(step))

    train(run, callbacks=[ms.train.LearningRateScheduler(rate)])


@job(Exact(), "graph")
def gradients_centred_and_adam_without_bias(run):
    loss = Loss()
    weights = loss.trainable_params()
    groups = [
        {"params": [weights[0], weights[2]], "grad_centralization": True},
        {"params": [weights[1], weights[3]], "weight_decay": 0.0},
    ]
    train(run, loss, nn.Adam(groups, [0.01 / (1 + i) for i in range(16)], weight_decay=0.01, use_nesterov=True))
