"""What `ckptkit doctor` records of a training's calls and of its data's operations."""

from __future__ import annotations

import random
import sys

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn, ops

from ckptkit.mindspore.inspect.recording.calls import CallRecorder
from ckptkit.mindspore.inspect.recording.operations import record_operations
from ckptkit.mindspore.inspect.recording.settings import use_settings
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.mindspore.train.cell import AccumulationTrainCell


@pytest.fixture(autouse=True)
def modes():
    yield
    ms.set_context(mode=ms.GRAPH_MODE)


def recorded(function, *arguments, names=None):
    """The events of a call."""
    events = []
    before = sys.getprofile()
    CallRecorder(names or {}, events.append).start()
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    return events


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, 2)
        self.drop = nn.Dropout(p=0.5)

    def construct(self, x):
        return ops.relu(self.drop(self.dense(x)))


X = np.arange(12, dtype=np.float32).reshape(4, 3)


def of(events, event, kind):
    return [one for one in events if (one.event, one.kind) == (event, kind)]


def test_cells_and_operators_are_recorded_in_order():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = Net().set_train()
    names = {id(net): "net (Net)", id(net.dense): "net.dense (nn.Dense)", id(net.drop): "net.drop (nn.Dropout)"}
    events = recorded(net, ms.Tensor(X), names=names)
    assert [(one.where, one.depth) for one in of(events, "call", "cell")] == [
        ("net (Net)", 0),
        ("net.dense (nn.Dense)", 1),
    ]
    (drop,) = of(events, "call", "random cell")
    assert (drop.where, drop.depth) == ("net.drop (nn.Dropout)", 1)
    (dense,) = (one for one in of(events, "return", "cell") if "dense" in one.where)
    assert set(dense.values) == {"output"}
    assert dense.values["output"] in drop.values.values() or len(drop.values) == 1
    operators = [one.where for one in events if one.event == "call" and one.kind.endswith("operator")]
    assert [one for one in operators if one in ("operator MatMul", "operator ReLU")] == [
        "operator MatMul",
        "operator ReLU",
    ]
    assert all("test_recorded_calls.py" in one.line for one in of(events, "call", "cell"))


def test_records_of_equal_calls_are_equal():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net, grown = nn.Dense(3, 2), ms.Tensor(X + 1)
    first, second, third = (recorded(net, one) for one in (ms.Tensor(X), ms.Tensor(X), grown))
    values = [[one.values for one in events] for events in (first, second, third)]
    assert values[0] == values[1] != values[2]


def test_graph_is_one_call():
    ms.set_context(mode=ms.GRAPH_MODE)
    net = nn.Dense(3, 2)
    net(ms.Tensor(X))
    events = recorded(net, ms.Tensor(X))
    assert [(one.event, one.where) for one in events if one.kind == "graph"] == [("call", "Dense"), ("return", "Dense")]
    assert not of(events, "call", "operator")


def test_gradients_are_recorded():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = nn.Dense(3, 1)

    def loss(x):
        return net(x).mean()

    events = recorded(ms.value_and_grad(loss, None, net.trainable_params()), ms.Tensor(X))
    (back,) = of(events, "return", "gradients")[-1:]
    assert back.values
    assert back.where == "the gradients of test_gradients_are_recorded.<locals>.loss"


def jitter():
    return random.random()


def scaled(x):
    return ops.mul(x, jitter())


def test_numbers_of_code_and_what_it_calls_are_noted():
    """Of the user's code they are only drawn, of an operator they are inputs."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    random.seed(3)
    events = recorded(scaled, ms.Tensor(X))
    (drawn,) = (one for one in of(events, "return", "code") if one.where.startswith("jitter()"))
    assert (drawn.values, list(drawn.drawn), drawn.called) == ({}, ["output.0"], ("Random.random",))
    multiplied = next(one for one in of(events, "call", "function") if "mul" in one.where)
    assert drawn.drawn["output.0"] in multiplied.values.values()
    assert sum(one.where.startswith("scaled()") for one in events) == 2


def test_generator_under_construction_is_not_read():
    events = recorded(lambda: random.Random(3).random())
    assert any(one.where == "random.Random.seed" for one in events)


def test_call_of_a_watched_train_cell_is_recorded_and_its_save_is_not():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = nn.WithLossCell(nn.Dense(3, 2), nn.MSELoss())
    cell = AccumulationTrainCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), 2)
    state = StateManager(cell)
    observer = state.observer()  # watches the cell's calls

    def step():
        cell(ms.Tensor(X), ms.Tensor(X[:, :2]))
        observer.observe()

    places = {one.where for one in recorded(step)}
    assert "operator MatMul" in places
    assert "random.Random.getstate" not in places


def test_libraries_are_not_the_users_code():
    events = recorded(lambda: __import__("json").dumps([1]))
    assert {one.where.partition("()")[0] for one in events} <= {"test_libraries_are_not_the_users_code.<lambda>"}


class Source:
    def __init__(self):
        self.rng = np.random.default_rng(3)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return (np.float32(self.rng.normal()),)


def doubled(x):
    return x * 2


def test_operations_of_data_are_recorded_and_give_the_same():
    def pipeline():
        made = ds.GeneratorDataset(Source(), ["x"], shuffle=False, num_parallel_workers=1)
        return made.map(doubled, ["x"], num_parallel_workers=1).batch(2)

    events = []
    plain, watched = pipeline(), pipeline()
    record_operations(watched, events.append)
    rows = [
        [row[0].tolist() for row in one.create_tuple_iterator(num_epochs=1, output_numpy=True)]
        for one in (plain, watched)
    ]
    assert rows[0] == rows[1]
    places = {one.where.partition(" in ")[0]: one.kind for one in events}
    assert places == {"GeneratorDataset: Source": "0", "MapDataset: doubled()": "1"}
    made = {one.values["output"] for one in events if one.kind == "0"}
    assert len(events) == 8
    assert len(made) == 4


def test_settings_are_set(monkeypatch):
    monkeypatch.setenv("MS_JIT", "1")
    before = ms.get_context("deterministic"), ds.config.get_num_parallel_workers(), ds.config.get_prefetch_size()
    use_settings(["pynative", "deterministic", "one worker", "read little ahead"])
    try:
        found = ms.get_context("mode"), ms.get_context("deterministic"), ds.config.get_num_parallel_workers()
        assert (*found, ds.config.get_prefetch_size()) == (ms.PYNATIVE_MODE, "ON", 1, 1)
    finally:
        ms.set_context(deterministic=before[0])
        ds.config.set_num_parallel_workers(before[1])
        ds.config.set_prefetch_size(before[2])
