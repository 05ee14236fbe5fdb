"""What cannot be exact is found and named, and nothing else is."""

from __future__ import annotations

import collections
import functools
import pkgutil
import random
import re
import sys
import textwrap
import types
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import mindspore.numpy as mnp
import numpy as np
import pytest
from mindspore import amp, mint, nn, ops
from mindspore.dataset import transforms, vision
from mindspore.nn.probability import distribution
from support.training import Mlp, accumulation_cell, adam, begin_process, pipeline

import ckptkit as ck
from ckptkit.errors import ResumeError
from ckptkit.mindspore import inspect as inspection
from ckptkit.mindspore.inspect import Finding, find, find_kept_by_stateless
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.nn import Dropout

COUNTER = np.random.default_rng(5)
SHARED = np.random


def network(function=None, **attributes):
    """A cell whose construct calls ``function``."""

    class Network(nn.Cell):
        def __init__(self):
            super().__init__()
            for name, value in attributes.items():
                setattr(self, name, value)

        def construct(self, x):
            return self.function(x)

    one = Network()
    if function is not None:
        one.function = function
    return one


class Calls(nn.Cell):
    def construct(self, x):
        return ops.dropout(x, 0.5)


class CallsFunction(nn.Cell):
    def construct(self, x):
        return noisy(x)


class CallsMethod(nn.Cell):
    def construct(self, x):
        return self.noise(x)

    def noise(self, x):
        drawn = ops.randn
        return x + drawn(x.shape)


class CallsClassMethod(nn.Cell):
    def construct(self, x):
        return self.noise(x)

    @classmethod
    def noise(cls, x):
        return x + ops.randn(x.shape)


class Inherits(CallsMethod):
    def construct(self, x):
        return super().construct(x)


class Between(Inherits):
    """Has no construct of its own."""


class InheritsFurther(Between):
    def construct(self, x):
        return super().construct(x)


class CallsCompiled(nn.Cell):
    def construct(self, x):
        return compiled(x)


class CallsInBothModes(nn.Cell):
    def construct(self, x):
        return noisy(x) + compiled_noisy(x)


class Compiled(nn.Cell):
    @ms.jit
    def construct(self, x):
        return ops.rand(x.shape)


class CallsBernoulli(nn.Cell):
    def construct(self, x):
        return ops.bernoulli(x)


class MakesPrimitive(nn.Cell):
    def construct(self, x):
        return ops.StandardNormal(3)(x.shape)


class CallsNothingRandom(nn.Cell):
    def construct(self, x):
        return ops.relu(x) + ops.randperm(4)[0] + quiet(x)


def quiet(x):
    dropout = ops.tanh
    return dropout(x)


def noisy(x):
    return ops.uniform(x.shape, 0.0, 1.0)


@ms.jit
def compiled(x):
    return ops.standard_normal(x.shape)


@ms.jit
def compiled_noisy(x):
    return noisy(x)


def names(*findings):
    return [one.where.partition(" in ")[0] for one in findings]


@pytest.mark.parametrize(
    ("cell", "where"),
    [
        (Calls, "the train cell (Calls): ops.dropout in construct() at"),
        (CallsFunction, "the train cell (CallsFunction): ops.uniform in noisy() at"),
        (CallsMethod, "the train cell (CallsMethod): ops.randn in noise() at"),
        (CallsClassMethod, "the train cell (CallsClassMethod): ops.randn in noise() at"),
        (Inherits, "the train cell (Inherits): ops.randn in noise() at"),
        (InheritsFurther, "the train cell (InheritsFurther): ops.randn in noise() at"),
    ],
)
def test_functional_operators_are_found_in_graph_mode_only(cell, where):
    assert find(cell()) == ()
    begin_process(mode="graph")
    (found,) = find(cell())
    assert found.where.startswith(where.replace(" at", " in test_findings.py:"))
    assert found.kind == "operator"
    assert "PYNATIVE" in found.fix


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        (CallsCompiled, "ops.standard_normal in compiled()"),
        (CallsInBothModes, "ops.uniform in noisy()"),
        (Compiled, "ops.rand in construct()"),
    ],
)
def test_functional_operators_under_jit_are_found_in_pynative(cell, name):
    (found,) = find(cell())
    assert name in found.where


@pytest.mark.parametrize("mode", ["graph", "pynative"])
@pytest.mark.parametrize(
    ("cell", "name"),
    [
        (CallsBernoulli, "ops.bernoulli in construct()"),
        (MakesPrimitive, "ops.StandardNormal in construct()"),
        (lambda: network(noise=ops.StandardNormal(2)), "noise (ops.StandardNormal)"),
        (lambda: network(drop=ops.Dropout(0.5)), "drop (ops.Dropout)"),
        (lambda: network(drops=[ops.Dropout(0.5)]), "drops (ops.Dropout)"),
    ],
)
def test_stateful_operators_are_found_in_both_modes(mode, cell, name):
    begin_process(mode=mode)
    (found,) = find(cell())
    assert name in found.where


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d])
def test_dropout_cells_are_found_by_name(kind):
    cell = accumulation_cell(network=lambda: WithDropout(kind(p=0.5)))
    (found,) = find(cell)
    assert found.where == f"network.drop (nn.{kind.__name__})"
    assert "ckptkit.nn.Dropout" in found.fix


class Layers(nn.SequentialCell):
    """Takes its own way through its layers."""

    def construct(self, x):
        return self[0](x)


class CallsListed(nn.SequentialCell):
    def construct(self, x):
        return super().construct(x) * 2


@pytest.mark.parametrize("kind", [nn.SequentialCell, CallsListed])
def test_layer_only_in_sequential_cell_list_is_found(kind):
    layers = kind(nn.Dense(6, 8), nn.SequentialCell(nn.ReLU(), nn.Dropout(p=0.5)), nn.Dense(8, 3))
    cell = accumulation_cell(network=lambda: network(layers=layers))
    setattr(layers, "1", nn.ReLU())
    (found,) = find(cell)
    assert found.kind == "operator"
    assert found.where == "network.layers.cell_list[1].1 (nn.Dropout)"
    assert "ckptkit.nn.replace_dropout(network)" in found.fix
    with pytest.raises(ResumeError, match=r"network\.layers\.cell_list\[1\]\.1 \(nn\.Dropout\)"):
        StateManager(cell, strict=True).begin("runs")
    layers[1] = nn.ReLU()
    assert find(cell) == ()


def test_a_displaced_layer_with_parameters_is_found_once():
    layers = nn.SequentialCell(nn.Dense(6, 8), nn.BatchNorm1d(8))
    cell = network(layers=layers)
    setattr(layers, "1", nn.BatchNorm1d(8))
    (found,) = find((cell, layers))
    assert (found.kind, found.where) == ("unseen", "layers.cell_list[1] (nn.BatchNorm1d)")
    assert "1.moving_mean" in found.why


def test_sequential_cell_with_own_construct_hides_no_layer():
    layers = Layers(nn.Dropout(p=0.5), nn.Dense(6, 8))
    setattr(layers, "0", nn.ReLU())
    assert find(network(layers=layers)) == ()


class WithDropout(Mlp):
    def __init__(self, drop):
        super().__init__()
        self.drop = drop


@pytest.mark.parametrize("mode", ["graph", "pynative"])
@pytest.mark.parametrize(
    "cell",
    [
        Mlp,
        CallsNothingRandom,
        lambda: WithDropout(nn.Dropout(p=0.0)),
        lambda: WithDropout(nn.Dropout2d(p=0.0)),
        lambda: WithDropout(nn.Dropout(keep_prob=1.0)),
        lambda: WithDropout(Dropout(0.5)),
        lambda: network(drop=ops.Dropout(1.0)),
        lambda: network(scaler=amp.StaticLossScaler(8)),
        accumulation_cell,
        lambda: nn.TrainOneStepCell(Mlp(), nn.Momentum(Mlp().trainable_params(), 0.1, 0.9)),
    ],
)
def test_nothing_is_found_in_what_is_exact(mode, cell):
    begin_process(mode=mode)
    assert find(cell()) == ()


def test_attention_drops_inside_of_mindspore():
    attention = nn.MultiheadAttention(8, 2, dropout=0.25)
    assert find(attention) == ()
    begin_process(mode="graph")
    (found,) = find(attention)
    assert "dropout=0.25" in found.where
    assert find(nn.MultiheadAttention(8, 2)) == ()


def test_unnamed_objects_with_parameters_are_found():
    scaler = amp.DynamicLossScaler(1024, 2, 50)
    cell = network(scaler=scaler)
    (found,) = find(cell)
    assert (found.kind, found.where) == ("unseen", "the train cell (Network): scaler (DynamicLossScaler)")
    assert "scale_value, counter would be in no checkpoint" in found.why
    assert "StateManager(..., dynamiclossscaler=it)" in found.fix
    assert find(cell, named=[scaler]) == ()


class Carries(nn.Cell):
    """Keeps something in plain attributes, all of which but the last two are state."""

    def __init__(self):
        super().__init__()
        self.calls, self.average, self.history = 0, ms.Tensor(0.0), []
        self.rng = np.random.default_rng(1)
        self.mask, self.shown = None, None
        self.total = ms.Parameter(ms.Tensor(0.0), name="total")

    def construct(self, x):
        if self.mask is None:
            self.mask = ops.zeros(x.shape)
        self.calls += 1
        self.average = 0.9 * self.average + x.mean()
        self.history = [*self.history[-3:], x.mean()]
        self.total = self.total + x.sum()
        self.shown = x.max()
        if self.training:
            x = x + self.rng.normal()
        return x + self.average + self.mask + self.shown


class CarriesToo(Carries):
    """Inherits its construct."""


def test_what_construct_carries_in_attributes_is_found():
    begin_process(mode="pynative")
    found = find(CarriesToo())
    assert {one.where for one in found} == {
        f"the train cell (CarriesToo): {name} ({type(getattr(Carries(), name)).__name__})"
        for name in ("rng", "calls", "average", "history")
    }
    assert all("in no checkpoint" in one.why for one in found)


def test_attributes_that_are_stored_are_not_found():
    begin_process(mode="pynative")
    cell = CarriesToo()
    (found,) = find(cell, stored=[(cell, ("rng", "calls", "average")), (Carries(), ("history",))])
    assert found.where == "the train cell (CarriesToo): history (list)"


def test_graph_carries_nothing_but_draws_once():
    begin_process(mode="graph")
    (found,) = find(CarriesToo())
    assert found.where.startswith("the train cell (CarriesToo): self.rng.normal in construct()")


def one_argument(x):
    return x


def global_numpy(x):
    return x + np.random.permutation(3).sum()


def global_python(x):
    return x * random.random()


def imports_it(x):
    from random import choice

    import numpy.random as own_name
    import numpy.random.mtrand as innermost

    choice([1, 2])
    return x + own_name.rand() + innermost.randn()


def calls_another(x):
    return max([one_argument(global_python(y)) for y in x])


def own_generator(x):
    return x + np.random.default_rng(int(x.sum())).random()


def generator_of_the_module(x):
    return x + COUNTER.random()


def alias(x):
    rng = SHARED
    return x + rng.normal()


def seeded_by_the_system(x):
    return x + np.random.default_rng().random()


def seeded_with_none(x):
    return x + np.random.default_rng(None).random()


def seeded_with_none_by_name(x):
    return x + np.random.default_rng(seed=None).random()


def seeded_by_name(x):
    return x + np.random.default_rng(seed=3).random() + len(max([x], key=None)) + np.random.RandomState(5).rand()


def decorated_in_a_box(function):
    box = [function]

    @functools.wraps(function)
    def call(*inputs):
        return box[0](*inputs)

    return call


def decorated_in_a_circle(x):
    return x


decorated_in_a_circle.__wrapped__ = decorated_in_a_circle


class Decorator:
    def __init__(self, function):
        functools.update_wrapper(self, function)

    def __call__(self, x):
        return self.__dict__["__wrapped__"](x)


class CachedMethod:
    def __init__(self, rng):
        self.rng = rng

    def __call__(self, x):
        return x + self.shift()

    @functools.cache  # noqa: B019 - as users write it
    def shift(self):
        return self.rng.normal()


def drawing_from(generator):
    def draw(x):
        return x + generator.random()

    return draw


def calling(function):
    def call(x):
        return function(x)

    return call


def reads_the_state(x):
    np.random.get_state()
    return x + len(random.getstate())


def shadowed(x, random=COUNTER):
    return x + random.random()


class Augment:
    def __init__(self, rng):
        self.rng = rng

    def __call__(self, x):
        return x + self.shift

    @property
    def shift(self):
        return self.rng.normal()

    def never_called(self):
        raise AssertionError("was run")


class Noise:
    def __call__(self, x):
        return x + random.random()


def makes_and_calls(x):
    return Noise()(x)


def calls_given(x, function=one_argument):
    return function(x)


def shadows_within(x):
    rng = COUNTER

    def draw():
        rng = random

        def inner():
            return rng.random()

        return inner()

    return x + draw() + rng.normal()


def mapped(*operations, **options):
    return pipeline().map(list(operations), "x", **{"num_parallel_workers": 1, **options})


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (global_numpy, "global_numpy() in test_findings.py"),
        (global_python, "random.random: it draws from Python's `random`"),
        (calls_another, "global_python() in test_findings.py"),
        (alias, "rng.normal: it draws from `numpy.random`"),
        (Augment(np.random), "shift() in test_findings.py"),
        (Augment(np.random.mtrand._rand), "self.rng.normal: it draws"),
        (functools.partial(global_python), "global_python()"),
        (makes_and_calls, "__call__() in test_findings.py"),
        (functools.partial(calls_given, function=global_python), "global_python()"),
        (shadows_within, "rng.random: it draws from Python's `random`"),
        (lambda x: x + random.gauss(0, 1), "<lambda>() in test_findings.py"),
        (seeded_by_the_system, "default_rng: it takes its seed from the operating system"),
        (transforms.RandomChoice([one_argument, global_python]), "random"),
        (seeded_with_none, "default_rng: it takes its seed from the operating system"),
        (seeded_with_none_by_name, "default_rng: it takes its seed from the operating system"),
        (functools.lru_cache(global_python), "global_python()"),
        (functools.cache(functools.partial(global_python).func), "global_python()"),
        (functools.cache(Augment(np.random).__call__), "self.rng.normal: it draws"),
        (decorated_in_a_box(global_python), "global_python()"),
        (Decorator(global_python), "global_python()"),
        (CachedMethod(np.random), "self.rng.normal: it draws"),
    ],
)
def test_global_generators_in_a_map_are_found(operation, name):
    found = find(Mlp(), mapped(operation))
    assert found
    assert all(one.kind == "pipeline" and one.where.startswith("MapDataset: ") for one in found)
    assert any(name in str(one) for one in found)


class WarmsUp:
    def __init__(self):
        self.rows, self.rng = 0, np.random.default_rng(3)

    def __call__(self, x):
        self.rows += 1
        return x if self.rows < 90 else np.round(x)


class Jitters(WarmsUp):
    def __call__(self, x):
        return x + self.rng.normal()


class Profiles:
    def __init__(self):
        self.rows = 0

    def __call__(self, x):
        self.rows += 1
        print(self.rows)
        return np.round(x)


class ServesTwice:
    def __init__(self):
        self.served = collections.Counter()

    def __call__(self, x):
        self.served[x.tobytes()] += 1
        return x[::-1] if self.served[x.tobytes()] > 2 else x


class Centres:
    def __init__(self):
        self.means = []

    def __call__(self, x):
        self.means.append(x.mean())
        return x - np.mean(self.means)


class Caches:
    def __init__(self, make=np.round):
        self.made, self.make = {}, make

    def __call__(self, x):
        found = self.made.get(x.tobytes())
        if found is None:
            found = self.made[x.tobytes()] = self.make(x)
        return found


@pytest.mark.parametrize(
    ("operation", "kept"),
    [
        (WarmsUp(), "rows"),
        (Jitters(), "rng"),
        (ServesTwice(), "served"),
        (Centres(), "means"),
        (Caches(), ""),
        (Profiles(), ""),
    ],
)
def test_what_a_map_keeps_that_is_declared_stateless_is_found(operation, kept):
    found = [one.why for one in find_kept_by_stateless(mapped(operation))]
    assert [kept in why and "denies that" in why for why in found] == ([True] if kept else [])
    state = StateManager(accumulation_cell(), mapped(operation), training=ck.Training(augmentation="stateless"))
    assert ["denies that" in one.why for one in state.findings()] == [True] * len(found)


def test_functions_of_one_factory_are_told_apart():
    """Also at the end of a chain that is longer than Python's stack."""
    chain = drawing_from(random)
    for _ in range(2000):
        chain = calling(chain)
    found = find(Mlp(), mapped(drawing_from(COUNTER), drawing_from(random)))
    assert [one.where.rpartition(": ")[2] for one in found] == ["generator.random"]
    assert find(Mlp(), mapped(chain)) == found


def imports_out_of_its_package():
    code = """
        def draw(x):
            try:
                from ...elsewhere import shift
            except ImportError:
                shift = int
            return x + shift() + random.random()
    """
    module = {"__name__": "users.augment", "__package__": "users", "random": random}
    exec(textwrap.dedent(code), module)  # noqa: S102
    return module["draw"]


@pytest.mark.parametrize(("package", "dots"), [("users", "."), ("users.images", "..")])
def test_imports_from_its_own_package_are_found(monkeypatch, package, dots):
    monkeypatch.setitem(sys.modules, "users.noise", types.SimpleNamespace(shift=random.random))
    module = {"__name__": f"{package}.augment", "__package__": package}
    exec(f"def draw(x):\n    from {dots}noise import shift\n    return x + shift()", module)  # noqa: S102
    assert [one.where.rpartition(": ")[2] for one in find(Mlp(), mapped(module["draw"]))] == ["shift", "shift"]


def closing_over_what_comes_later():
    def draw(x):
        return x + random.random() + later

    if draw is None:
        later = 0.5
    return draw


@pytest.mark.parametrize("make", [imports_out_of_its_package, closing_over_what_comes_later])
def test_code_with_names_that_lead_nowhere_is_read(make):
    assert [one.where.rpartition(": ")[2] for one in find(Mlp(), mapped(make()))] == ["random.random"]


def test_all_imports_within_a_function_are_found():
    found = {one.where.rpartition(": ")[2] for one in find(Mlp(), mapped(imports_it))}
    assert found == {"choice", "own_name.rand", "innermost.randn"}


@pytest.mark.parametrize(
    "operation",
    [
        one_argument,
        own_generator,
        generator_of_the_module,
        reads_the_state,
        shadowed,
        Augment(COUNTER),
        CachedMethod(COUNTER),
        seeded_by_name,
        decorated_in_a_circle,
        vision.Rescale(1.0, 0.0),
    ],
)
def test_maps_that_draw_from_elsewhere_are_no_finding(operation):
    assert find(Mlp(), mapped(operation)) == ()


def test_threads_that_draw_from_shared_generator_are_found():
    """They are found even if the generator is the module's own, and not in processes of their own."""
    (found,) = find(Mlp(), mapped(generator_of_the_module, num_parallel_workers=2))
    assert "2 threads" in found.why
    assert "python_multiprocessing=True" in found.fix
    assert find(Mlp(), mapped(own_generator, num_parallel_workers=2)) == ()
    assert find(Mlp(), mapped(generator_of_the_module, num_parallel_workers=2, python_multiprocessing=True)) == ()
    assert "2 threads" in find(Mlp(), mapped(generator_of_the_module, num_parallel_workers=None))[0].why  # the default
    assert found.certain


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: mapped(global_numpy, num_parallel_workers=2, python_multiprocessing=True), "in worker processes"),
        (lambda: mapped(global_numpy, num_parallel_workers=1, python_multiprocessing=True), "in worker processes"),
        (lambda: ds.GeneratorDataset(Source(np.random.rand), ["x"], num_parallel_workers=2), "in worker processes"),
        (lambda: mapped(global_numpy, num_parallel_workers=1), "in a thread of this process"),
        (lambda: ds.GeneratorDataset(Source(np.random.rand), ["x"]), "in a thread of this process"),
    ],
    ids=["map", "map-of-one", "generator", "map-here", "generator-here"],
)
def test_what_was_exact_in_trials_may_differ(make, where, tmp_path, shown):
    """It is said as what it is, by where it runs."""
    dataset = make()
    (found,) = find(Mlp(), dataset)
    assert where in found.why
    assert not found.certain
    ck.CheckpointManager(tmp_path).restore(ck.StateManager(Mlp(), dataset.batch(2)))
    assert f"The resumed run may not be bit-exact. {found}" in shown()


def test_code_that_waits_for_training_is_found():
    def synced(operation):
        data = ds.NumpySlicesDataset({"x": np.ones((8, 2))}).sync_wait("policy").map(operation, "x")
        return find(Mlp(), data.batch(2))

    (found,) = synced(one_argument)
    assert str(found).startswith('sync_wait("policy"): one_argument waits for training there; if it reads what')
    assert synced(vision.Rescale(1.0, 0.0)) == ()


class Source:
    def __init__(self, draw):
        self.draw = draw

    def __getitem__(self, index):
        return (np.full(6, self.draw(), np.float32),)

    def __len__(self):
        return 8


def generates():
    for _ in range(4):
        yield (np.full(6, random.random(), np.float32),)


class Order(ds.Sampler):
    def __iter__(self):
        yield from np.random.permutation(8).tolist()


class Plain:
    def __iter__(self):
        return iter(random.sample(range(8), 8))

    def __len__(self):
        return 8


def halve(column, info):
    return ([one * random.random() for one in column],)


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (
            lambda: ds.GeneratorDataset(Source(random.random), ["x"], num_parallel_workers=1),
            "GeneratorDataset: __getitem__()",
        ),
        (lambda: ds.GeneratorDataset(generates, ["x"]), "GeneratorDataset: generates()"),
        (lambda: ds.GeneratorDataset(Source(COUNTER.random), ["x"], sampler=Order()), "GeneratorDataset: __iter__()"),
        (lambda: ds.GeneratorDataset(Source(COUNTER.random), ["x"], sampler=Plain()), "GeneratorDataset: __iter__()"),
        (
            lambda: pipeline().filter(lambda x: random.random() > 0.5, ["x"], num_parallel_workers=1),
            "FilterDataset: <lambda>()",
        ),
        (lambda: pipeline().batch(2, per_batch_map=halve, input_columns=["x"]), "BatchDataset: halve()"),
        (lambda: pipeline().batch(lambda info: random.randint(1, 3)), "BatchDataset: <lambda>()"),
    ],
)
def test_every_place_for_python_code_is_looked_at(make, where):
    found = find(Mlp(), make())
    assert [one.where.partition(" in ")[0] for one in found if "random" in str(one)] == [where]


class Arrays(Source):
    """As most sources: arrays among its attributes."""

    def __init__(self, draw):
        super().__init__(draw)
        self.images, self.labels = np.zeros((8, 6), np.float32), np.zeros(8)


class Slotted:
    __slots__ = ("draw", "images")

    def __init__(self, draw):
        self.draw, self.images = draw, np.zeros((8, 6), np.float32)

    __getitem__ = Source.__getitem__
    __len__ = Source.__len__


@pytest.mark.parametrize("source", [Arrays, Slotted])
def test_sources_that_hold_arrays_are_read(source):
    drawing, still = (ds.GeneratorDataset(source(draw), ["x"], num_parallel_workers=1) for draw in (random.random, int))
    assert len(find(Mlp(), drawing)) == 1
    assert find(Mlp(), still) == ()


class Config(dict):
    """As users write it: whatever is not there raises KeyError."""

    __getattr__ = dict.__getitem__


class Touchy:
    """Nothing of it may be asked."""

    __slots__ = ("empty",)

    def __getattr__(self, name):
        raise RuntimeError(f"{name} was asked for")

    def __eq__(self, other):
        raise RuntimeError("was compared")

    def __hash__(self):
        raise RuntimeError("was hashed")

    def __bool__(self):
        raise RuntimeError("its truth was asked for")

    __len__ = __iter__ = __bool__


class TouchyDict(dict):
    def values(self):
        raise RuntimeError("was iterated")


class TouchyList(list):
    def __iter__(self):
        raise RuntimeError("was iterated")


CONFIG, TOUCHY = Config(scale=2.0), Touchy()


def asks_objects(x):
    return x * CONFIG.scale + TOUCHY.empty.more + random.random()


class Lowers:
    """Keeps compiled functions in attributes, where Python does not bind them."""

    def __init__(self):
        self.lower, self.sort = str.lower, property(len)

    def __call__(self, x):
        self.lower("A")
        return x + self.sort.fget([]) + random.random()


class TouchySampler(ds.Sampler):
    def __getattr__(self, name):
        raise AttributeError if name.startswith("__") else KeyError(name)

    def __iter__(self):
        return iter(random.sample(range(8), 8))


class TouchySource(Source):
    def __getattr__(self, name):
        raise KeyError(name)

    def __call__(self):
        return self


@pytest.mark.parametrize("operation", [asks_objects, Lowers()])
def test_code_that_names_hostile_objects_is_fully_read(operation):
    """Objects whose attributes raise, and builtin functions in attributes, do not end the reading."""
    assert [one.where.rpartition(": ")[2] for one in find(Mlp(), mapped(operation))] == ["random.random"]


def test_missing_attributes_of_samplers_are_not_requested():
    """Samplers and sources are not asked for what they lack."""
    source = ds.GeneratorDataset(Source(COUNTER.random), ["x"], sampler=TouchySampler(), num_parallel_workers=1)
    assert [one.where.partition("()")[0] for one in find(Mlp(), source)] == ["GeneratorDataset: __iter__"]
    node = ds.GeneratorDataset(Source(random.random), ["x"], num_parallel_workers=1)
    node.source = TouchySource(random.random)
    assert [one.where.partition("()")[0] for one in find(Mlp(), node)] == ["GeneratorDataset: __getitem__"]


def test_what_cells_hold_is_not_asked():
    held = {"touchy": TOUCHY, "config": CONFIG, "some": TouchyDict(a=TOUCHY), "more": TouchyList([TOUCHY, CONFIG])}
    cell = network(**{name: (one,) for name, one in held.items()})
    for name, one in held.items():
        vars(cell)[f"own_{name}"] = one
    assert find(cell) == ()
    vars(cell)["own_more"].append(amp.DynamicLossScaler(1024, 2, 50))
    assert [one.kind for one in find(cell)] == ["unseen"]


class Sampling(nn.Cell):
    """Draws by a distribution, or asks it for a density only."""

    def __init__(self, kind, draws=True):
        super().__init__()
        self.distribution = kind(0.0, 1.0, dtype=ms.float32)
        self.draws = self.sample if draws else self.density

    def sample(self, x):
        return x + self.distribution.sample(x.shape)

    def density(self, x):
        return self.distribution.log_prob(x)

    def construct(self, x):
        return self.draws(x)


def rand(x):
    return x + mnp.rand(2, 6)


def randn(x):
    return x + mnp.randn(2, 6)


def randint(x):
    return x + mnp.randint(0, 5, (2, 6))


IN_A_GRAPH = [
    *((lambda draw=draw: network(draw), f"mindspore.numpy.{draw.__name__} in") for draw in (rand, randn, randint)),
    (lambda: Sampling(distribution.Normal), "ops.normal in _sample() in normal.py"),
    (lambda: Sampling(distribution.Logistic), "ops.uniform in _sample() in logistic.py"),
]


@pytest.mark.parametrize(("make", "name"), IN_A_GRAPH)
def test_random_code_of_mindspore_is_found_in_graph(make, name):
    """`mindspore.numpy` and the distributions, which are exact in PYNATIVE."""
    begin_process(mode="graph")
    (found,) = find(make())
    assert name in found.where
    assert found.certain
    begin_process()
    assert find(make()) == ()


def test_a_distribution_that_draws_nothing_is_no_finding():
    begin_process(mode="graph")
    assert find(Sampling(distribution.Normal, draws=False)) == ()
    begin_process()


def by_mint(x):
    return mint.nn.functional.dropout(x + mint.rand(2, 6))


def test_draws_of_mint_are_named_as_unmeasured():
    found = find(network(by_mint))
    assert [one.where.partition(": ")[2].partition(" in ")[0] for one in found] == [
        "mint.nn.functional.dropout",
        "mint.rand",
    ]
    assert not any(one.certain for one in found)
    (found,) = find(network(drop=mint.nn.Dropout(0.5), nothing=mint.nn.Dropout(0.0)))
    assert found.where.startswith("drop (")
    assert not found.certain


def by_method(x):
    return x * ops.relu(x).bernoulli() + x.cauchy()


def in_place(x):
    return x.uniform_()


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_methods_of_arguments_that_draw_are_found(mode):
    begin_process(mode=mode)
    found = find(network(by_method))
    assert [one.where.partition(": ")[2].partition(" in ")[0] for one in found] == [
        "Tensor.bernoulli",
        "Tensor.cauchy",
    ]
    assert all(one.certain for one in found)
    (found,) = find(network(in_place))
    assert "Tensor.uniform_ in in_place()" in found.where
    assert not found.certain  # it has no kernel on CPU


def test_what_is_recommended_exists():
    texts = "".join(path.read_text() for path in Path(inspection.__file__).parent.glob("*.py"))
    names = set(re.findall(r"ckptkit(?:\.\w+)+", texts))
    assert {"ckptkit.nn.Dropout", "ckptkit.data.sample_rng"} <= names
    for name in names:
        assert pkgutil.resolve_name(name) is not None


def test_mindspore_operations_in_pipeline_are_no_finding():
    images = ds.NumpySlicesDataset({"x": np.zeros((8, 4, 4, 3), np.uint8)}, shuffle=True)
    assert find(Mlp(), images.map([vision.RandomCrop(2), vision.RandomHorizontalFlip()], "x").batch(2).repeat(2)) == ()


def test_augmentations_that_run_in_python_are_read():
    images = ds.NumpySlicesDataset({"x": np.zeros((8, 4, 4, 3), np.uint8)})
    found = find(Mlp(), images.map([vision.ToPIL(), vision.RandomHorizontalFlip(), vision.ToTensor()], "x"))
    assert any("random" in str(one) for one in found)
    assert find(Mlp(), images.map([vision.ToPIL(), vision.ToTensor()], "x")) == ()


def test_a_finding_reads_as_a_sentence():
    assert str(Finding("operator", "drop", "it draws", "Stop it")) == "drop: it draws. Stop it."


def test_network_and_optimizer_apart_are_read_together():
    net = Mlp()
    optimizer = adam(net.trainable_params())
    optimizer.helper = type("Helper", (), {})()
    optimizer.helper.weight = net.out.weight  # known by the network
    assert find((net, optimizer)) == ()
