"""What training changes and the data are made of is named before training: a resume reads the data without it."""

from __future__ import annotations

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback
from support.training import accumulation_cell, begin_process

import ckptkit as ck
from ckptkit.mindspore.inspect import find_in_steps_of_callbacks, read_here
from ckptkit.mindspore.state.manager import StateManager

WORDS = "the code of the data reads it"
X = np.arange(24, dtype=np.float32).reshape(12, 2)
ROWS = [(ms.Tensor(X[:4]), ms.Tensor(np.ones((4, 1), np.float32)))]
SHIFT = 0.0


class Source:
    def __init__(self):
        self.scale, self.weights, self.extra, self.size, self.reads = 1.0, np.ones(12), [], 12, 0

    def set_scale(self, scale):
        self.scale = scale

    def __getitem__(self, index):
        self.reads += 1
        row = X[index] * np.float32(self.scale * self.weights[index])
        return row if not self.extra else row + self.extra[-1], np.ones(1, np.float32)

    def __len__(self):
        return self.size


class Rows:
    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        for x, y in ROWS:
            yield x * self.inner.scale, y


class BySource(Source):
    def __iter__(self):
        yield from ROWS[: int(self.scale)]


class ByNetwork:
    def __init__(self, network):
        self.network = network

    def __iter__(self):
        losses = [float(self.network(x, y)) for x, y in ROWS]
        for at in np.argsort(losses):
            yield ROWS[at]


class Shuffled:
    def __init__(self, rng):
        self.rng = rng

    def __iter__(self):
        for at in self.rng.permutation(1):
            yield ROWS[at]


class WithState(Rows):
    def state_dict(self):
        return {"scale": self.inner.scale}

    def load_state_dict(self, state):
        self.inner.scale = state["scale"]


def shifted(x):
    return x + np.float32(SHIFT)


def pipeline(source, **options):
    return ds.GeneratorDataset(source, ["x", "y"], num_parallel_workers=1, **options).batch(4)


def by_an_attribute(state, cell, batches, source):
    yield state.findings()
    for x, y in batches:
        if float(cell(x, y)) < 1:
            source.scale = 0.5


def by_a_method(state, cell, batches, source):
    yield state.findings()
    for at, (x, y) in enumerate(batches):
        source.set_scale(1 / (at + 1))
        cell(x, y)


def by_an_item(state, cell, batches, source):
    yield state.findings()
    for x, y in batches:
        source.weights[3] = float(cell(x, y))


def by_a_list(state, cell, batches, source):
    yield state.findings()
    for x, y in batches:
        cell(x, y)
        source.extra.append(x)


def by_an_alias(state, cell, batches, source):
    weights = source.weights
    yield state.findings()
    for x, y in batches:
        weights[3] = float(cell(x, y))


def by_a_global(state, cell, batches, source):
    global SHIFT  # noqa: PLW0603 - what is tested
    yield state.findings()
    for x, y in batches:
        cell(x, y)
        SHIFT = 0.1


def by_the_rows(state, cell, batches, source):
    yield state.findings()
    for x, y in batches:
        cell(x, y)
        source.reverse()


def by_a_draw(state, cell, batches, source):
    yield state.findings()
    for x, y in batches:
        cell(x + float(source.normal()), y)


def only_read(state, cell, batches, source):
    source.scale = 2.0  # before the loop, by every start
    yield state.findings()
    seen = []
    for x, y in batches:
        cell(x, y)
        seen.append(source.scale)
        print(source.reads, len(source), seen)


def of_another_name(state, cell, batches, source):
    yield state.findings()
    for x, y in batches:
        cell(x, y)
        source.shown = 1
        source.size += 0


def found(loop, data, source):
    begin_process()
    cell = accumulation_cell()
    batches = ck.data.resumable(data, 2)
    state = StateManager(cell, batches)
    return [one for one in next(loop(state, cell, batches, source)) if WORDS in str(one)]


@pytest.mark.parametrize(
    ("loop", "named"),
    [
        (by_an_attribute, "source.scale"),
        (by_a_method, "source.scale"),
        (by_an_item, "source.weights"),
        (by_a_list, "source.extra"),
        (by_an_alias, "weights"),
    ],
)
def test_what_a_loop_tells_its_pipeline_is_named(loop, named):
    source = Source()
    assert [one.where.rpartition(": ")[2] for one in found(loop, pipeline(source), source)] == [named]


def test_global_that_a_map_reads_is_named():
    dataset = ds.NumpySlicesDataset((X, X), ["x", "y"]).map(shifted, ["x"], num_parallel_workers=1).batch(4)
    assert [one.where for one in found(by_a_global, dataset, None)] == ["by_a_global(): SHIFT"]


def test_array_of_slices_that_a_loop_changes_is_named():
    class Held:
        def __init__(self):
            self.weights = X.copy()

    held = Held()
    dataset = ds.GeneratorDataset([*held.weights], ["x"], num_parallel_workers=1).batch(4)
    assert found(by_an_item, dataset, held) == []  # copies
    dataset = ds.NumpySlicesDataset((held.weights, X), ["x", "y"]).batch(4)
    assert len(found(by_an_item, dataset, held)) == 1


@pytest.mark.parametrize("wrap", [Rows, lambda source: source], ids=["inside", "itself"])
def test_what_a_loop_tells_its_loader_is_named(wrap):
    source = BySource()
    assert len(found(by_an_attribute, wrap(source), source)) == 1


def test_list_of_batches_that_a_loop_changes_is_named():
    rows = [*ROWS]
    assert [one.where for one in found(by_the_rows, rows, rows)] == ["by_the_rows(): source"]


def test_loader_that_asks_the_network_is_named():
    cell = accumulation_cell()
    assert [one.where for one in found(only_read, ByNetwork(cell.network), Source())] == ["the data: self.network"]
    frozen = nn.Dense(2, 1)
    for one in frozen.get_parameters():
        one.requires_grad = False
    assert found(only_read, ByNetwork(frozen), Source()) == []


def test_generator_that_data_and_loop_draw_from_is_named():
    rng = np.random.default_rng(0)
    assert [one.where for one in found(by_a_draw, Shuffled(rng), rng)] == ["by_a_draw(): source"]
    assert found(by_a_draw, Shuffled(np.random.default_rng(0)), rng) == []


@pytest.mark.parametrize("loop", [only_read, of_another_name])
def test_what_the_data_do_not_read_is_not_named(loop):
    source = Source()
    assert found(loop, pipeline(source), source) == []


class Learning:
    """A loader that the loop tells its losses; ``stored`` of what it keeps are in its state."""

    def __init__(self, *stored):
        self.at, self.share, self.speed, self._stored = 0, 0.5, 0.0, stored

    def told(self, loss):
        self.speed = 0.8 * self.speed + loss
        self.share += self.speed

    def __iter__(self):
        self.at += 1
        yield self.share * X, X


class InPart(Learning):
    def state_dict(self):
        return {"at": self.at, "share": self.share}

    def load_state_dict(self, state):
        self.at, self.share = state["at"], state["share"]


class Whole(Learning):
    def state_dict(self):
        return {"at": self.at, "share": self.share, "speed": self.speed}

    def load_state_dict(self, state):
        self.at, self.share, self.speed = state["at"], state["share"], state["speed"]


class ByDict(Learning):
    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


@pytest.mark.parametrize(("kind", "named"), [(InPart, ["speed"]), (Whole, []), (ByDict, [])])
def test_what_the_state_of_a_loader_leaves_out_is_named(kind, named):
    def loop(state, cell, batches, loader):
        yield state.findings()
        for x, y in batches:
            loader.told(float(cell(x, y)))

    begin_process()
    cell, loader = accumulation_cell(), kind()
    batches = ck.data.resumable(loader, 2)
    words = [str(one) for one in next(loop(StateManager(cell, batches), cell, batches, loader))]
    assert [one.partition("carries ")[2].partition(" from")[0] for one in words if "loader" in one] == named


def test_state_of_the_loader_is_not_named():
    source = Source()
    assert found(by_an_attribute, WithState(source), source) == []


def test_worker_processes_do_not_see_changes():
    source = Source()
    dataset = pipeline(source).map(lambda x: x, ["x"], num_parallel_workers=1)
    assert len(found(by_an_attribute, dataset, source)) == 1
    dataset = ds.GeneratorDataset(source, ["x", "y"], num_parallel_workers=2, python_multiprocessing=True).batch(4)
    assert found(by_an_attribute, dataset, source) == []


MOSAIC = Source()


class OffAtEnd(Callback):
    def on_train_epoch_end(self, run_context):
        if run_context.original_args().cur_epoch_num == 3:
            MOSAIC.scale = 0.5


class Shows(Callback):
    def on_train_step_end(self, run_context):
        self.shown = MOSAIC.scale
        print(MOSAIC.reads)


@pytest.mark.parametrize(("kind", "named"), [(OffAtEnd, ["MOSAIC.scale"]), (Shows, [])])
def test_what_a_callback_tells_the_data_is_named(kind, named):
    findings = find_in_steps_of_callbacks([kind()], [], read_here(pipeline(MOSAIC)))
    assert [one.where.rpartition(": ")[2] for one in findings if WORDS in str(one)] == named
