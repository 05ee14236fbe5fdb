"""Random operators that a resumed run cannot repeat are named in the mode in which that holds, and no others are."""

from __future__ import annotations

import inspect
import json
import random
import sys
import types

import mindspore as ms
import mindspore.numpy as mnp
import mindspore.ops.auto_generate
import mindspore.ops.operations.random_ops
import numpy as np
import pytest
from mindspore import mint, nn, ops
from mindspore.common import generator
from mindspore.nn.probability import distribution
from support.process import python
from support.rounding import optimizer_of
from support.training import Mlp, accumulation_cell, begin_process

from ckptkit.mindspore.observe import named_objects
from ckptkit.mindspore.observe.random_operators import RandomOperators, random_operators
from ckptkit.nn import Dropout


def find(*cells):
    return [*RandomOperators(("", cell) for cell in cells).findings]


class Network(nn.Cell):
    """Calls a function, and has attributes."""

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


class CallsMethod(nn.Cell):
    def construct(self, x):
        return self.noise(x)

    def noise(self, x):
        drawn = ops.randn
        return x + drawn(x.shape)


class Inherits(CallsMethod):
    def construct(self, x):
        return super().construct(x)


class CallsInBothModes(nn.Cell):
    def construct(self, x):
        return noisy(x) + compiled_noisy(x)


class CompiledAround(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Calls()

    @ms.jit
    def construct(self, x):
        return self.inner(x)


class DrawsByNumpy(nn.Cell):
    def construct(self, x):
        return x * 0.0 if np.random.rand() < 0.3 else x / 0.7


class CallsNothingRandom(nn.Cell):
    def construct(self, x):
        return ops.relu(x) + ops.randperm(4)[0] + quiet(x)


class Sampling(nn.Cell):
    """Draws by a distribution, or asks it for a density only."""

    def __init__(self, draws=True):
        super().__init__()
        self.distribution = distribution.Normal(0.0, 1.0, dtype=ms.float32)
        self.draws = self.sample if draws else self.distribution.log_prob

    def sample(self, x):
        return x + self.distribution.sample(x.shape)

    def construct(self, x):
        return self.draws(x)


def quiet(x):
    dropout = ops.tanh
    return dropout(x)


def noisy(x):
    return ops.uniform(x.shape, 0.0, 1.0)


@ms.jit
def compiled_noisy(x):
    return noisy(x)


def by_method(x):
    return x * ops.relu(x).bernoulli() + x.cauchy()


def by_mint(x):
    return mint.nn.functional.dropout(x + mint.rand(2, 6))


OUTSIDE = nn.Dropout(p=0.5).set_train()


class NamesDropout(nn.Cell):
    def construct(self, x):
        return OUTSIDE(x)


class Makes(nn.Cell):
    def construct(self, x):
        return nn.Dropout(p=0.5)(x)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Calls, "the train cell (Calls): ops.dropout in construct() in test_random_operators.py:"),
        (Inherits, "the train cell (Inherits): ops.randn in noise() in"),
        (lambda: Network(lambda x: mnp.rand(2, 6)), ": mindspore.numpy.rand in <lambda>() in"),
        (Sampling, "ops.normal in _sample() in normal.py"),
        (nn.RReLU, "the train cell (nn.RReLU): ops.uniform in"),
        (lambda: nn.MultiheadAttention(8, 2, dropout=0.25), "its dropout=0.25"),
        (DrawsByNumpy, "np.random.rand in construct()"),
    ],
)
def test_operators_that_a_graph_freezes_are_found_in_graph_mode_only(make, name):
    assert find(make()) == []
    begin_process(mode="graph")
    (finding,) = find(make())
    assert name in finding.where
    assert finding.kind == "operator"
    assert finding.certain


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        (CallsInBothModes, "ops.uniform in noisy()"),
        (CompiledAround, "inner (Calls): ops.dropout in construct()"),
    ],
)
def test_operators_under_jit_are_found_in_pynative(cell, name):
    (finding,) = find(cell())
    assert name in finding.where
    assert "PYNATIVE" in finding.fix


@pytest.mark.parametrize("mode", ["graph", "pynative"])
@pytest.mark.parametrize(
    ("make", "names", "certain"),
    [
        (lambda: Network(ops.bernoulli), ["ops.bernoulli"], True),
        (lambda: Network(lambda x: ops.StandardNormal(3)(x.shape)), ["ops.StandardNormal"], True),
        (Makes, ["nn.Dropout"], True),
        (NamesDropout, ["OUTSIDE (nn.Dropout)"], False),
        (lambda: Network(noise=ops.StandardNormal(2)), ["noise (ops.StandardNormal)"], True),
        (lambda: Network(by_method), ["Tensor.bernoulli", "Tensor.cauchy"], True),
        (lambda: Network(lambda x: x.uniform_()), ["Tensor.uniform_"], False),
        (lambda: Network(by_mint), ["mint.nn.functional.dropout", "mint.rand"], False),
    ],
)
def test_operators_with_a_state_of_their_own_are_found_in_both_modes(mode, make, names, certain):
    begin_process(mode=mode)
    findings = find(make())
    assert all(name in finding.where for name, finding in zip(names, findings, strict=True))
    assert all(finding.certain == certain for finding in findings)


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, mint.nn.Dropout])
def test_dropout_cells_are_found_by_name(kind):
    (finding,) = find(Network(drop=kind(p=0.5)))
    assert finding.where.startswith("drop (")
    assert "ckptkit.nn.Dropout" in finding.fix
    assert finding.certain == (kind is not mint.nn.Dropout)


def test_layer_that_a_sequential_cell_still_calls_is_found():
    layers = nn.SequentialCell(nn.Dense(6, 8), nn.SequentialCell(nn.ReLU(), nn.Dropout(p=0.5)))
    setattr(layers, "1", nn.ReLU())
    assert [finding.where for finding in find(Mlp(), Network(layers=layers))] == ["layers.cell_list[1].1 (nn.Dropout)"]


@pytest.mark.parametrize("mode", ["graph", "pynative"])
@pytest.mark.parametrize(
    "make",
    [
        CallsNothingRandom,
        accumulation_cell,
        lambda: Network(drop=nn.Dropout(p=0.0)),
        lambda: Network(drop=Dropout(0.5)),
        lambda: Sampling(draws=False),
    ],
)
def test_nothing_is_found_in_what_is_exact(mode, make):
    begin_process(mode=mode)
    assert find(make()) == []


def test_function_without_a_module_is_read():
    """As SciPy makes them."""
    assert find(Network(types.FunctionType(quiet.__code__, {"ops": ops}))) == []


def test_compiled_optimizer_compiles_no_other_cell():
    assert find(Calls(), nn.Adam(nn.Dense(2, 2).trainable_params())) == []


def test_cell_that_is_not_trained_is_a_doubt_while_it_drops():
    operators = RandomOperators([("", Mlp())])
    for cell in (nn.Dropout(p=0.5).set_train(), nn.Dropout(p=0.5).set_train(False)):
        operators.read(cell, "noise")
    (finding,) = operators.findings
    assert finding.where == "noise (nn.Dropout)"
    assert not finding.certain


def test_running_loop_is_read():
    """In PYNATIVE, what it draws by Python's generators is exact."""
    operators = RandomOperators([("", Mlp())])
    random.random()
    ops.bernoulli(ms.Tensor([0.5]))
    operators.read(sys._getframe(), "the loop")
    (finding,) = operators.findings
    assert finding.where.startswith("the loop: ops.bernoulli in test_running_loop_is_read()")


# What another version of MindSpore may have more.

# They hold dropout cells or operator objects of their own, which are found as anybody's.
HOLDERS = {"MultiheadAttention", "SampledSoftmaxLoss", "FractionalMaxPool2d", "FractionalMaxPool3d", "RReLU"}
HOLDERS |= {f"Transformer{part}" for part in ("", "Decoder", "DecoderLayer", "Encoder", "EncoderLayer")}


def draws(value):
    """Whether the code of MindSpore that calling ``value`` runs names what draws."""
    codes = [value] if isinstance(value, types.FunctionType) else []
    if isinstance(value, type):
        codes += [vars(value)[name] for name in ("construct", "__init__") if name in vars(value)]
    named = [one.value for code in codes for one in named_objects.named_objects(code)]
    return any(one is generator.default_generator or id(one) in random_operators() for one in named)


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


@pytest.mark.extended
def test_optimizers_that_round_by_launch_are_known():
    """In a process of its own, each computes one update twenty times; launches 6 to 15 split the work otherwise."""
    varies = json.loads(python("-m", "support.rounding", timeout=300).stdout)
    assert {name for name, results in varies.items() if results > 1} == {"AdamOffload", "RMSProp"}
    for name in varies:
        optimizer = optimizer_of(name, ms.ParameterTuple([ms.Parameter(ms.Tensor([1.0], ms.float32), name="w.weight")]))
        assert [one.kind for one in find(optimizer)] == ["rounding"] * (name in ("AdamOffload", "RMSProp"))
