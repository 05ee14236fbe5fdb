"""Several train cells in one training, as a GAN has: each is counted, stored and restored, or refused with advice."""

from __future__ import annotations

import functools

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from support.memory import contents_of
from support.own_loop import OwnLoop
from support.training import (
    NOTES,
    CrashError,
    begin_process,
    digest,
    pipeline,
)

import ckptkit as ck
from ckptkit.mindspore.parameters.parameters import CellParameters
from ckptkit.mindspore.state.holders import steady_beside
from ckptkit.mindspore.train.cell import CycleCounters, refuse_half_restored

BATCH = ms.Tensor(np.ones((2, 6), np.float32)), ms.Tensor(np.ones((2, 3), np.float32))
AT_BEGIN = "a000001-c0000000000-m0000"


class Part(nn.Cell):
    """One of the two networks; the second one also reads the first one's weights."""

    def __init__(self, name, other=None):
        super().__init__(auto_prefix=False)
        self.out = nn.Dense(6, 3)
        self.update_parameters_name(f"{name}.")
        self.other = other

    def construct(self, x, y):
        wanted = y if self.other is None else y + ops.stop_gradient(self.other.out(x))
        return ops.square(self.out(x) - wanted).mean()


def pair(k=4, other_k=3, **options):
    first = Part("g")
    second = Part("d", first)
    return [
        ck.AccumulationTrainCell(item, nn.Adam(item.out.trainable_params(), 0.01), steps, **options)
        for item, steps in ((first, k), (second, other_k))
    ]


def begun(mode="pynative", **options):
    begin_process(mode=mode)
    first, second = (cell.set_train() for cell in pair(**options))
    state = ck.StateManager(first, d=second)
    state.begin("runs/gan")
    return first, second, state


def restored(contents, training=None, **options):
    first, second = (cell.set_train() for cell in pair(**options))
    state = ck.StateManager(first, d=second, training=training)
    state.apply(contents)
    return first, second, state


class Around(nn.Cell):
    def __init__(self, *cells):
        super().__init__(auto_prefix=False)
        self.inner = nn.CellList(list(cells))

    def construct(self, x, y):
        return [cell(x, y) for cell in self.inner]


def by_name(first, second, batches):
    return ck.StateManager(first, batches, training=ck.Training(ignore=NOTES), d=second)


class Life(OwnLoop):
    """Trains both to the end or the crash; the second cell is called twice for each third batch."""

    def __init__(self, root, *, mode="pynative", crash_at=None, given=by_name, cells=pair, **options):
        begin_process(mode=mode)
        self.first, self.second = cells()
        self.crash_at = crash_at
        batches = ck.data.resumable(pipeline(), 2)
        state = given(self.first, self.second, batches)
        super().__init__(root, self.first, batches, state=state, **{"save": ck.SaveEvery(micro_steps=1), **options})
        try:
            self.run()
        except CrashError:
            assert crash_at

    def train(self, batch):
        done = self.first.counters.micro_steps + 1
        if done == self.crash_at:
            raise CrashError
        self.first(*batch)
        for _ in range(1 + (done % 3 == 0)):
            self.second(*batch)

    def look(self, batch):
        return digest(self.first) + digest(self.second)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    @functools.cache
    def life(mode="pynative"):
        return Life(tmp_path_factory.mktemp("whole"), mode=mode, save=ck.SaveEvery(micro_steps=1000))

    return life


@pytest.mark.parametrize(("mode", "crash_at"), [("pynative", 7), ("graph", 14)])
def test_two_train_cells_resume_exactly_in_both_cycles(tmp_path, uninterrupted, mode, crash_at):
    whole = uninterrupted(mode)
    first = Life(tmp_path / "cut", mode=mode, crash_at=crash_at)
    second = Life(tmp_path / "cut", mode=mode)
    assert min(second.steps) == crash_at
    assert first.steps | second.steps == whole.steps
    assert whole.second.counters.micro_steps == 2 * 11 + 7
    assert second.second.counters == whole.second.counters


def test_second_cell_goes_where_first_cell_does(tmp_path, uninterrupted):
    whole = uninterrupted()
    Life(tmp_path / "cut", crash_at=16, mid_cycle="rewind")
    second = Life(tmp_path / "cut", mid_cycle="rewind")
    assert min(second.steps) == 13
    assert {step: whole.steps[step] for step in second.steps} == second.steps


def advised_around(first, second, batches):
    return ck.StateManager(Around(first, second), batches, training=ck.Training(ignore=NOTES), g=first, d=second)


def test_refusal_of_several_cells_gives_working_advice(tmp_path):
    for wrong in (
        lambda g, d: ck.StateManager([g, d]),
        lambda g, d: ck.StateManager([d, g]),
        lambda g, d: ck.StateManager([g, d.network, d], net=d.network),
        lambda g, d: ck.StateManager([g, Around(d)]),
        lambda g, d: ck.StateManager(Around(g, d)),
    ):
        with pytest.raises(ValueError, match="each of these counts its own cycles") as caught:
            wrong(*pair())
        assert "of Part (g.out.weight, ...)" in str(caught.value)
        assert "of Part (d.out.weight, ...)" in str(caught.value)
        assert "StateManager(CELL, dataset, NAME=OTHER_CELL)" in str(caught.value)
    whole = Life(tmp_path / "whole", given=advised_around, save=ck.SaveEvery(micro_steps=1000))
    Life(tmp_path / "cut", crash_at=19, given=advised_around)
    resumed = Life(tmp_path / "cut", given=advised_around)
    assert min(resumed.steps) == 19
    assert {step: whole.steps[step] for step in resumed.steps} == resumed.steps


def test_weights_that_another_cell_updates_are_unsteady():
    first, other = pair()
    shared = ck.AccumulationTrainCell(first.network, nn.SGD(first.network.out.trainable_params()), 2)
    assert steady_beside([first.optimizer], [other]) == [first.optimizer]
    assert steady_beside([first.optimizer], [other, shared]) == []


def test_single_train_cell_within_another_is_refused():
    first, _ = pair()
    with pytest.raises(ValueError, match="Give the cell around it first"):
        ck.StateManager(Around(first))
    assert ck.StateManager(Around(first), inner=first).cell is not first


def test_second_cell_that_differs_is_refused_unchanged():
    _, second, state = begun()
    second(*BATCH)
    contents = contents_of(state.capture(), AT_BEGIN)
    for cells, match in (
        (
            lambda: pair(other_k=5),
            r"train cell d of the checkpoint was taken with accumulation_steps=3, this train cell has 5",
        ),
        (lambda: pair(other_k={0: 3, 50: 6}), r"accumulation_steps=3, this train cell has \{0: 3, 50: 6\}"),
        (lambda: [pair()[0], pair(normalize="samples")[1]], "normalize='micro_batches', this train cell has 'samples'"),
        (lambda: [pair()[0], pair(remainder="drop")[1]], "remainder='carry', this train cell has 'drop'"),
    ):
        first, second = cells()
        before = digest(first) + digest(second)
        with pytest.raises(ck.ResumeError, match=match):
            ck.StateManager(first, d=second).apply(contents)
        assert digest(first) + digest(second) == before, match


def test_other_k_of_second_cell_begins_at_boundary():
    for calls, counters in ((2, CycleCounters(5, 0, 1, 1, 2, 2)), (1, CycleCounters(2, 1, micro_steps=1))):
        _, second, state = begun(other_k=2)
        for _ in range(calls):
            second(*BATCH)
        contents = contents_of(state.capture(), AT_BEGIN)
        _, second, _ = restored(contents, ck.Training(on_k_change="next_cycle"), other_k=5)
        assert second.counters == counters, calls
    second(*BATCH)
    assert second.counters == CycleCounters(5, 0, 1, 1, 2, 2)


def test_what_else_moved_second_cell_fails_the_save():
    _, second, state = begun()
    second(*BATCH)
    state.capture()
    second.accumulators[-1].set_data(ms.Tensor(np.float32(2)))
    with pytest.raises(ck.ResumeError, match=r"accum\.divisor counted 2 micro-steps"):
        state.capture()
    with pytest.raises(ck.ResumeError, match="called 1 times already"):
        state.begin("runs/gan")


@pytest.mark.parametrize("reading", ["read_from", "read_again_from"])
def test_failed_read_marks_second_cell_too(monkeypatch, reading):
    contents = contents_of(begun()[2].capture(), AT_BEGIN)
    first, second, state = restored(contents)

    def fails(*given):
        raise ck.StorageError("gone")

    monkeypatch.setattr(CellParameters, reading, fails)
    with pytest.raises(ck.StorageError, match="gone"):
        state.start.undo_changes() if reading == "read_again_from" else state.apply(contents)
    for refused in (first, second, state.progress, functools.partial(state.begin, "runs/other")):
        with pytest.raises(ck.ResumeError, match="are half restored from a000001"):
            refused()
    monkeypatch.undo()
    state.apply(contents)
    refuse_half_restored([first, second])


def test_the_doctor_compares_the_second_cell():
    begin_process()
    first, second = pair()
    observer = ck.StateManager(first, d=second).observer()
    before, _ = observer.observe()
    second(*BATCH)
    after, unseen = observer.observe()
    changed = {name for name in after if before[name] != after[name]}
    assert {"parameters/d/accum.divisor", "named/d"} <= changed
    assert [path for path in unseen if "accum" in path] == []


def test_switches_of_second_cell_are_put_back(shown):
    _, second, state = begun()
    second.network.out.bias.requires_grad = False
    second.network.out.set_train(False)
    _, second, state = restored(contents_of(state.capture(), AT_BEGIN))
    second.network.out.bias.requires_grad = True
    state.iterator_made()
    assert not second.network.out.bias.requires_grad
    assert not second.network.out.training
    assert "requires_grad of d/d.out.bias: restored to the value at the save" in shown()
    second.network.out.bias.requires_grad = True
    state.progress()
    assert second.network.out.bias.requires_grad, "from the loop's beginning on, switching is its own"


def test_memory_that_second_cell_ignores_fails_saves():
    _, second, state = begun()

    def train(micro_steps):
        for _ in range(micro_steps):
            second(*BATCH)
            state.capture()

    train(4)
    ops.assign(second.network.out.bias, ms.Tensor(np.ones(3, np.float32)))
    train(3)
    second.network.out.bias.set_data(ms.Tensor(np.ones(3, np.float32)))
    with pytest.raises(ck.ResumeError, match=r"^d/d\.out\.bias got new memory after the first update"):
        train(4)


def test_modes_of_second_cell_are_noted_in_graph():
    _, second, state = begun("graph")
    second.network.out.set_train(False)
    second.load_counters(CycleCounters(3, 1, micro_steps=1))  # as its first call does
    state.progress()
    assert state._sources.stateful["d"].switches.record()["evaluating"] == ["out"]


def test_modes_before_second_cells_next_call_count():
    _, second, state = begun("graph")
    second.load_counters(CycleCounters(3, 0, 1, 1, 3, 3))  # as its calls do
    _, second, state = restored(contents_of(state.capture(), AT_BEGIN))
    state.progress()
    state.iterator_made()
    second.network.out.set_train(False)
    second.load_counters(CycleCounters(3, 0, 2, 2, 6, 6))
    with pytest.raises(ck.ResumeError, match="set_train of d/out was switched before the first micro-step"):
        state.progress()
