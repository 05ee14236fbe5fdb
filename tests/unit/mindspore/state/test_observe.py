"""What the doctor sees of a training, and that looking changes nothing."""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import enum
import io
import itertools
import random
import sys
import threading
import types
from collections import Counter, deque
from typing import ClassVar

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn
from mindspore.common.initializer import initializer
from mindspore.train import Callback
from support.training import Mlp, begin_process, each_mode

import ckptkit
from ckptkit.errors import ResumeError
from ckptkit.manager.hooks import READS_AHEAD
from ckptkit.mindspore.inspect.frames import variables_ahead
from ckptkit.mindspore.inspect.reachability import Reachability, code_of
from ckptkit.mindspore.inspect.values.digest import digest_of_value, in_words, is_plain
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.mindspore.state.observe import StateObserver
from ckptkit.mindspore.state.other_callbacks import OtherCallbacks
from ckptkit.mindspore.train.cell import AccumulationTrainCell

X, Y = np.ones((2, 6), np.float32), np.zeros((2, 3), np.float32)


def train_cell(mode: str = "pynative") -> AccumulationTrainCell:
    begin_process(mode=mode)
    net = Mlp()
    return AccumulationTrainCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), accumulation_steps=2)


def reached(value, stored=(), shapes=()) -> dict:
    reach = Reachability(stored, set(shapes))
    reach.walk("it", value)
    return reach.found


@each_mode
def test_looking_changes_nothing_and_training_goes_on_alike(mode):
    def trained(look: bool) -> dict:
        cell = train_cell(mode)
        observer = StateManager(cell).observer() if look else None
        for _ in range(3):
            loss = cell(ms.Tensor(X), ms.Tensor(Y))
            if observer is not None:
                observer.observe()
        np.random.random()
        found, _ = (observer or StateManager(cell).observer()).observe()
        return {**found, "loss": digest_of_value(loss), "batch/0": "", "batch/1": ""}

    assert trained(look=True) == trained(look=False)


def test_what_a_loop_makes_of_a_batch_is_seen():
    """A loader that gives numbers of samples tells little: the rows decide. What is passed on as it is comes once."""
    cell = train_cell()
    state = StateManager(cell)
    observer = state.observer()
    rows, label = ms.Tensor(X), ms.Tensor(Y)
    state.observe_step((3, label), None)
    cell(rows, label)
    found, _ = observer.observe()
    batch = {name: one for name, one in found.items() if name.startswith(("batch/", "input/"))}
    assert set(batch) == {"batch/0", "batch/1", "input/0"}
    assert batch["input/0"] == digest_of_value(rows)


def test_objects_have_the_same_names_in_every_process():
    """A variable is found by the first name that leads to it, so names come in order, whatever the hashes of texts."""

    def loop(zeta, alpha, middle, beta, epsilon):
        names = [name for name, _ in variables_ahead(sys._getframe())]
        return names, (zeta, alpha, middle, beta, epsilon)

    names, _ = loop(*range(5))
    assert {"alpha", "beta", "epsilon", "middle", "zeta"} <= {*names}
    assert names == sorted(names)


def test_every_kind_of_state_has_own_names():
    cell = train_cell()
    observer = StateManager(cell).observer()
    before, _ = observer.observe()
    cell(ms.Tensor(X), ms.Tensor(Y))
    after, _ = observer.observe()
    kinds = {name.partition("/")[0] for name in after}
    assert kinds == {"batch", "loss", "accumulators", "weights", "optimizer", "counters", "rng"}
    changed = {name for name in after if before.get(name) != after[name]}
    assert {"batch/0", "batch/1", "loss", "counters/micro_step", "accumulators/accum.out.bias"} <= changed
    assert not any(name.startswith(("weights/out", "optimizer/", "rng/")) for name in changed)
    cell(ms.Tensor(X), ms.Tensor(Y))
    updated, _ = observer.observe()
    assert {"weights/out.bias", "optimizer/moments.out.bias"} <= {one for one in after if after[one] != updated[one]}


class Stored:
    def __init__(self):
        self.weights, self.cache = np.zeros(4), 0

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]


def test_what_checkpoints_hold_of_objects_given_by_name_is_compared():
    kept, rng, switch = Stored(), np.random.default_rng(3), types.SimpleNamespace(factor=1.0, shown=0)
    state = StateManager(train_cell(), kept=kept, rng=rng, switch=ckptkit.attributes(switch, "factor"))
    observer = state.observer()
    before, _ = observer.observe()
    assert {name for name in before if name.startswith("named/")} == {"named/kept.weights", "named/rng", "named/switch"}
    kept.cache, switch.shown = 1, 1
    assert observer.observe()[0] == before
    kept.weights, switch.factor = kept.weights + 1, 0.5
    rng.normal()
    after, _ = observer.observe()
    assert {name for name in before if before[name] != after[name]} == {
        "named/kept.weights",
        "named/rng",
        "named/switch",
    }


def test_parameters_of_an_object_given_by_name_are_a_kind_of_their_own():
    """A clock beside them may differ in each run; they may not."""
    scale = ms.Parameter(ms.Tensor([1.0], ms.float32), name="scale")
    kept = Scaled()
    state = StateManager(train_cell(), kept=kept, scales=[scale])
    before, _ = state.observer().observe()
    names = {"parameters/kept/scale", "named/kept", "parameters/scales/0"}
    assert {name for name in before if name.startswith(("parameters/", "named/"))} == names
    ms.ops.assign(kept.scale, 2.0)
    ms.ops.assign(scale, ms.Tensor([2.0], ms.float32))
    after, _ = state.observer().observe()
    assert {name for name in before if before[name] != after[name]} == {"parameters/kept/scale", "parameters/scales/0"}


def test_train_cell_given_by_name_has_parameters_and_counters():
    second = train_cell()
    for parameter in second.get_parameters():
        parameter.name = f"second.{parameter.name}"
    before, _ = StateManager(train_cell(), second=second).observer().observe()
    found = {name.replace("second.", "") for name in before if name.startswith(("parameters/", "named/"))}
    assert {"named/second", "parameters/second/out.bias", "parameters/second/accum.out.bias"} <= found
    second(ms.Tensor(X), ms.Tensor(Y))
    after, _ = StateManager(train_cell(), second=second).observer().observe()
    assert before["named/second"] != after["named/second"]


class Scaled:
    def __init__(self):
        self.scale, self.at = ms.Parameter(1.0, name="kept_scale"), 5.0


class OfAnother:
    """Tells the state of an object of another framework, and draws while it does."""

    def __init__(self):
        self.module = types.SimpleNamespace(weights={"w": np.zeros(3)}, itself=self)

    def state_dict(self):
        random.random()
        return {name: array.copy() for name, array in vars(self.module)["weights"].items()} | {"n": len(vars(self))}

    def load_state_dict(self, state):
        raise AssertionError


class OfAModule(OfAnother):
    def state_dict(self):
        return {**{name: array.copy() for name, array in self.module.weights.items()}, "n": 1}


@pytest.mark.parametrize("kind", [OfAnother, OfAModule])
def test_state_that_an_object_takes_from_others_is_compared(kind):
    """What it draws for that is put back."""
    kept, generator = kind(), random.getstate()
    observer = StateManager(train_cell(), kept=kept).observer()
    before, _ = observer.observe()
    assert {name for name in before if "kept" in name} == {"named/kept.w", "told/kept.n"}
    assert (observer.observe()[0], random.getstate()) == (before, generator)
    kept.module.weights["w"][1] = 1
    after, _ = observer.observe()
    assert {name for name in before if before[name] != after[name]} == {"named/kept.w"}


def test_a_parameter_that_no_update_sees_is_refused():
    begin_process(mode="pynative")
    net = Mlp()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    cell = AccumulationTrainCell(net, optimizer, accumulation_steps=2)
    observer = StateManager(cell).observer()
    observer.observe()

    def train():
        for number in range(12):
            optimizer.momentum.set_data(ms.Tensor(0.5 + number / 100, ms.float32), slice_shape=False)
            cell(ms.Tensor(X), ms.Tensor(Y))
            observer.observe()

    with pytest.raises(ResumeError, match=r"momentum got new memory after the first update"):
        train()
    assert cell.counters.updates < 4


def test_told_batch_replaces_batch_of_cell_call():
    """A step got what the loop told, or else what the cell was called with."""
    cell = train_cell()
    state = StateManager(cell, ds.NumpySlicesDataset((X, Y), ["x", "y"]).batch(2))
    observer = state.observer()
    cell(ms.Tensor(X), ms.Tensor(Y))
    called, _ = observer.observe()
    assert called["batch/0"] == digest_of_value(ms.Tensor(X))
    state.observe_step([ms.Tensor(Y), ms.Tensor(X)], None)
    told, _ = observer.observe()
    assert told["batch/x"] == called["batch/1"]
    assert told["loss"] == called["loss"]
    state.observe_step([ms.Tensor(Y)], None)
    fewer, _ = observer.observe()
    assert fewer["batch/0"] == called["batch/1"], "a column that a callback took out leaves the names unknown"


LEVEL = [2.5, "of a module's variable"]


def test_variables_that_come_next_are_unseen():
    cell = train_cell()
    kept = [1.25, "of a function's variable"]
    same = cell.network.out.bias.asnumpy().copy()  # as a weight is, so nothing new
    _, unseen = StateManager(cell).observer().observe()
    here = "test_variables_that_come_next_are_unseen()"
    assert {f"{here}:kept", f"{here}:LEVEL"} <= unseen.keys()
    assert f"{here}:same" not in unseen
    assert LEVEL != kept != same.tolist()


def test_empty_list_is_unseen_beside_another_empty_state():
    """All that is empty has one digest, which is no reason to take it for a value that checkpoints hold."""

    class Told:
        def state_dict(self):
            return {"rows": self.rows(), "more": np.zeros(2)}

        def load_state_dict(self, state):
            raise NotImplementedError

        def rows(self):
            return []

    begin_process()
    history = []
    digests, unseen = StateManager(train_cell(), told=Told()).observer().observe()
    assert digest_of_value(history) in digests.values()
    assert unseen["test_empty_list_is_unseen_beside_another_empty_state():history"].text == "list of 0"


def test_what_a_loader_with_a_state_holds_is_unseen_by_its_class():
    class Rows:
        def __init__(self):
            self.rng, self.at = np.random.default_rng(3), 0

        def __iter__(self):
            yield np.ones(2)

        def state_dict(self):
            return {"at": self.at}

        def load_state_dict(self, state):
            self.at = state["at"]

    begin_process()
    rows = Rows()
    _, unseen = StateManager(train_cell(), ckptkit.data.resumable(rows, 2)).observer().observe()
    found = {path: one.text for path, one in unseen.items() if path.startswith("loader ")}
    assert found == {"loader Rows.at": "0", "loader Rows.rng": "state of a Generator"}


def test_a_watched_cell_keeps_its_name_and_kind():
    cell = train_cell()
    StateManager(cell).observer()
    assert isinstance(cell, AccumulationTrainCell)
    assert type(cell).__qualname__ == "AccumulationTrainCell"


class Holder:
    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot = 3


class Owner:
    def __init__(self) -> None:
        self.count = 1
        self.arrays = [np.ones(3), ms.Tensor(X)]
        self.inner = Holder()
        self.several = [Holder()]
        self.by_name = {"a": Holder()}
        self.own = np.random.default_rng(3)
        self.python = random.Random(4)
        self.text = "not state"
        self.itself = self

    @property
    def price(self) -> int:
        raise AssertionError("no code of the user's is called")


class Kept:
    """Keeps state in a class and in objects of the standard library."""

    shared: ClassVar = Counter(a=1)

    def __init__(self) -> None:
        self.bytes = bytearray(b"ab")
        self.array = array.array("d", [1.0])
        self.count = itertools.count(3)
        self.text = io.StringIO("abc")
        self.items = iter([1, 2, 3])
        self.phase = Phase.WARM
        self.space = types.SimpleNamespace(level=2)
        self.queue = deque([Holder()])


class Phase(enum.Enum):
    WARM = "warm"


def test_state_in_objects_of_the_standard_library_is_found():
    kept = Kept()
    found = {path: one.digest for path, one in reached(kept).items()}
    assert set(found) >= {f"it.{name}" for name in ("bytes", "array", "count", "text", "items", "phase")}
    assert {"it.space.level", "it.queue[0].slot"} <= set(found)
    next(kept.items)
    next(kept.count)
    kept.text.read(1)
    kept.bytes[0] = 1
    kept.array[0] = 2
    again = {path: one.digest for path, one in reached(kept).items()}
    assert {path for path in found if found[path] != again[path]} == {
        *("it.bytes", "it.array", "it.count", "it.text", "it.items")
    }
    assert next(kept.items) == 2


TEMPERATURE: contextvars.ContextVar[float] = contextvars.ContextVar("temperature", default=1.0)


def test_state_in_what_holds_values_for_others_is_found():
    """Such objects of the standard library are in Python, or have a way to read them that runs no other code."""
    found = {path: one.text for path, one in reached([*holders()]).items()}
    assert found == {
        "it[0].maps": "list of 2",
        "it[1].data": "dict of 1",
        "it[2].clip": "0.5",
        "it[3].level": "2",
        "it[4].get()": "1.0",
    }


def holders():
    yield collections.ChainMap({"clip": 0.5}, {})
    yield collections.UserDict(clip=0.5)
    yield argparse.Namespace(clip=0.5)
    local = threading.local()
    local.level = 2
    yield local
    yield TEMPERATURE
    yield contextvars.ContextVar("without a value")


class Fold(int):
    pass


class Mirrored(random.Random):
    mirror = None


def test_what_a_class_adds_to_a_number_or_generator_is_found():
    fold, generator = Fold(3), Mirrored(1)
    fold.strikes, generator.mirror = 1, 0.5
    found = {path: one.text for path, one in reached(types.SimpleNamespace(fold=fold, generator=generator)).items()}
    assert found == {
        "it.fold": "Fold: '3'",
        "it.fold.strikes": "1",
        "it.generator": "state of a Mirrored",
        "it.generator.mirror": "0.5",
        "it.generator.gauss_next": "None",
    }


def test_a_value_is_found_by_every_path():
    """Otherwise, a variable that a loop makes would hide where it is kept."""
    kept = Holder()
    kept.slot = np.ones(3)
    assert set(reached({"alpha": kept.slot, "kept": kept})) == {"it['alpha']", "it['kept'].slot"}


def test_variables_of_before_lead_to_an_object_first():
    """So its path stays the same, whatever the loop calls it in between."""

    zeta = Holder()
    observer = StateManager(train_cell()).observer()
    before = {path for path in observer.observe()[1] if path.endswith(".slot")}
    alpha = zeta
    assert {path for path in observer.observe()[1] if path.endswith(".slot")} == before
    assert alpha is zeta


def test_parameters_of_a_network_that_is_not_stored_are_found():
    """Also in its inner cells of MindSpore."""

    class Teacher:
        def __init__(self):
            self.network = Mlp()

    begin_process(mode="pynative")
    names = {name for name, _ in Mlp().parameters_and_names()}
    assert {f"it.network.{name}" for name in names} <= set(reached(Teacher()))


def test_state_in_a_class_is_found():
    assert "it.shared" in reached(Kept)


def test_plain_values_are_found_wherever_held():
    """They are found in attributes, slots, containers and generators."""
    found = reached(Owner(), shapes=[(2, 6)])
    plain = {"it.count", "it.arrays", "it.own", "it.python"}
    assert set(found) == plain | {"it.inner.slot", "it.several[0].slot", "it.by_name['a'].slot"}
    assert found["it.count"].text == "1"
    assert [path for path, one in found.items() if one.like_weights] == ["it.arrays"]


def test_much_below_one_thing_hides_no_other(monkeypatch):
    monkeypatch.setattr("ckptkit.mindspore.inspect.reachability._MAX_FOUND", 3)
    reach = Reachability((), set())
    things = {name: [Holder() for _ in range(5)] for name in ("one", "other")}
    for name, thing in things.items():
        reach.walk(name, thing)
    assert len([path for path in reach.found if path.startswith("one[")]) == 3
    assert len([path for path in reach.found if path.startswith("other[")]) == 3


def test_what_a_function_closes_over_is_found():
    level = [2]

    def scaled(x):
        return x * level[0] + later

    if not level:
        later = 1
    assert set(reached(scaled)) == {"it.level"}


def test_what_a_suspended_generator_holds_is_found():
    def batches():
        position = 3
        yield position

    running, over = batches(), batches()
    next(running)
    list(over)
    assert {path: one.text for path, one in reached(running).items()} == {"it.position": "3"}
    assert reached(over) == {}


def test_only_unstored_parameters_are_unseen():
    """Stored parameters are not unseen values, but others are, wherever they are held."""
    cell, scaler = train_cell(), ms.amp.DynamicLossScaler(1024, 2, 10)
    cell.network.copies = list(cell.optimizer.parameters)
    cell.network.scaler = scaler
    cell.network.pending = [ms.Tensor(np.zeros((8, 6), np.float32))]
    found = reached(cell, stored=list(cell.get_parameters()), shapes=[(8, 6)])
    mine = {path for path in found if path.startswith(("it.network.copies", "it.network.scaler", "it.network.pending"))}
    assert mine == {"it.network.scaler.scale_value", "it.network.scaler.counter", "it.network.pending"}
    assert found["it.network.pending"].like_weights


def test_reading_a_generator_does_not_advance_it():
    generator, python = np.random.default_rng(3), random.Random(3)
    before = digest_of_value([generator, python])
    assert digest_of_value([generator, python]) == before
    assert generator.random() == np.random.default_rng(3).random()
    assert digest_of_value([generator, python]) != before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (0.0, -0.0),
        ([1, [2]], [[1], 2]),
        (np.zeros(4, np.float32), np.zeros(4, np.int32)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        ({"a": 1}, {"a": 2}),
        (ms.Tensor(X), ms.Tensor(X + 1)),
    ],
)
def test_other_bits_shapes_and_types_have_other_digests(one, other):
    assert digest_of_value(one) != digest_of_value(other)


def test_set_digest_is_stable_and_huge_values_excluded():
    """A set has the same digest in every order, and a huge value is not digested."""
    one, other = {0, 8}, {8, 0}
    assert [*one] != [*other], "CPython puts them one behind the other, as they come"
    assert digest_of_value(one) == digest_of_value(other)
    assert digest_of_value(frozenset({0, 8})) == digest_of_value(frozenset([8, 0]))
    assert not is_plain(np.broadcast_to(np.float32(0), (1 << 27,)))
    assert not is_plain([object()])
    assert not is_plain(np.array([object()]))
    assert not is_plain(initializer("zeros", (2, 3)))  # has no bits yet
    assert is_plain([0] * 10_000)
    assert not is_plain([0] * 10_001)
    itself = []
    itself.append(itself)
    assert not is_plain(itself)
    assert in_words([np.ones(2)] * 3) == "list of 3 (3 arrays)"


def test_pipeline_code_is_named_with_its_place():
    def augment(x):
        return x + np.float32(np.random.random())

    dataset = ds.NumpySlicesDataset((X, Y), ["x", "y"]).map(augment, ["x"]).batch(2)
    ((where, code),) = code_of(dataset)
    assert "augment() in test_observe.py:" in where
    assert where.startswith("MapDataset: ")
    assert code is augment
    numbers = Numbers()
    assert list(code_of(ds.GeneratorDataset(numbers, ["x"]).batch(2))) == [("GeneratorDataset: Numbers", numbers)]


class Numbers:
    def __init__(self) -> None:
        self.given = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index):
        self.given += 1
        return (np.full(3, index, np.float32),)


class Ema(Callback):
    def __init__(self) -> None:
        self.decay = 0.5


def test_state_of_callbacks_and_pipelines_is_unseen():
    dataset = ds.GeneratorDataset(Numbers(), ["x"]).batch(2)
    companions = OtherCallbacks()
    state = StateManager(train_cell(), dataset, callbacks=companions)
    companions.bind([Ema()], [], lambda cell: True)
    observer = state.observer()
    _, unseen = observer.observe()
    assert [one.where for one in observer.suspects() if one.kind == READS_AHEAD] == ["GeneratorDataset: Numbers"]
    assert unseen["callback Ema.decay"].text == "0.5"
    assert unseen["GeneratorDataset: Numbers.given"].text == "0"


def test_object_that_draws_in_state_dict_is_named():
    """The draw is undone."""

    class Draws:
        def state_dict(self):
            return {"next": random.random()}

        def load_state_dict(self, state):
            raise AssertionError

    class Still(Draws):
        def state_dict(self):
            return {}

    state = StateManager(train_cell(), a=Still(), b=Draws())
    before = random.getstate()
    observer = state.observer()
    assert isinstance(observer, StateObserver)
    assert observer.drawing_in_state_dict() == ["b (Draws)"]
    assert random.getstate() == before


def test_what_a_loop_makes_anew_was_not_lost():
    """A variable of before with such a name is no state: what it held at the restore is never read."""
    begin_process(mode="pynative")
    rows, level, step, total = [], 3, 0, 0
    for row in range(3):
        rows.append(row)
        step = row
    observer = StateManager(train_cell()).observer()
    found = [set(observer.observe()[1])]
    for row in rows:
        step = row + level
        total += row + step
        found.append(set(observer.observe()[1]))
    names = [{path.partition("():")[2] for path in one} & {"row", "rows", "level", "step", "total"} for one in found]
    assert names[:2] == [{"rows", "level", "total"}, {"rows", "level", "step", "total", "row"}]
