"""Findings in second places: of two pipelines, of chained samplers, of several cells, in tuples, in long lists."""

from __future__ import annotations

import inspect
import random

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import mint, nn, ops
from mindspore.ops import Primitive
from mindspore.ops.operations import random_ops
from support.training import Mlp, begin_process
from test_findings import Order, Source, halve, network, pipeline

from ckptkit.mindspore.inspect import find, find_in_steps_of_cells
from ckptkit.mindspore.inspect.operators import functional, is_random_primitive

OWN = np.random.default_rng(5)


def length(x):
    return int(random.random() * 4) + len(x)


def chained():
    sampler = ds.SequentialSampler()
    sampler.add_child(Order())
    return ds.GeneratorDataset(Source(OWN.random), ["x"], sampler=sampler)


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: ds.zip((pipeline(), pipeline().batch(2, per_batch_map=halve, input_columns=["x"]))), "halve()"),
        (lambda: pipeline().concat(pipeline().batch(2, per_batch_map=halve, input_columns=["x"])), "halve()"),
        (lambda: pipeline().bucket_batch_by_length(["x"], [3], [2, 2], element_length_function=length), "length()"),
        (chained, "__iter__()"),
    ],
    ids=["zip", "concat", "bucket", "child sampler"],
)
def test_second_places_for_python_code_are_read(make, where):
    begin_process()
    found = find(Mlp(), make())
    assert found
    assert all(where in one.where for one in found)


def test_one_thread_asks_for_the_sizes_of_batches():
    """However many workers there are."""
    begin_process()
    (found,) = find(Mlp(), pipeline().batch(lambda info: random.randint(1, 3), num_parallel_workers=2))
    assert "in a thread of this process" in found.why


@pytest.mark.parametrize("held", [lambda one: (one,), lambda one: [one], lambda one: {"a": one}])
def test_random_operators_in_containers_are_found(held):
    begin_process()
    (found,) = find(network(kept=held(ops.StandardNormal())))
    assert "kept (ops.StandardNormal)" in found.where


def test_every_cell_of_a_training_is_looked_at():
    begin_process()
    (found,) = find([Mlp(), nn.SequentialCell(nn.Dense(2, 2), nn.Dropout(p=0.5))])
    assert found.where == "1 (nn.Dropout)"


def test_many_names_of_parameters_are_counted():
    begin_process()
    kept = [ms.Parameter(ms.Tensor(0.0), name=f"p{number}") for number in range(8)]
    (found,) = find(network(kept=kept))
    assert found.why == "p0, p1, p2, p3, p4 and 3 more would be in no checkpoint"


def test_every_random_operator_of_mindspore_is_known():
    kinds = {kind for _, kind in inspect.getmembers(random_ops, inspect.isclass) if issubclass(kind, Primitive)}
    drawing = {kind for kind in kinds if kind.__module__ == random_ops.__name__}
    assert len(drawing) > 15
    assert [kind.__name__ for kind in drawing if not is_random_primitive(kind)] == []


@pytest.mark.parametrize(
    ("owner", "names", "exact"),
    [
        (
            ops,
            "dropout gamma gumbel_softmax laplace multinomial normal rand rand_like randint randint_like",
            "pynative",
        ),
        (ops, "randn randn_like random_gamma random_poisson rrelu shuffle standard_laplace uniform", "pynative"),
        (ops, "standard_normal choice_with_mask log_uniform_candidate_sampler", "pynative"),
        (ops, "bernoulli dropout1d dropout2d dropout3d multinomial_with_replacement", "never"),
        (ops, "random_categorical uniform_candidate_sampler", "never"),
        (mint, "bernoulli multinomial normal rand rand_like randint randint_like randn randn_like randperm", "unknown"),
        (mint.nn.functional, "dropout dropout2d", "unknown"),
    ],
)
def test_every_random_function_is_judged(owner, names, exact):
    judged = {name: functional().get(id(getattr(owner, name)), (None, None, None))[2] for name in names.split()}
    assert judged == dict.fromkeys(names.split(), exact)


class CountsWhereTrained(nn.Cell):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def construct(self, x):
        if self.training:
            if x.ndim > 1:
                x = x + 1
            self.calls += 1
        return x + self.calls


def test_what_is_counted_under_a_condition_is_named():
    begin_process(mode="pynative")
    (found,) = find_in_steps_of_cells([CountsWhereTrained()], [])
    assert found.where == "the train cell (CountsWhereTrained): construct(): self (CountsWhereTrained)"
    assert "carries calls" in found.why


class MomentsInADict(nn.Cell):
    """Moments as optimizers keep them, and what only looks like them."""

    def __init__(self):
        super().__init__()
        self.moments, self.sums, self.scratch, self.masks, self.last = {}, [0.0, 0.0], np.zeros(2), {}, 0.0

    def construct(self, x):
        for at, one in enumerate(x):
            self.moments[at] = self.moments.get(at, 0.0) * 0.9 + one
            total = self.sums[at] + one
            self.sums[at] = total
        self.scratch[0] = 0.0
        self.scratch[1] = x[0]
        self.last = 0.0
        for one in x:
            self.last = self.last + one
        if x.shape not in self.masks:
            self.masks[x.shape] = ops.zeros(x.shape)
        return x + self.masks[x.shape] + self.last + self.scratch[1] + self.sums[0] + self.moments[0]


def test_items_that_construct_carries_are_found():
    begin_process(mode="pynative")
    (found,) = find_in_steps_of_cells([MomentsInADict()], [])
    assert found.where == "the train cell (MomentsInADict): construct(): self (MomentsInADict)"
    assert "carries moments, sums" in found.why


class CachesItems(nn.Cell):
    def __init__(self):
        super().__init__()
        self.masks = {}

    def construct(self, x):
        if x.shape in self.masks:
            return x * self.masks[x.shape]
        self.masks[x.shape] = ops.zeros(x.shape)
        return x * self.masks[x.shape]


def test_items_kept_after_an_early_return_are_no_finding():
    begin_process(mode="pynative")
    assert [*find_in_steps_of_cells([CachesItems()], [])] == []


class CountsItsCalls(nn.Cell):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def __call__(self, *inputs):
        self.calls += 1
        return super().__call__(*inputs) * self.calls

    def construct(self, x):
        return x * 2


@pytest.mark.parametrize("mode", ["pynative", "graph"])
def test_what_a_call_carries_is_found_in_either_mode(mode):
    begin_process(mode=mode)
    (found,) = find(CountsItsCalls())
    assert found.where == "the train cell (CountsItsCalls): calls (int)"
    assert found.why.startswith("__call__() changes it")


class DropsByNumpy(nn.Cell):
    def construct(self, x):
        return x * 0.0 if np.random.rand() < 0.3 else x / 0.7


class DropsByPython(nn.Cell):
    def construct(self, x):
        return x * random.random()


@pytest.mark.parametrize(
    ("cell", "name"), [(DropsByNumpy, "np.random.rand in construct()"), (DropsByPython, "random.random in construct()")]
)
def test_draws_of_python_that_a_graph_keeps_are_named(cell, name):
    begin_process(mode="graph")
    (found,) = find(cell())
    assert name in found.where
    assert "when it is compiled" in found.why
    begin_process(mode="pynative")
    assert find(cell()) == ()
