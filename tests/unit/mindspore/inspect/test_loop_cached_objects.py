"""Parameters, cells and generators behind `functools.cache` and `cached_property` are named if the loop changes them.

Each loop is read with an empty cache, as in a script that makes everything when it is needed, and after a first call.
"""

# ruff: noqa: B905 - loops as people write them

from __future__ import annotations

import functools

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from support.training import accumulation_cell, begin_process
from test_loop_begun import Training, check_refused

import ckptkit as ck
from ckptkit.mindspore.inspect.loops.containers import results_in
from ckptkit.mindspore.state.manager import StateManager


class Held:
    def __init__(self):
        self.p, self.n = parameter("held"), 0

    def tick(self):
        self.n += 1
        return self.n


def parameter(name):
    return ms.Parameter(ms.Tensor(1.0), name=name)


def network_with_optimizer():
    network = nn.WithLossCell(nn.Dense(6, 1), nn.MSELoss())
    return nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9))


def gradients():
    return ms.Tensor(np.ones((1, 6)), ms.float32), ms.Tensor(np.ones(1), ms.float32)


TARGET = ms.Tensor(np.ones((2, 1)), ms.float32)


@functools.cache
def temperature():
    return parameter("temperature")


@functools.lru_cache
def weight_of(number):
    return parameter(f"weight{number}")


@functools.cache
def weights():
    return [parameter("a"), parameter("b")]


@functools.cache
def weights_by_name(key):
    return {"w": parameter(key)}


@functools.cache
def average():
    return nn.Dense(6, 1)


@functools.cache
def optimizer():
    return nn.Momentum(nn.Dense(6, 1).trainable_params(), 0.1, 0.9)


@functools.cache
def step():
    return network_with_optimizer()


@functools.cache
def generators():
    return {"a": np.random.default_rng(0)}


@functools.cache
def generators_of_names():
    return {name: np.random.default_rng(0) for name in "ab"}


@functools.cache
def generator():
    return np.random.default_rng(0)


@functools.lru_cache(maxsize=1)
def generator_of(seed):
    return np.random.default_rng(seed)


@functools.cache
def rows():
    return iter(range(1000))


@functools.cache
def held():
    return Held()


@functools.cache
def table(size):
    return np.arange(size)


@functools.cache
def mask(size):
    return ms.Tensor(np.ones((size, size)), ms.float32)


CACHES = (temperature, weight_of, weights, weights_by_name, average, optimizer, step, generators, generators_of_names)
CACHES += (generator, generator_of, rows, held, table, mask)


class Trainer:
    @functools.cached_property
    def scale(self):
        return parameter("scale")

    @functools.cached_property
    def generators(self):
        return {"a": np.random.default_rng(0)}

    @functools.cached_property
    def rows(self):
        return iter(range(1000))

    @functools.cached_property
    def average(self):
        return nn.Dense(6, 1)

    @functools.cached_property
    def optimizer(self):
        return nn.Momentum(nn.Dense(6, 1).trainable_params(), 0.1, 0.9)

    @functools.cached_property
    def step(self):
        return network_with_optimizer()


def assigned(cell, x, y, trainer):
    cell(x, y * temperature())
    ops.assign(temperature(), temperature() * 0.9)


def assigned_by_variable(cell, x, y, trainer):
    one = temperature()
    cell(x, y * one)
    ops.assign(one, one * 0.9)


def assigned_of_several(cell, x, y, trainer):
    cell(x, y * weight_of(3))
    ops.assign(weight_of(3), weight_of(3) * 0.9)


def set_data(cell, x, y, trainer):
    cell(x, y * temperature())
    temperature().set_data(temperature() * 0.9)


def in_place(cell, x, y, trainer):
    cell(x, y * temperature())
    temperature().mul_(0.9)


def weight_of_a_cell(cell, x, y, trainer):
    cell(x, y + average()(x).mean())
    ops.assign(average().weight, average().weight * 0.9)


def every_weight(cell, x, y, trainer):
    cell(x, y + average()(x).mean())
    for one, other in zip(average().get_parameters(), cell.network.get_parameters()):
        ops.assign(one, one * 0.9 + other.mean())


def every_named_weight(cell, x, y, trainer):
    cell(x, y + average()(x).mean())
    for _, one in average().parameters_and_names():
        one.set_data(one * 0.9)


def every_weight_of_a_dict(cell, x, y, trainer):
    cell(x, y + average()(x).mean())
    for _, one in average().parameters_dict().items():
        one.set_data(one * 0.9)


def loaded(cell, x, y, trainer):
    cell(x, y + average()(x).mean())
    ms.load_param_into_net(average(), cell.network.parameters_dict())


def listed(cell, x, y, trainer):
    cell(x, y * weights()[0])
    for one in weights():
        ops.assign_add(one, ms.Tensor(1.0))


def by_key(cell, x, y, trainer):
    cell(x, y * weights_by_name("a")["w"])
    weights_by_name("a")["w"].set_data(ms.Tensor(2.0) * y)


def own_optimizer(cell, x, y, trainer):
    cell(x, y)
    optimizer()(gradients())


def own_step(cell, x, y, trainer):
    step()(x, TARGET)


def drawn(cell, x, y, trainer):
    cell(x, y * generator().random())


def drawn_by_key(cell, x, y, trainer):
    cell(x, y * generators()["a"].random())


def drawn_of_names(cell, x, y, trainer):
    cell(x, y * generators_of_names()["a"].random())


def taken(cell, x, y, trainer):
    cell(x, y * next(rows()))


def of_an_object(cell, x, y, trainer):
    cell(x, y * held().p)
    ops.assign(held().p, held().p * 0.9)


def counted_by_an_object(cell, x, y, trainer):
    cell(x, y * held().tick())


def of_a_property(cell, x, y, trainer):
    cell(x, y * trainer.scale)
    ops.assign(trainer.scale, trainer.scale * 0.9)


def drawn_of_a_property(cell, x, y, trainer):
    cell(x, y * trainer.generators["a"].random())


def taken_of_a_property(cell, x, y, trainer):
    cell(x, y * next(trainer.rows))


def average_of_a_property(cell, x, y, trainer):
    cell(x, y + trainer.average(x).mean())
    for one, other in zip(trainer.average.get_parameters(), cell.network.get_parameters()):
        ops.assign(one, one * 0.9 + other.mean())


def optimizer_of_a_property(cell, x, y, trainer):
    cell(x, y)
    trainer.optimizer(gradients())


def step_of_a_property(cell, x, y, trainer):
    trainer.step(x, TARGET)


LOST = [
    *(assigned, assigned_by_variable, assigned_of_several, set_data, in_place, weight_of_a_cell, every_weight),
    *(every_named_weight, every_weight_of_a_dict, loaded, listed, by_key, own_optimizer, own_step, drawn),
    *(drawn_by_key, drawn_of_names, taken, of_an_object, counted_by_an_object, of_a_property, drawn_of_a_property),
    *(taken_of_a_property, average_of_a_property, optimizer_of_a_property, step_of_a_property),
]


@pytest.fixture(autouse=True)
def empty_caches():
    for one in CACHES:
        one.cache_clear()


@pytest.mark.parametrize("iteration", LOST, ids=lambda one: one.__name__)
def test_object_that_a_cache_will_make_is_named(iteration):
    def loop(cell, batches, rate, restore):
        trainer = Trainer()
        restore()
        for x, y in batches:
            iteration(cell, x, y, trainer)

    check_refused(loop)


@pytest.mark.parametrize(
    ("iteration", "made"),
    [
        *((one, temperature) for one in (assigned, assigned_by_variable, set_data, in_place)),
        *((one, average) for one in (weight_of_a_cell, every_weight, every_named_weight, loaded)),
        *((one, average) for one in (every_weight_of_a_dict,)),
        *[(listed, weights), (own_optimizer, optimizer), (own_step, step), (drawn_by_key, generators)],
        *[(drawn, generator), (taken, rows), (of_an_object, held), (counted_by_an_object, held)],
        (assigned_of_several, functools.partial(weight_of, 3)),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_object_that_a_cache_holds_is_named(iteration, made):
    made()

    def loop(cell, batches, rate, restore):
        restore()
        for x, y in batches:
            iteration(cell, x, y, None)

    check_refused(loop)


def teacher(cell, x, y, trainer):
    average().set_train(False)
    cell(x, y + average()(x).mean() + average().weight.sum() + trainer.average(x).mean() * trainer.scale)


def tables(cell, x, y, trainer):
    own, other = table(3).copy(), mask(2) * 2
    own[0] = 4
    other.add_(1.0)
    cell(x, y * own[0] + other.sum() + mask(3).sum() * table(4)[2])


@pytest.mark.parametrize("iteration", [teacher, tables], ids=lambda one: one.__name__)
@pytest.mark.parametrize("is_made", [False, True], ids=["later", "made"])
def test_what_is_only_read_is_quiet(iteration, is_made):
    if is_made:
        iteration(accumulation_cell(), ms.Tensor(np.ones((2, 6)), ms.float32), ms.Tensor(0.5), Trainer())

    def loop(cell, batches, rate, restore):
        trainer = Trainer()
        restore()
        for x, y in batches:
            iteration(cell, x, y, trainer)

    Training(strict=True).train(loop)


@pytest.mark.parametrize(
    ("iteration", "made"),
    [
        *((one, temperature) for one in (assigned, assigned_by_variable, set_data, in_place)),
        *((one, average) for one in (weight_of_a_cell, every_weight, every_named_weight, every_weight_of_a_dict)),
        *[(listed, weights), (own_optimizer, optimizer), (own_step, step), (drawn, generator)],
        (assigned_of_several, functools.partial(weight_of, 3)),
        (of_an_object, lambda: ck.attributes(held(), "p")),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_is_given_by_name_is_quiet(iteration, made):
    begin_process()
    cell = accumulation_cell()
    batches = ck.data.resumable([(ms.Tensor(np.ones((2, 6)), ms.float32), ms.Tensor(0.5))], 2)
    state = StateManager(cell, batches, strict=True, made=made())
    state.begin("runs/digits")
    state.progress()
    for x, y in batches:
        iteration(cell, x, y, None)


def test_generator_of_a_bounded_cache_is_known_by_name():
    begin_process()
    cell = accumulation_cell()
    batches = ck.data.resumable([(ms.Tensor(np.ones((2, 6)), ms.float32), ms.Tensor(0.5))], 2)
    state = StateManager(cell, batches, strict=True, rng=generator_of(3))
    state.begin("runs/digits")
    state.progress()
    for x, y in batches:
        cell(x, y * generator_of(3).random())


def test_results_of_a_cache_are_found():
    """Fails if Python keeps them elsewhere: then objects that a cache holds are taken for objects that it will make."""
    weight_of(3), weight_of(4), temperature()
    assert [one.name for one in results_in(weight_of)] == ["weight3", "weight4"]
    assert results_in(temperature) == [temperature()]
    assert results_in(average) == []
