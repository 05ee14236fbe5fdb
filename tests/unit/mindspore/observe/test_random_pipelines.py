"""Python code of a pipeline that draws what a resumed run cannot repeat is named, wherever MindSpore calls it."""

from __future__ import annotations

import functools
import random

import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.dataset import transforms, vision
from support.training import Mlp, pipeline

from ckptkit.mindspore.observe.random_operators import RandomOperators
from ckptkit.mindspore.observe.random_pipelines import find_in_data

OWN = np.random.default_rng(5)
SHARED = np.random


def find(data):
    return [*find_in_data(data, RandomOperators([("", Mlp())]))]


def mapped(*operations, **options):
    return pipeline().map(list(operations), "x", **{"num_parallel_workers": 1, **options})


def identity(x):
    return x


def by_numpy(x):
    return x + np.random.permutation(3).sum()


def by_python(x):
    return x * random.random()


def scaled(x, factor):
    return x * random.random() * factor


def by_alias(x):
    rng = SHARED
    return x + rng.normal()


def imports_it(x):
    from random import choice

    import numpy.random as own_name

    return x + own_name.rand() + choice([1, 2])


def unseeded(x):
    return x + np.random.default_rng().random()


def seeded(x):
    rng = np.random.default_rng(int(x.sum()))
    return x + rng.random() + np.random.RandomState(5).rand()


def by_own_generator(x):
    return x + OWN.random()


def reads_the_state(x):
    np.random.get_state()
    return x + len(random.getstate())


def shadowed(x, random=OWN):
    return x + random.random()


def closing_over(function):
    def call(x):
        return function(x)

    return call


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


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (by_numpy, "by_numpy() in test_random_pipelines.py"),
        (by_python, "random.random: it draws from Python's `random`"),
        (by_alias, "rng.normal: it draws from `numpy.random`"),
        (Augment(np.random), "shift() in"),
        (functools.partial(scaled, factor=2), "scaled()"),
        (closing_over(by_python), "by_python()"),
        (transforms.RandomChoice([identity, by_python]), "random"),
        (unseeded, "default_rng: it takes its seed from the operating system"),
    ],
)
def test_draws_in_a_map_are_found(operation, text):
    findings = find(mapped(operation))
    assert findings
    assert all(one.kind == "pipeline" and one.where.startswith("MapDataset: ") for one in findings)
    assert any(text in str(one) for one in findings)


def test_imports_within_a_function_are_found():
    """A module imports like this, too, and its running code is read."""
    names = {one.where.rpartition(": ")[2] for one in find(mapped(imports_it))}
    assert names == {"choice", "own_name.rand"}


@pytest.mark.parametrize(
    "operation",
    [identity, seeded, by_own_generator, reads_the_state, shadowed, Augment(OWN), vision.Rescale(1.0, 0.0)],
)
def test_maps_that_draw_from_elsewhere_are_no_finding(operation):
    assert find(mapped(operation)) == []


def test_threads_that_draw_from_one_generator_are_found():
    """They are found even if the generator is the module's own, and not in processes of their own."""
    (finding,) = find(mapped(by_own_generator, num_parallel_workers=2))
    assert finding.certain
    assert "2 threads" in finding.why
    assert "python_multiprocessing=True" in finding.fix
    assert find(mapped(seeded, num_parallel_workers=2)) == []
    assert find(mapped(by_own_generator, num_parallel_workers=2, python_multiprocessing=True)) == []
    assert "2 threads" in find(mapped(by_own_generator, num_parallel_workers=None))[0].why  # the default


class Source:
    def __init__(self, draw):
        self.draw, self.images = draw, np.zeros((8, 6), np.float32)

    def __getitem__(self, index):
        return (np.full(6, self.draw(), np.float32),)

    def __len__(self):
        return 8


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: mapped(by_numpy, num_parallel_workers=2, python_multiprocessing=True), "in worker processes"),
        (lambda: ds.GeneratorDataset(Source(np.random.rand), ["x"], num_parallel_workers=2), "in worker processes"),
        (lambda: mapped(by_numpy), "in a thread of this process"),
    ],
    ids=["processes", "generator processes", "thread"],
)
def test_where_it_runs_is_said(make, why):
    (finding,) = find(make())
    assert why in finding.why
    assert not finding.certain


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
    factor = random.random()
    return ([one * factor for one in column],)


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: ds.GeneratorDataset(Source(random.random), ["x"], num_parallel_workers=1), "__getitem__()"),
        (lambda: ds.GeneratorDataset(generates, ["x"]), "generates()"),
        (lambda: ds.GeneratorDataset(Source(OWN.random), ["x"], sampler=Plain()), "__iter__()"),
        (lambda: ds.GeneratorDataset(Source(OWN.random), ["x"], sampler=Order()), "__iter__()"),
        (lambda: pipeline().filter(lambda x: random.random() > 0.5, ["x"], num_parallel_workers=1), "<lambda>()"),
        (lambda: ds.zip((pipeline(), pipeline().batch(2, per_batch_map=halve, input_columns=["x"]))), "halve()"),
    ],
)
def test_every_place_for_python_code_is_read(make, where):
    assert [one.where.split(": ")[1].partition(" in ")[0] for one in find(make()) if "random" in str(one)] == [where]


def test_mindspores_augmentations_are_found_where_they_run_in_python():
    images = ds.NumpySlicesDataset({"x": np.zeros((8, 4, 4, 3), np.uint8)}, shuffle=True)
    assert find(images.map([vision.RandomCrop(2), vision.RandomHorizontalFlip()], "x").batch(2).repeat(2)) == []
    assert find(images.map([vision.ToPIL(), vision.ToTensor()], "x")) == []
    assert find(images.map([vision.ToPIL(), vision.RandomHorizontalFlip(), vision.ToTensor()], "x"))


class Loader:
    """Makes batches by MindSpore's operators."""

    def __init__(self):
        self.drop = nn.Dropout(p=0.5).set_train()

    def __iter__(self):
        for _ in range(3):
            random.random()
            yield self.drop(ops.randn((2, 3)))


def test_random_operators_that_make_batches_are_found():
    operators = RandomOperators([("", Mlp())])
    (finding,) = find_in_data(Loader(), operators)
    assert finding.where.startswith("Loader: __iter__() in test_random_pipelines.py:")
    assert finding.where.endswith(": ops.randn")
    assert ["self.drop (nn.Dropout)" in one.where for one in operators.findings] == [True]
