"""Parameters that no checkpoint holds are named before training, wherever training code keeps them."""

from __future__ import annotations

import argparse
import collections
import functools
import gc
import time
import types
import weakref
from collections import deque

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from support.training import Mlp, accumulation_cell, adam, begin_process

from ckptkit.mindspore.inspect import find
from ckptkit.mindspore.inspect.unstored_parameters import Held
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.mindspore.state.observe import StateObserver
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks


def parameter(name, value=0.0):
    return ms.Parameter(ms.Tensor(np.full(3, value, np.float32)), name=name, requires_grad=False)


class Running(nn.Cell):
    """Keeps what it sums up in an attribute that MindSpore does not register."""

    def __init__(self, kept):
        super().__init__()
        self.out = nn.Dense(6, 3)
        self.kept = kept

    def construct(self, x, y):
        return ops.square(self.out(x) - y).mean()


@pytest.mark.parametrize(
    ("kept", "kind"),
    [
        ([parameter("mean0"), parameter("mean1")], "list"),
        ((parameter("mean0"), parameter("mean1")), "tuple"),
        ({"a": parameter("mean0"), "b": [parameter("mean1")]}, "dict"),
        (deque([parameter("mean0"), {"deep": (parameter("mean1"),)}]), "deque"),
    ],
    ids=["list", "tuple", "dict", "deque"],
)
def test_parameters_in_plain_containers_are_named(kept, kind):
    cell = accumulation_cell(network=lambda: Running(kept))
    (found,) = find(cell)
    assert (found.kind, found.where) == ("unseen", f"network (Running): kept ({kind})")
    assert "mean0, mean1 would be in no checkpoint" in found.why
    assert "StateManager(..., kept=it)" in found.fix
    assert StateManager(cell, kept=kept).findings() == ()


@pytest.mark.parametrize(
    "kept",
    [
        types.SimpleNamespace(mean=parameter("mean")),
        argparse.Namespace(mean=parameter("mean")),
        collections.UserList([parameter("mean")]),
        collections.UserDict(mean=parameter("mean")),
        collections.ChainMap({}, {"mean": parameter("mean")}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_parameters_in_objects_of_the_standard_library_are_named(kept):
    (found,) = find(Running(kept))
    assert found.where == f"the train cell (Running): kept ({type(kept).__name__})"
    assert "would be in no checkpoint" in found.why


def test_much_below_one_thing_hides_no_other(monkeypatch):
    monkeypatch.setattr("ckptkit.mindspore.inspect.unstored_parameters._MOST", 20)
    held = Held(set())
    assert [*held.below("many", [[] for _ in range(50)])] == []
    (found,) = held.below("one", [parameter("mean")])
    assert found.held == ["mean"]


def test_rates_that_an_optimizer_repeats_are_no_finding():
    """MindSpore makes a table of rates for each group, and uses one for all."""
    network = nn.Dense(2, 2)
    groups = [{"params": [network.weight], "weight_decay": 0.1}, {"params": [network.bias]}]
    optimizer = nn.Adam(groups, [0.1, 0.2])
    assert optimizer.group_lr
    assert find([network, optimizer]) == ()


def test_cells_in_plain_lists_are_named():
    (found,) = find(Running([nn.BatchNorm1d(3)]))
    assert found.where == "the train cell (Running): kept[0] (nn.BatchNorm1d)"
    assert "mean, variance" in found.why
    assert find(Running([nn.ReLU()])) == ()


class InSlot:
    __slots__ = ("mean",)


class InBoth(InSlot):
    def __init__(self):
        self.mean, self.variance = parameter("mean0"), parameter("mean1")


def test_slots_beside_attributes_are_read():
    (found,) = find(Running(InBoth()))
    assert found.where == "the train cell (Running): kept (InBoth)"
    assert {*found.why.partition(" would")[0].split(", ")} == {"mean", "variance"}


LOADED = parameter("loaded")


class LoadsOnce:
    def __init__(self):
        self.size = LOADED.size


class LoadsAgain(LoadsOnce):
    def again(self):
        return LOADED


def test_what_only_init_used_is_not_named():
    assert find(Running(LoadsOnce())) == ()
    (found,) = find(Running(LoadsAgain()))
    assert found.where == "the train cell (Running): kept.again.LOADED (Parameter)"


def test_cells_of_named_cells_are_not_named_again():
    (found,) = find(Running([nn.SequentialCell(nn.Dense(2, 2), nn.Dense(2, 2))]))
    assert found.where == "the train cell (Running): kept[0] (nn.SequentialCell)"


COUNTED = parameter("counted")


class Counting(Running):
    def construct(self, x, y):
        ops.assign_add(COUNTED, ops.ones_like(COUNTED))
        return super().construct(x, y)


def test_globals_that_construct_uses_are_named():
    (found,) = find(Counting(None))
    assert found.where == "the train cell (Counting): construct.COUNTED (Parameter)"


@ms.jit_class
class Accumulator:
    """As in MindSpore's own tutorial."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.inner_grads = optimizer.parameters.clone(prefix="accumulate_", init="zeros")
        self.counter = ms.Parameter(ms.Tensor(1, ms.int32), "counter_")
        self.map = ops.HyperMap()

    def __call__(self, grads):
        return self.map(ops.partial(ops.assign_add), self.inner_grads, grads)


class Loop:
    """Network, optimizer and accumulator of a functional loop."""

    def __init__(self, network=Mlp):
        begin_process()
        self.network = network()
        self.optimizer = adam(self.network.trainable_params())
        self.accumulator = Accumulator(self.optimizer)

    def closed_over(self):
        accumulator = self.accumulator
        gradients = ms.value_and_grad(self.network, None, self.optimizer.parameters)

        @ms.jit
        def step(x, y):
            loss, grads = gradients(x, y)
            return ops.depend(loss, accumulator(grads))

        return step


SHARED = types.ModuleType("shared_by_scripts")


def step_with_global(x, y):
    return SHARED.accumulator(x, y)


def step_within(x, y):
    def inner():
        return SHARED.accumulator(x, y)

    return inner()


def each_step(accumulator):
    while True:
        yield accumulator


def named(loop, *, begin=lambda state: state.findings(), **stateful):
    """Findings of a loop whose frames are on the stack."""
    return begin(StateManager([loop.network, loop.optimizer], **stateful))


def test_accumulator_of_the_loop_is_named():
    """As a variable, in a closure, in a module, in an object of the loop's, and given to a function beforehand."""
    loop = Loop()
    stored = StateManager([loop.network, loop.optimizer], accumulator=loop.accumulator)

    def by_variable():
        accumulator = loop.accumulator
        found = named(loop)
        return found, accumulator

    def by_closure():
        step = loop.closed_over()
        return named(loop), step

    def by_module():
        SHARED.accumulator = loop.accumulator
        found = named(loop)
        return found, step_with_global

    def by_object():
        found = named(loop)
        return found, loop.accumulator

    def by_position():
        step = functools.partial(step_with_global, loop.accumulator)
        return named(loop), step

    def by_keyword():
        step = functools.partial(step_with_global, y=loop.accumulator)
        return named(loop), step

    def by_method():
        step = loop.accumulator.__call__
        return named(loop), step

    def by_empty_closure():
        accumulator = loop.accumulator

        def step():
            return absent, accumulator

        found = named(loop)
        absent = None
        return found, (step, absent)

    def by_later_closure():
        accumulator = loop.accumulator
        found = named(loop)
        return found, lambda x, y: accumulator((x, y))

    def by_inner_code():
        SHARED.accumulator = loop.accumulator
        return named(loop), step_within

    def by_generator():
        steps = each_step(loop.accumulator)
        return named(loop), steps

    for way, place in (
        (by_variable, "accumulator"),
        (by_closure, "step.func.accumulator"),
        (by_module, "step_with_global.SHARED.accumulator"),
        (by_object, "loop.accumulator"),
        (by_position, "step(1)"),
        (by_keyword, "step(1)"),
        (by_method, "step.__self__"),
        (by_empty_closure, "step.accumulator"),
        (by_later_closure, "accumulator"),
        (by_inner_code, "step_within.SHARED.accumulator"),
        (by_generator, "steps.accumulator"),
    ):
        found, _ = way()
        mine = [one for one in found if "Accumulator" in one.where]
        assert len(mine) == 1, (way.__name__, found)
        assert mine[0].where == f"{way.__name__}(): {place} (Accumulator)"
        assert "counter, inner_grads would be in no checkpoint" in mine[0].why
        assert "StateManager(..., accumulator=it)" in mine[0].fix
    assert [one for one in stored.findings() if "Accumulator" in one.where] == []
    assert loop.accumulator


def test_cells_within_a_given_object_are_named():
    """Its tools are stored with the training, if they are part of it."""
    loop = Loop()
    loop.accumulator.teacher = nn.Dense(2, 2)
    (found,) = StateManager(
        [loop.network, loop.optimizer], given=loop.accumulator, callbacks=OtherCallbacks()
    ).findings()
    assert found.where == "given.teacher (nn.Dense)"
    assert "weight, bias would be in no checkpoint" in found.why


def test_what_only_earlier_lines_used_is_not_named():
    """Such as the weights that were loaded into the network before."""
    loop = Loop()
    loaded = {"w": parameter("w")}
    assert loaded["w"] is not None
    loop.accumulator = None
    assert named(loop) == ()


def test_a_loop_that_comes_round_is_read_whole():
    loop = Loop()
    loop.accumulator = None
    found, spare = (), None
    for _ in range(2):
        assert (spare is None) == (not found)
        spare = parameter("spare")
        found = named(loop)
    assert [one.where for one in found] == ["test_a_loop_that_comes_round_is_read_whole(): spare (Parameter)"]


@pytest.mark.parametrize(("more", "named_ones"), [({}, ["script: spare (Parameter)"]), ({"__file__": "x.py"}, [])])
def test_any_variable_of_a_notebook_counts_as_used(more, named_ones):
    """Nobody knows its next lines; of a script they are known."""
    loop, found = Loop(), []
    loop.accumulator = None
    variables = {"named": named, "loop": loop, "found": found, "spare": parameter("spare"), **more}
    exec("found += named(loop)", {"__name__": "__main__", **variables}, variables.clear())  # noqa: S102
    assert [one.where for one in found] == named_ones


def test_training_through_model_is_not_read_for_variables():
    """There the code that trains is in the cells and the callbacks; what follows the call is none of it."""
    cell, other = accumulation_cell(), nn.Dense(2, 2)
    assert StateManager(cell, callbacks=OtherCallbacks()).findings() == ()
    assert [one.where.rpartition("(")[2] for one in StateManager(cell).findings()] == ["nn.Dense)"]
    assert other is not None


def test_looking_keeps_no_variable_alive():
    """Neither of a function that deletes it, nor does it empty what ``locals()`` gave."""

    def deleting():
        loop = Loop()
        held = loop.accumulator
        gone = weakref.ref(held)
        del loop.accumulator
        found = named(loop)
        assert "held" in str(found), held
        del held
        gc.collect()
        return gone()

    def asking():
        loop = Loop()
        mine = locals()
        named(loop)
        return mine

    assert deleting() is None
    assert "loop" in asking()


class Deep(nn.Cell):
    """A network of 2,000 parameters."""

    def __init__(self, layers=1000):
        super().__init__()
        self.layers = nn.CellList([nn.Dense(2, 2) for _ in range(layers)])

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_accumulator_of_large_network_is_found_in_time():
    loop = Loop(Deep)
    state = StateManager([loop.network, loop.optimizer])
    begun = time.process_time()
    found = state.findings()
    spent = time.process_time() - begun
    assert [one.where.rpartition("(")[2] for one in found] == ["Accumulator)"]
    assert spent < 5, spent  # half a second on a machine that does nothing else
    observer = state.observer()
    assert isinstance(observer, StateObserver)
    _, unseen = observer.observe()
    assert [path for path in unseen if path.endswith("loop.accumulator.counter")]
    assert loop.accumulator


optimizer = nn.Adam(nn.Dense(2, 1).trainable_params())  # which nothing uses


class Stepping:
    def __init__(self, loop):
        self.optimizer = loop.optimizer

    def step(self, gradients):
        return self.optimizer(gradients)


def test_global_with_the_name_of_an_attribute_is_not_taken_for_it():
    loop = Loop()
    stepping = Stepping(loop)

    def train():
        found = named(loop)
        return found, stepping.step, stepping.optimizer

    assert [one for one in train()[0] if "Adam" in str(one)] == []


def test_network_of_another_run_in_this_process_is_named_as_such():
    """Its checkpoints are made at other moments: a resume may find the two apart."""
    network, cell = nn.Dense(6, 3), accumulation_cell()
    other = StateManager([network, adam(network.trainable_params())])

    def said():
        found = StateManager(cell).findings()
        for _ in range(0):
            cell(network(ms.Tensor(np.ones((2, 6), np.float32))))
        (one,) = [each for each in found if "network (nn.Dense)" in each.where]
        return one.why.partition(",")[0], "one StateManager" in one.fix

    assert said() == ("it is in the checkpoints of another run", True)
    del other
    gc.collect()
    assert said() == ("weight", False)
