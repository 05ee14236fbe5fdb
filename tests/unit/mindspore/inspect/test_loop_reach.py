"""What a loop changes is named wherever training reads it: in modules, compiled functions, cells, inner loops."""

from __future__ import annotations

import collections
import sys
import types

import mindspore as ms
import numpy as np
import pytest
from mindspore import amp, nn, ops
from mindspore.train import Callback, LearningRateScheduler
from test_loops import Training

from ckptkit.mindspore.inspect import find_in_steps_of_callbacks

config = types.ModuleType("config_of_the_job")
config.KL = 0.0
sys.modules[config.__name__] = config
SCALE = 1.0


class Regularized(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(2, 1)

    def construct(self, x):
        y = self.dense(x)
        return y * scale_of(y)


def scale_of(y):
    return SCALE + config.KL * y.square().mean()


regularized = Regularized()


@ms.jit
def compiled(x):
    bias = x * 0
    return x * SCALE + bias


class Trainer:
    def __init__(self):
        self.beta, self.gamma = 0.0, 0.0

    @ms.jit
    def step(self, x):
        return x * self.beta

    def shown(self):
        return self.gamma


class Endless:
    """Has no ``__iter__``."""

    def __init__(self, rows):
        self.rows, self.left = rows, iter(rows)

    def __next__(self):
        try:
            return next(self.left)
        except StopIteration:
            self.left = iter(self.rows)
            return next(self.left)


class Numbers:
    def __init__(self):
        self.at = 0

    def __next__(self):
        self.at += 1
        return self.at


def value_of_a_module(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * config.KL, y)
        config.KL = min(1.0, config.KL + 0.1)


def imports_it():
    import config_of_the_job as settings

    settings.KL = min(1.0, settings.KL + 0.1)
    return settings.KL


def imports_what_it_holds():
    from config_of_the_job import KL

    return KL


def module_imported_in_a_function(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * imports_it(), y)


def value_imported_in_a_function(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * imports_what_it_holds(), y)
        config.KL += 0.1


def module_read_by_a_cell(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(regularized(x), y)
        config.KL += 0.1


def global_read_by_a_cell(cell, batches, rate, restore):
    global SCALE  # noqa: PLW0603 - as people write it
    restore()
    for x, y in batches:
        cell(regularized(x), y)
        SCALE = SCALE * 0.9


def tolerance_that_ends_an_inner_loop(cell, batches, rate, restore):
    tolerance = 2.0
    restore()
    for x, y in batches:
        for _ in range(3):
            loss = cell(x, y)
            if float(loss) < tolerance:
                tolerance *= 0.95
                break


def train_until(cell, x, y, kept):
    for _ in range(3):
        if float(cell(x, y)) < kept[0]:
            return


def tolerance_that_ends_a_function(cell, batches, rate, restore):
    kept = [2.0]
    restore()
    for x, y in batches:
        train_until(cell, x, y, kept)
        kept[0] *= 0.95


def without_iter(cell, batches, rate, restore):
    numbers = Numbers()
    restore()
    for x, y in batches:
        cell(x * next(numbers), y)


def endless_without_iter(cell, batches, rate, restore):
    endless = Endless([1, 2, 3])
    restore()
    for x, y in batches:
        cell(x * next(endless), y)


def global_in_a_compiled_function(cell, batches, rate, restore):
    global SCALE  # noqa: PLW0603 - as people write it
    point = restore()
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        SCALE = 1 / (at + 1)
        cell(compiled(x), y)


def attribute_in_a_compiled_method(cell, batches, rate, restore):
    trainer = Trainer()
    point = restore()
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        trainer.beta = at / 10
        cell(trainer.step(x), y)


LOSSES = {"mse": nn.MSELoss(), "l1": nn.L1Loss()}
ORDER = ["mse", "l1"]


def loss_by_a_key(cell, batches, rate, restore):
    criterion = LOSSES["mse"]
    point = restore()
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        if at % 8 == 0:
            criterion = LOSSES[ORDER[at // 8]]
        cell(criterion(x, x), y)


def draw_for_each_epoch(cell, batches, rate, restore):
    epoch, order = -1, None
    restore()
    for x, y in batches:
        if batches.epoch != epoch:
            epoch = batches.epoch
            order = ms.Tensor(np.random.permutation(2))
        cell(x * order, y)


def optimizer_of_each_epoch(cell, batches, rate, restore):
    epoch, optimizer = -1, nn.SGD(regularized.trainable_params())
    restore()
    for x, y in batches:
        if batches.epoch != epoch:
            epoch = batches.epoch
            optimizer = nn.SGD(regularized.trainable_params())
        cell(x, y)
        optimizer([x])


def strong_step(cell, x, y):
    cell(x * 2, y)


def weak_step(cell, x, y):
    cell(x, y)


def step_that_is_rebound(cell, batches, rate, restore):
    step = weak_step
    restore()
    for x, y in batches:
        step(cell, x, y)
        if float(x.mean()) < 1:
            step = strong_step


def alias_of_an_item(cell, batches, rate, restore):
    settings = {"optimizer": {"rate": 0.1}}
    inner = settings["optimizer"]
    restore()
    for x, y in batches:
        cell(x * settings["optimizer"]["rate"], y)
        inner["rate"] *= 0.9


def alias_of_a_list(cell, batches, rate, restore):
    history = []
    losses = history
    restore()
    for x, y in batches:
        losses.append(float(cell(x, y)))
        rate.set_data(ms.Tensor(sum(history)))


def view_of_an_array(cell, batches, rate, restore):
    statistics = np.zeros((2, 2), np.float32)
    mean, _ = statistics
    restore()
    for x, y in batches:
        mean += x.asnumpy().mean(0)
        cell(x - ms.Tensor(statistics[0].copy()), y)


def hook_that_comes_later(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        if float(cell(regularized(x), y)) < 1:
            regularized.dense.register_forward_hook(lambda one, given, output: output * 2)


def type_that_changes(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        if float(cell(regularized(x), y)) < 1:
            regularized.dense.to_float(ms.float16)


HANDLERS = {"end": [], "begin": []}
AVERAGE = {"loss": 1.0}


def track(loss):
    AVERAGE["loss"] = 0.9 * AVERAGE["loss"] + 0.1 * loss


def use(rate):
    rate.set_data(ms.Tensor(AVERAGE["loss"]))


HANDLERS["end"].append(track)
HANDLERS["begin"].append(use)


def fire(event, **given):
    for handler in HANDLERS[event]:
        handler(**given)


def bus_of_events(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        fire("begin", rate=rate)
        fire("end", loss=float(cell(x, y)))


class Averages(collections.UserDict):
    def add(self, name, value):
        self[name] = 0.9 * self.get(name, value) + 0.1 * value
        return self[name]


def user_dict(cell, batches, rate, restore):
    averages = Averages()
    restore()
    for x, y in batches:
        rate.set_data(ms.Tensor(averages.add("loss", float(cell(x, y)))))


class Warmup:
    def __init__(self):
        self.steps = 0

    def on_step_begin(self, rate):
        self.steps += 1
        rate.set_data(ms.Tensor(self.steps / 10))

    def on_step_end(self, rate):
        pass


def emit(event, parts, rate):
    for one in parts:
        getattr(one, "on_" + event)(rate)


def name_that_is_joined(cell, batches, rate, restore):
    parts = [Warmup()]
    restore()
    for x, y in batches:
        emit("step_begin", parts, rate)
        cell(x, y)
        emit("step_end", parts, rate)


@pytest.mark.parametrize(
    ("loop", "where"),
    [
        (draw_for_each_epoch, "order"),
        (user_dict, "averages (Averages)"),
        (name_that_is_joined, "parts[0] (Warmup)"),
        (optimizer_of_each_epoch, "optimizer"),
        (step_that_is_rebound, "step"),
        (alias_of_an_item, "inner"),
        (alias_of_a_list, "losses"),
        (view_of_an_array, "mean"),
        (hook_that_comes_later, "regularized.dense (Dense)"),
        (type_that_changes, "regularized.dense (Dense)"),
        (bus_of_events, "AVERAGE"),
        (value_of_a_module, "config.KL"),
        (module_imported_in_a_function, "settings.KL"),
        (value_imported_in_a_function, "config_of_the_job.KL"),
        (module_read_by_a_cell, "config.KL"),
        (global_read_by_a_cell, "SCALE"),
        (tolerance_that_ends_an_inner_loop, "tolerance"),
        (tolerance_that_ends_a_function, "kept"),
        (without_iter, "numbers (Numbers)"),
        (endless_without_iter, "endless.left (list_iterator)"),
        (global_in_a_compiled_function, "SCALE"),
        (attribute_in_a_compiled_method, "trainer.beta"),
        (loss_by_a_key, "criterion"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_training_reads_is_named(loop, where):
    found = {one.where.removeprefix(f"{loop.__name__}(): ") for one in Training(regularized=regularized).found(loop)}
    assert found - {"epoch", "optimizer (nn.SGD)"} == {where}  # what else is true of the optimizer of each epoch


@pytest.mark.parametrize("loop", [module_read_by_a_cell, global_read_by_a_cell], ids=lambda one: one.__name__)
def test_graph_has_it_as_a_constant(loop):
    training = Training(regularized=regularized)
    ms.set_context(mode=ms.GRAPH_MODE)
    found = [one for one in training.found(loop) if "compiled function keeps the value" in str(one)]
    assert [one.where for one in found] == [
        f"{loop.__name__}(): {'SCALE' if 'global' in loop.__name__ else 'config.KL'}"
    ]


def module_set_from_the_position(cell, batches, rate, restore):
    point = restore()
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        config.KL = at / 10
        cell(regularized(x) * config.KL, y)


def module_that_is_only_shown(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        config.shown = float(cell(x, y))
        print(config.shown)


def inner_loop_that_only_looks(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        for one in range(3):
            if one > 1:
                break
        cell(x, y)


def attribute_that_no_compiled_method_reads(cell, batches, rate, restore):
    trainer = Trainer()
    restore()
    for x, y in batches:
        cell(trainer.step(x), y)
        trainer.gamma += 1
        print(trainer.shown())


SCALER = amp.DynamicLossScaler(2.0**10, 2, 50)


@ms.jit
def scaled(x):
    return SCALER.scale(x)


def scaler_in_a_compiled_function(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(scaled(x), y)
        SCALER.scale_value = SCALER.scale_value


def test_object_with_parameters_is_no_constant_of_a_compiled_function():
    """A graph reads its parameters, and calls its methods."""
    found = Training().found(scaler_in_a_compiled_function)
    assert [one for one in found if "compiled function keeps" in str(one)] == []


@pytest.mark.parametrize(
    "loop",
    [
        module_set_from_the_position,
        module_that_is_only_shown,
        inner_loop_that_only_looks,
        attribute_that_no_compiled_method_reads,
    ],
    ids=lambda one: one.__name__,
)
def test_what_training_does_not_read_is_not_named(loop):
    assert Training(regularized=regularized).found(loop) == []


class Drop(nn.Cell):
    def __init__(self):
        super().__init__()
        self.rate = 0.0

    def construct(self, x):
        return x * (1 - self.rate)


class Ramp(Callback):
    def on_train_step_end(self, run_context):
        for _, one in run_context.original_args().train_network.cells_and_names():
            if isinstance(one, Drop):
                one.rate = min(0.5, one.rate + 0.1)


class OnTheOptimizer(Callback):
    def on_train_step_end(self, run_context):
        optimizer = run_context.original_args().optimizer
        optimizer.bad = getattr(optimizer, "bad", 0) + 1
        if optimizer.bad > 3:
            ops.assign(optimizer.learning_rate, optimizer.learning_rate * 0.5)


class ByModule(Callback):
    def on_train_step_end(self, run_context):
        config.KL += 0.1


class ByItem(Callback):
    def on_train_step_end(self, run_context):
        arguments = run_context.original_args()
        arguments["bad"] = arguments.get("bad", 0) + 1
        if arguments["bad"] > 3:
            ops.assign(arguments.optimizer.learning_rate, arguments.optimizer.learning_rate * 0.5)


class Looks(Callback):
    def on_train_step_end(self, run_context):
        arguments = run_context.original_args()
        print(arguments.cur_step_num, float(arguments.net_outputs), arguments.optimizer.learning_rate)
        config.shown = arguments.train_network


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (Ramp, ["one (Drop)"]),
        (OnTheOptimizer, ["run_context.original_args.optimizer (Momentum)"]),
        (ByModule, ["config.KL"]),
        (ByItem, ["run_context.original_args"]),
        (Looks, []),
    ],
)
def test_what_a_callback_reaches_is_named(kind, where):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network = nn.SequentialCell(Regularized(), Drop(), nn.Dense(1, 1))
    trained = nn.TrainOneStepCell(
        nn.WithLossCell(network, nn.MSELoss()), nn.Momentum(network.trainable_params(), 0.1, 0.9)
    )
    found = find_in_steps_of_callbacks([kind()], [], cells=[trained])
    assert [one.where for one in found] == [f"{kind.__name__}.on_train_step_end(): {one}" for one in where]


class OfTheClass(Callback):
    losses = []  # noqa: RUF012 - as users write it

    def record(self, arguments):
        self.losses.append(float(arguments.net_outputs))

    def on_train_step_end(self, run_context):
        self.record(run_context.original_args())
        ops.assign(run_context.original_args().optimizer.learning_rate, ms.Tensor(0.1 / len(self.losses)))


class Warm:
    def __init__(self):
        self.number = 0

    def __call__(self, rate, step):
        self.number += 1
        return 0.1 * min(1.0, self.number / 10)


@pytest.mark.parametrize(
    ("callback", "where"),
    [
        (OfTheClass(), "OfTheClass.on_train_step_end(): self (OfTheClass)"),
        (LearningRateScheduler(Warm()), "LearningRateScheduler: Warm: self (Warm)"),
    ],
)
def test_what_a_callback_keeps_in_its_class_or_function_is_named(callback, where):
    """Also if the checkpoints know the callback: they hold its own attributes at most."""
    found = find_in_steps_of_callbacks([callback], [types.SimpleNamespace(others=[callback])])
    assert [one.where for one in found] == [where]


def vocabulary(cell, batches, rate, restore):
    ids = collections.defaultdict(lambda: len(ids))
    restore()
    for x, y in batches:
        cell(x / (1 + ids[float(x)]), y)


def prototypes_made_on_demand(cell, batches, rate, restore):
    prototypes = collections.defaultdict(lambda: np.random.normal(size=2))
    restore()
    for x, y in batches:
        cell(x + prototypes[int(y)][0], y)


class Noise(dict):
    def __missing__(self, key):
        self[key] = np.random.normal()
        return self[key]


def missing_items(cell, batches, rate, restore):
    noise = Noise()
    restore()
    for x, y in batches:
        cell(x + noise[int(y)], y)


def tables_made_on_demand(cell, batches, rate, restore):
    tables, counts = collections.defaultdict(lambda: np.ones(2)), collections.defaultdict(int)
    restore()
    for x, y in batches:
        cell(x + tables[int(y)][0] + counts[int(y)], y)


class Schedule:
    def __init__(self):
        self.number = 0

    def __call__(self):
        self.number += 1
        return 1 / self.number


def schedules_in_a_comprehension(cell, batches, rate, restore):
    schedules = {"weight": Schedule()}
    restore()
    for x, y in batches:
        values = {name: one() for name, one in schedules.items()}
        cell(x * values["weight"], y)


class Moment:
    def __init__(self):
        self.mean = 0.0


def nested_targets(cell, batches, rate, restore):
    table = {"a": Moment()}
    restore()
    for x, y in batches:
        for (_, one), value in zip(table.items(), [float(x)], strict=True):
            one.mean = 0.9 * one.mean + value
        cell(x * table["a"].mean, y)


def value_of_a_parameter(cell, batches, rate, restore):
    for one in cell.network.trainable_params():
        one.history = 1.0
    restore()
    for x, y in batches:
        for one in cell.network.trainable_params():
            one.history = 0.9 * one.history + 0.1
        cell(x * cell.network.trainable_params()[0].history, y)


class Options(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


def nested_options(cell, batches, rate, restore):
    options = Options(train=Options(scale=1.0))
    restore()
    for x, y in batches:
        cell(x * options.train.scale, y)
        options.train.scale *= 0.9


def array_in_a_file(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x, ms.Tensor(np.load("labels.npy")))
        np.save("labels.npy", cell(x, y).asnumpy())


def weights_in_a_file(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        before = ms.load_checkpoint("last.ckpt")
        cell(x * before["weight"].mean(), y)
        ms.save_checkpoint(cell.network, "last.ckpt")


@pytest.mark.parametrize(
    ("loop", "where"),
    [
        (vocabulary, ["ids"]),
        (prototypes_made_on_demand, ["prototypes"]),
        (missing_items, ["noise (Noise)"]),
        (tables_made_on_demand, []),
        (schedules_in_a_comprehension, ["one (Schedule)"]),
        (nested_targets, ["one (Moment)"]),
        (value_of_a_parameter, ["one (Parameter)"]),
        (nested_options, ["options.train (Options)"]),
        (array_in_a_file, ["file 'labels.npy'"]),
        (weights_in_a_file, ["file 'last.ckpt'"]),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_is_kept_in_other_ways_is_named(loop, where):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    assert [one.where.removeprefix(f"{loop.__name__}(): ") for one in Training().found(loop)] == where


class HasStep:
    def __init__(self, step):
        self.step = step


def step_that_a_function_makes():
    def forward(x):
        return regularized(x).sum()

    differentiate = ms.value_and_grad(forward, None, ms.ParameterTuple(regularized.trainable_params()))

    @ms.jit
    def step(x):
        loss, gradients = differentiate(x)
        finite = amp.all_finite(gradients)
        if finite:
            loss = ops.depend(loss, gradients[0])
        return ops.depend(loss, finite)

    return HasStep(step)


def test_variables_of_a_compiled_function_are_its_own():
    """Also where what makes the function is read: it is given to a class there, which might call it in any way."""

    def loop(cell, batches, rate, restore):
        for _ in range(1):
            made = step_that_a_function_makes()
            restore()
            for x, y in batches:
                cell(made.step(x), y)

    found = [str(one) for one in Training(regularized=regularized).found(loop)]
    assert [one for one in found if "compiled function keeps the value" in one] == []
