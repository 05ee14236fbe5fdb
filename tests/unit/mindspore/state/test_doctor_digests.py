"""What the doctor sees of a training, and that looking changes nothing."""

import random
import types

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn
from mindspore.common.initializer import initializer
from support.loaders import WithState
from support.training import Mlp, begin_process

import ckptkit
from ckptkit.errors import ResumeError
from ckptkit.mindspore.state.digest import digest_of_value, is_plain
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.mindspore.train.cell import AccumulationTrainCell

X, Y = np.ones((2, 6), np.float32), np.zeros((2, 3), np.float32)


def train_cell() -> AccumulationTrainCell:
    begin_process()
    net = Mlp()
    return AccumulationTrainCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), accumulation_steps=2)


def differing(before: dict, after: dict) -> set:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def test_looking_changes_nothing_and_training_goes_on_alike():
    def trained(look: bool) -> dict:
        cell = train_cell()
        observer = StateManager(cell).observer()
        for _ in range(3):
            loss = cell(ms.Tensor(X), ms.Tensor(Y))
            if look:
                observer.observe()
        np.random.random()
        return {**observer.observe()[0], "loss": digest_of_value(loss)}

    assert trained(look=True) == trained(look=False)


def test_every_kind_of_state_has_own_names():
    cell = train_cell()
    observer = StateManager(cell).observer()
    assert isinstance(cell, AccumulationTrainCell)
    assert type(cell).__qualname__ == "AccumulationTrainCell", "a watched cell keeps its name"
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
    assert {"weights/out.bias", "optimizer/moments.out.bias"} <= differing(after, updated)
    cell.optimizer.momentum.set_data(ms.Tensor(0.5, ms.float32), slice_shape=False)
    with pytest.raises(ResumeError, match=r"momentum got new memory after the first update"):
        observer.observe()


def test_told_batch_replaces_batch_of_cell_call():
    """A step got what the loop told, or else what the cell was called with; what the loop made of it is seen, too."""
    cell = train_cell()
    state = StateManager(cell, ds.NumpySlicesDataset((X, Y), ["x", "y"]).batch(2))
    observer = state.observer()
    rows, label = ms.Tensor(X), ms.Tensor(Y)
    cell(rows, label)
    x, y, loss = digest_of_value(rows), digest_of_value(label), observer.observe()[0]["loss"]
    for told, expected in [
        (None, {"batch/0": x, "batch/1": y}),
        ([ms.Tensor(Y), ms.Tensor(X)], {"batch/x": y, "batch/y": x, "input/0": x, "input/1": y}),
        ([label], {"batch/0": y, "input/0": x}),  # a column that a callback took out leaves the names unknown
        ({"number": 3, "label": label}, {"batch/number": digest_of_value(3), "batch/label": y, "input/0": x}),
    ]:
        state.observe_step(told, None)
        seen, _ = observer.observe()
        assert {name: one for name, one in seen.items() if name.startswith(("batch/", "input/"))} == expected
        assert seen["loss"] == loss


class Stored:
    def __init__(self):
        self.module, self.cache, self.draws = types.SimpleNamespace(weights=np.zeros(4), itself=self), 0, False

    def state_dict(self):
        return {"weights": self.module.weights.copy(), "n": 1, **({"drawn": random.random()} if self.draws else {})}

    def load_state_dict(self, state):
        raise AssertionError


class Scaled:
    def __init__(self):
        self.scale, self.at = ms.Parameter(1.0, name="kept_scale"), 5.0


def test_what_checkpoints_hold_of_objects_given_by_name_is_compared():
    """Parameters are a kind of their own, and so is what no array tells: a clock may differ in each run.

    What an object draws for that is put back, and it is named.
    """
    kept, rng, switch = Stored(), np.random.default_rng(3), types.SimpleNamespace(factor=1.0, shown=0)
    holder, scale = Scaled(), ms.Parameter(ms.Tensor([1.0], ms.float32), name="scale")
    second = train_cell()
    for parameter in second.get_parameters():
        parameter.name = f"second.{parameter.name}"
    given = {"kept": kept, "rng": rng, "switch": ckptkit.attributes(switch, "factor")}
    observer = StateManager(train_cell(), **given, holder=holder, scales=[scale], second=second).observer()

    def observed():
        found = observer.observe()[0]
        return {name: one for name, one in found.items() if name.startswith(("named/", "parameters/", "told/"))}

    before = observed()
    parameters = {name for name in before if name.startswith("parameters/")}
    names = {"parameters/holder/scale", "parameters/scales/0"}
    cell = {name.replace("second.", "") for name in parameters - names}
    assert names <= parameters
    assert {"parameters/second/out.bias", "parameters/second/accum.out.bias"} <= cell
    others = {"named/kept.weights", "told/kept.n", "named/rng", "named/switch", "named/holder", "named/second"}
    assert before.keys() - parameters == others
    kept.cache, switch.shown = 1, 1
    assert observed() == before
    kept.module.weights[1], switch.factor = 1, 0.5
    rng.normal()
    ms.ops.assign(scale, ms.Tensor([2.0], ms.float32))
    ms.ops.assign(holder.scale, 2.0)
    after = observed()
    assert differing(before, after) == {"named/kept.weights", "named/rng", "named/switch", *names}
    second(ms.Tensor(X), ms.Tensor(Y))
    changed = differing(after, observed())
    assert "named/second" in changed
    assert all("second" in name for name in changed)
    assert observer.drawing_in_state_dict() == []
    generator, kept.draws = random.getstate(), True
    observed()
    assert observer.drawing_in_state_dict() == ["kept (Stored)"]
    assert random.getstate() == generator


def test_what_training_reaches_is_told_from_the_first_batch_on(tmp_path):
    """The looks of the doctor do not take the place of those that decide what is stored."""
    cell, agent = train_cell(), types.SimpleNamespace(count=0, level=1.0)
    batches = ckptkit.data.resumable(WithState([(ms.Tensor(X), ms.Tensor(Y))] * 6), 1)
    state = StateManager(cell, batches)
    here = "test_what_training_reaches_is_told_from_the_first_batch_on()"
    with ckptkit.CheckpointManager(tmp_path / "run") as manager:
        manager.restore(state)
        observer = state.observer()
        assert (observer.observe()[1], observer.began(), observer.unstored()) == ({}, {}, {})
        for x, y in batches:
            agent.count += 1
            agent.level = 1.0 if agent.count < 3 else 0.5  # no look is due after three micro-steps
            cell(x, y)
            manager.step(state)
            _, reached = observer.observe()
            assert reached[f"{here}: agent.count"] == reached["loader WithState.done"] == f"int {agent.count}"
            assert observer.began()[f"{here}: agent.count"] == "int 0"
            if agent.count == 3:
                assert "agent.level" in str(state.capture().state["observed"])


def test_other_bits_shapes_and_types_have_other_digests():
    values = [1, 1.0, 0.0, -0.0, [1, [2]], [[1], 2], [1], (1,), {"a": 1}, {"a": 2}, ms.Tensor(X), ms.Tensor(X + 1)]
    values += [np.zeros(4, np.float32), np.zeros(4, np.int32), np.zeros((2, 3)), np.zeros((3, 2))]
    assert len({digest_of_value(value) for value in values}) == len(values)


def test_huge_and_other_values_are_not_plain():
    itself = []
    itself.append(itself)
    assert is_plain([0] * 10_000)
    without_bits, huge = initializer("zeros", (2, 3)), np.broadcast_to(np.float32(0), (1 << 27,))
    for value in (huge, [object()], np.array([object()]), without_bits, [0] * 10_001, itself):
        assert not is_plain(value), type(value)
