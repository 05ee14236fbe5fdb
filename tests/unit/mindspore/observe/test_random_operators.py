"""What draws and a resumed run cannot repeat is named: operators in the mode in which that holds, code of pipelines."""

from __future__ import annotations

import functools
import inspect
import random
import sys
import types

import mindspore as ms
import mindspore.dataset as ds
import mindspore.numpy as mnp
import mindspore.ops.auto_generate
import mindspore.ops.operations.random_ops
import numpy as np
import pytest
from mindspore import mint, nn, ops
from mindspore.common import generator
from mindspore.dataset import transforms, vision
from mindspore.nn.probability import distribution
from support.training import Mlp, accumulation_cell, begin_process, pipeline

from ckptkit.mindspore.observe import named_objects
from ckptkit.mindspore.observe.random_operators import RandomOperators, random_operators
from ckptkit.nn import Dropout


def find(*cells):
    return [*RandomOperators(("", cell) for cell in cells).findings]


class Network(nn.Cell):
    def __init__(self, function=ops.relu, **attributes):
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def construct(self, x):
        return self.function(x)


class Calls(nn.Cell):
    def construct(self, x):
        return ops.dropout(x, 0.5)


class CompiledAround(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Calls()

    @ms.jit
    def construct(self, x):
        return self.inner(x)


NORMAL = distribution.Normal(0.0, 1.0, dtype=ms.float32)


def quiet(x):
    dropout = ops.tanh
    return dropout(x)


def noisy(x):
    return ops.uniform(x.shape, 0.0, 1.0)


@ms.jit
def compiled_noisy(x):
    return noisy(x)


OUTSIDE = nn.Dropout(p=0.5).set_train()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Calls, "the train cell (Calls): ops.dropout in construct() in test_random_operators.py:"),
        (lambda: Network(lambda x: mnp.rand(2, 6)), ": mindspore.numpy.rand in <lambda>() in"),
        (lambda: Network(lambda x: x + NORMAL.sample(x.shape)), "Distribution.sample in <lambda>() in"),
        (nn.RReLU, "the train cell (nn.RReLU)"),
        (lambda: nn.MultiheadAttention(8, 2, dropout=0.25), "the train cell (nn.MultiheadAttention)"),
        (lambda: Network(lambda x: x * 0.0 if np.random.rand() < 0.3 else x / 0.7), "np.random.rand in <lambda>()"),
    ],
)
def test_operators_that_a_graph_freezes_are_found_in_graph_mode_only(make, name):
    assert find(make()) == []
    begin_process(mode="graph")
    (finding,) = find(make())
    assert name in finding.where
    assert finding.kind == "operator"


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Network(lambda x: noisy(x) + compiled_noisy(x)), "ops.uniform in noisy()"),
        (CompiledAround, "inner (Calls): ops.dropout in construct()"),
    ],
)
def test_operators_under_jit_are_found_in_pynative(make, name):
    (finding,) = find(make())
    assert name in finding.where
    assert "PYNATIVE" in finding.fix


@pytest.mark.parametrize("mode", ["graph", "pynative"])
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Network(ops.bernoulli), ["ops.bernoulli"]),
        (lambda: Network(lambda x: ops.StandardNormal(3)(x.shape)), ["ops.StandardNormal"]),
        (lambda: Network(lambda x: nn.Dropout(p=0.5)(x + 0)), ["nn.Dropout"]),
        (lambda: Network(lambda x: OUTSIDE(x + 0)), ["OUTSIDE (nn.Dropout)"]),
        (lambda: Network(ops.StandardNormal(2)), ["ops.StandardNormal in construct()"]),
        (lambda: Network(lambda x: x * ops.relu(x).bernoulli() + x.cauchy()), ["Tensor.bernoulli", "Tensor.cauchy"]),
        (lambda: Network(lambda x: x.uniform_()), ["Tensor.uniform_"]),
        (
            lambda: Network(lambda x: mint.nn.functional.dropout(mint.rand(6))),
            ["mint.nn.functional.dropout", "mint.rand"],
        ),
    ],
)
def test_operators_with_a_state_of_their_own_are_found_in_both_modes(mode, make, names):
    begin_process(mode=mode)
    findings = find(make())
    assert all(name in finding.where for name, finding in zip(names, findings, strict=True))


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, mint.nn.Dropout])
def test_dropout_cells_are_found_by_name(kind):
    (finding,) = find(Network(drop=kind(p=0.5)))
    assert finding.where.startswith("drop (")
    assert "ckptkit.nn.Dropout" in finding.fix


def test_layer_that_a_sequential_cell_still_calls_is_found():
    layers = nn.SequentialCell(nn.Dense(6, 8), nn.SequentialCell(nn.ReLU(), nn.Dropout(p=0.5)))
    setattr(layers, "1", nn.ReLU())
    assert [finding.where for finding in find(Mlp(), Network(layers=layers))] == ["layers.cell_list[1].1 (nn.Dropout)"]


@pytest.mark.parametrize("mode", ["graph", "pynative"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Network(lambda x: ops.relu(x) + ops.randperm(4)[0] + quiet(x)),
        accumulation_cell,
        lambda: Network(drop=nn.Dropout(p=0.0)),
        lambda: Network(drop=Dropout(0.5)),
        lambda: Network(lambda x: NORMAL.log_prob(x + 0)),
        lambda: Network(types.FunctionType(quiet.__code__, {"ops": ops})),  # without a module, as SciPy makes them
    ],
)
def test_nothing_is_found_in_what_is_exact(mode, make):
    begin_process(mode=mode)
    assert find(make()) == []


def test_compiled_optimizer_compiles_no_other_cell():
    assert find(Calls(), nn.Adam(nn.Dense(2, 2).trainable_params())) == []


def test_cell_that_is_not_trained_is_found_while_it_drops():
    operators = RandomOperators([("", Mlp())])
    for cell in (nn.Dropout(p=0.5).set_train(), nn.Dropout(p=0.5).set_train(False)):
        operators.read(cell, "noise")
    (finding,) = operators.findings
    assert finding.where == "noise (nn.Dropout)"


def test_running_loop_is_read():
    """In PYNATIVE, what it draws by Python's generators is exact."""
    operators = RandomOperators([("", Mlp())])
    random.random()
    ops.bernoulli(ms.Tensor([0.5]))
    operators.read(sys._getframe(), "the loop")
    (finding,) = operators.findings
    assert finding.where.startswith("the loop: ops.bernoulli in test_running_loop_is_read()")


def test_optimizers_that_round_by_launch_are_named():
    """Their updates were measured: launches 6 to 15 of a kernel may split the work otherwise."""
    for name in ("Adam", "AdamOffload", "RMSProp"):
        weights = ms.ParameterTuple([ms.Parameter(ms.Tensor([1.0], ms.float32), name="w.weight")])
        kinds = [finding.kind for finding in find(getattr(nn, name)(weights, learning_rate=0.01))]
        assert kinds == ["rounding"] * (name != "Adam"), name


# Pipelines

OWN = np.random.default_rng(5)


def find_in(data):
    operators = RandomOperators([("", Mlp())])
    operators.read_data(data)
    return [*operators.findings]


def mapped(*operations, **options):
    return pipeline().map(list(operations), "x", **{"num_parallel_workers": 1, **options})


def identity(x):
    return x


def by_python(x):
    return x * random.random()


def seeded(x):
    rng = np.random.default_rng(int(x.sum()))
    return x + rng.random() + np.random.RandomState(5).rand()


def by_own_generator(x):
    return x + OWN.random()


def closing_over(function):
    return lambda x: function(x) + 0


class Augment:
    def __init__(self, rng):
        self.rng = rng

    def __call__(self, x):
        return x + self.shift

    @property
    def shift(self):
        return self.rng.normal()


@pytest.mark.parametrize(
    "operation",
    [identity, seeded, by_own_generator, lambda x, random=OWN: random.random(), Augment(OWN), vision.Rescale(1.0, 0.0)],
)
def test_maps_that_draw_from_elsewhere_are_no_finding(operation):
    assert find_in(mapped(operation)) == []


def test_threads_that_draw_from_one_generator_are_found():
    """They are found even if the generator is the module's own, and not in processes of their own."""
    (finding,) = find_in(mapped(by_own_generator, num_parallel_workers=2))
    assert "several threads" in finding.why
    assert "python_multiprocessing=True" in finding.fix
    assert find_in(mapped(seeded, num_parallel_workers=2)) == []
    assert find_in(mapped(by_own_generator, num_parallel_workers=2, python_multiprocessing=True)) == []
    assert "several threads" in find_in(mapped(by_own_generator, num_parallel_workers=None))[0].why  # the default


class Source:
    def __init__(self, draw):
        self.draw, self.images = draw, np.zeros((8, 6), np.float32)

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
    return (np.stack(column) * random.random(),)


IN_MAPS = [
    (lambda x: x + np.random.permutation(3)[0], "np.random.permutation in <lambda>()"),
    (by_python, "MapDataset: random.random in by_python()"),
    (Augment(np.random), "self.rng.normal in shift()"),
    (functools.partial(by_python), "by_python()"),
    (closing_over(by_python), "by_python()"),
    (transforms.RandomChoice([identity, by_python]), "by_python()"),
]


@pytest.mark.parametrize(
    ("make", "where"),
    [
        *((functools.partial(mapped, operation), where) for operation, where in IN_MAPS),
        (lambda: ds.GeneratorDataset(Source(random.random), ["x"], num_parallel_workers=1), "__getitem__()"),
        (lambda: ds.GeneratorDataset(generates, ["x"]), "generates()"),
        (lambda: ds.GeneratorDataset(Source(OWN.random), ["x"], sampler=Plain()), "__iter__()"),
        (lambda: ds.GeneratorDataset(Source(OWN.random), ["x"], sampler=Order()), "__iter__()"),
        (lambda: pipeline().filter(lambda x: random.random() > 0.5, ["x"], num_parallel_workers=1), "<lambda>()"),
        (lambda: ds.zip((pipeline(), pipeline().batch(2, per_batch_map=halve, input_columns=["x"]))), "halve()"),
    ],
)
def test_every_place_for_python_code_is_read(make, where):
    (finding,) = find_in(make())
    assert finding.kind == "pipeline"
    assert f"{where} in test_random_operators.py:" in finding.where


def test_mindspores_augmentations_are_found_where_they_run_in_python():
    images = ds.NumpySlicesDataset({"x": np.zeros((8, 4, 4, 3), np.uint8)}, shuffle=True)
    assert find_in(images.map([vision.RandomCrop(2), vision.RandomHorizontalFlip()], "x").batch(2).repeat(2)) == []
    assert find_in(images.map([vision.ToPIL(), vision.ToTensor()], "x")) == []
    assert find_in(images.map([vision.ToPIL(), vision.RandomHorizontalFlip(), vision.ToTensor()], "x"))


class Loader:
    def __init__(self):
        self.drop = nn.Dropout(p=0.5).set_train()

    def __iter__(self):
        for _ in range(3):
            random.random()
            yield self.drop(ops.randn((2, 3)))


def test_random_operators_that_make_batches_are_found():
    dropped, drawn = find_in(Loader())
    assert drawn.where.startswith("Loader: ops.randn in __iter__() in test_random_operators.py:")
    assert dropped.where == "Loader: self.drop (nn.Dropout)"


# What another version of MindSpore may have more.

# They hold dropout cells, which are found as anybody's.
HOLDERS = {f"Transformer{part}" for part in ("", "Decoder", "DecoderLayer", "Encoder", "EncoderLayer")}


def draws(value):
    """Whether the code of MindSpore that calling ``value`` runs names what draws."""
    codes = [value] if isinstance(value, types.FunctionType) else []
    if isinstance(value, type):
        codes += [vars(value)[name] for name in ("construct", "__init__") if name in vars(value)]
    values = [named.value for code in codes for named in named_objects.named_objects(code)]
    return any(value is generator.default_generator or id(value) in random_operators() for value in values)


@pytest.mark.extended  # for what another version of MindSpore alone changes
def test_every_function_that_draws_is_known(monkeypatch):
    monkeypatch.setattr(named_objects, "_DRAWING", ("mindspore.",))
    owners = (ops, ms.Tensor, mnp, nn, mint, mint.nn, mint.nn.functional)
    offered = {
        (name, value) for owner in owners for name, value in vars(owner).items() if name[0] != "_" and callable(value)
    }
    unknown = [
        name for name, value in offered if id(value) not in random_operators() and name not in HOLDERS and draws(value)
    ]
    assert unknown == []


def test_every_operator_with_seed_is_known():
    """A seed that it is made with means that it keeps the state of its generator."""
    modules = (ops, ops.operations, ms.ops.auto_generate, ms.ops.operations.random_ops)
    kinds = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    seeded = {
        kind.__name__
        for kind in kinds
        if issubclass(kind, ops.Primitive)
        and any("seed" in name.lower() for name in inspect.signature(kind.__init__).parameters)
        and id(kind) not in random_operators()
    }
    assert seeded == {"RandpermV2"}, "that one gives the same at every call"
