"""How calls are counted: as a cycle adapter says, and by each of several train cells, as a GAN has."""

import functools
import itertools
import types

import mindspore as ms
import numpy as np
import pytest
from mindspore import boost, nn, ops
from support.memory import contents_of
from support.own_loop import OwnLoop
from support.training import (
    NOTES,
    CrashError,
    Mlp,
    accumulation_cell,
    adam,
    begin_process,
    digest,
    pipeline,
)

import ckptkit as ck
from ckptkit.mindspore.parameters.parameters import CellParameters
from ckptkit.mindspore.state.manager import StateManager, Training
from ckptkit.mindspore.train.cell import CycleCounters, refuse_half_restored
from ckptkit.mindspore.train.micro_steps import BoostCycle, CycleAdapter
from ckptkit.tools.interchange import export_weights
from ckptkit.tools.interchange.weights_file import open_weights

K = 3


class Boosted(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network = network
        self.accumulation = boost.GradientAccumulation(K, adam(network.trainable_params()))
        self.differentiate = ms.value_and_grad(network, None, self.accumulation.weights)

    def construct(self, x, y):
        loss, gradients = self.differentiate(x, y)
        return self.accumulation(loss, gradients)


def cycle_at(k, micro_step):
    return types.SimpleNamespace(accumulation_steps=k, micro_step=micro_step)


def boosted():
    cell = Boosted(Mlp())
    cell.set_train()
    return cell, BoostCycle(cell.accumulation)


def called(state, cell, calls):
    for batch in itertools.islice(pipeline().create_tuple_iterator(num_epochs=1), calls):
        cell(*batch)
        state.count_delivered()


def test_boost_says_k_and_its_micro_step():
    cell, cycle = boosted()
    state = StateManager(cell, training=Training(cycle=cycle))
    assert isinstance(cycle, CycleAdapter)
    seen = []
    for _ in range(7):
        now = state.progress()
        seen.append((now.cycles, now.micro_step, now.cycle_first_batch, now.updates))
        assert now.accumulation_steps == K
        called(state, cell, 1)
    assert seen == [(0, 0, 0, 0), (0, 1, 0, 0), (0, 2, 0, 0), (1, 0, 3, 1), (1, 1, 3, 1), (1, 2, 3, 1), (2, 0, 6, 2)]


def test_fence_before_an_update_comes_at_once():
    """Nobody can get between the micro-step and the update of the next call."""
    cell, cycle = boosted()
    state = StateManager(cell, training=Training(cycle=cycle))
    for micro_step in range(K):
        fenced = []
        state.guard(lambda fenced=fenced: fenced.append(True))
        assert bool(fenced) == (micro_step == K - 1), micro_step
        state._sources.counting.fence()
        assert fenced == [True]
        called(state, cell, 1)


def test_only_the_fenced_call_writes_steadily():
    own = type("Own", (ck.AccumulationTrainCell,), {"__call__": lambda self, *given: None})
    for kind, steady in ((ck.AccumulationTrainCell, 1), (own, 0)):
        cell = accumulation_cell()
        counting = StateManager(kind(cell.network, cell.optimizer, 2))._sources.counting
        assert len(counting.steady_optimizers()) == steady, kind


def test_fence_that_failed_is_tried_again():
    state, tries = StateManager(boosted()[0]), []

    def fence():
        tries.append(True)
        if len(tries) == 1:
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        state.guard(fence)  # without an adapter, the next call may update: it fences at once
    for _ in range(2):
        state._sources.counting.fence()
        assert tries == [True, True]


def test_boost_without_its_cycle_gives_a_hint(shown):
    cell, cycle = boosted()
    StateManager(cell, training=Training(cycle=cycle))
    assert "BoostCycle" not in shown()
    StateManager(cell)
    assert "cycle=ckptkit.BoostCycle(it)" in shown()


def test_foreign_accumulators_are_not_exported(root, tmp_path):
    cell, cycle = boosted()
    boost_saved(root, cell, cycle, 4)
    for with_optimizer in (False, True):
        done = export_weights(root, tmp_path / f"{with_optimizer}.safetensors", with_optimizer=with_optimizer)
        with open_weights(tmp_path / f"{with_optimizer}.safetensors") as file:
            assert not any("grad_accumulation" in name or "accumulation_step" in name for name in file.tensors)
            assert {*file.tensors} >= {parameter.name for parameter in cell.network.get_parameters()}
        assert "the accumulators, after micro-step 1 of 3" in done.left_out


def test_a_train_cell_may_say_it_itself():
    network = Mlp()
    network.accumulation_steps = K
    network.micro_step = ms.Parameter(ms.Tensor(np.array([2]), ms.int32), name="micro_step", requires_grad=False)
    state = StateManager(network)
    state.count_delivered(5)
    assert (state.progress().cycles, state.progress().micro_step) == (1, 2)
    with pytest.raises(ValueError, match="counted from 0"):
        state.count_delivered(-1)


def test_a_contradiction_is_refused():
    for k, micro_step, delivered in ((3, 1, 3), (3, 3, 3), (3, -1, 2), (3, 2, 1), (0, 0, 0)):
        state = StateManager(Mlp(), training=Training(cycle=cycle_at(k, micro_step)))
        state.count_delivered(delivered)
        with pytest.raises(
            ck.ResumeError, match=rf"SimpleNamespace\) says that it is at micro-step {micro_step} of cycles of {k}"
        ):
            state.progress()


def test_called_cell_is_no_fresh_start():
    cell, cycle = boosted()
    called(StateManager(cell, training=Training(cycle=cycle)), cell, 1)
    with pytest.raises(ck.ResumeError, match="micro-step 1"):
        StateManager(cell, training=Training(cycle=cycle)).begin("runs")


def boost_saved(root, cell, cycle, calls):
    state = StateManager(cell, training=Training(cycle=cycle))
    with ck.CheckpointManager(root) as manager:
        manager.restore(state)
        called(state, cell, calls)
        manager.save(state)


def test_restored_adapter_goes_on_where_it_was(root):
    boost_saved(root, *boosted(), 4)
    cell, cycle = boosted()
    state = StateManager(cell, training=Training(cycle=cycle))
    point = ck.CheckpointManager(root).restore(state)
    assert (point.micro_step, point.optimizer_step, cycle.micro_step, state.progress().cycles) == (1, 1, 1, 1)
    with pytest.raises(ck.ResumeError, match="accumulation_steps=3"):
        ck.CheckpointManager(root).restore(StateManager(Boosted(Mlp())))


def test_a_counter_outside_of_the_checkpoint_is_noticed(root):
    cycle = cycle_at(K, 0)
    state = StateManager(Mlp(), training=Training(cycle=cycle))
    with ck.CheckpointManager(root) as manager:
        manager.restore(state)
        cycle.micro_step = 2
        state.count_delivered(2)
        manager.save(state)
    said = r"micro-step 2 .*SimpleNamespace\) says 0: its counter is not in the checkpoint"
    with pytest.raises(ck.StateMismatchError, match=said):
        ck.CheckpointManager(root).restore(StateManager(Mlp(), training=Training(cycle=cycle_at(K, 0))))


def test_what_is_no_adapter_is_refused():
    with pytest.raises(TypeError, match="cycle must have accumulation_steps and micro_step, got object"):
        StateManager(Mlp(), training=Training(cycle=object()))
    with pytest.raises(ValueError, match="counts for itself"):
        StateManager(accumulation_cell(2), training=Training(cycle=cycle_at(K, 0)))
    with pytest.raises(TypeError, match=r"takes a boost\.GradientAccumulation, got Mlp"):
        BoostCycle(Mlp())


# Several train cells in one training: each is counted, stored and restored, or refused with advice


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


def begun(**options):
    first, second = (cell.set_train() for cell in pair(**options))
    state = ck.StateManager(first, d=second)
    state.begin("runs/gan")
    return first, second, state


def restored(contents, training=None, **options):
    first, second = (cell.set_train() for cell in pair(**options))
    state = ck.StateManager(first, d=second, training=training)
    state.apply(contents)
    return first, second, state


def around(*cells):
    return nn.CellList(list(cells), auto_prefix=False)


def by_name(first, second, batches):
    return ck.StateManager(first, batches, training=ck.Training(ignore=NOTES), d=second)


class Life(OwnLoop):
    """Trains both to the end or the crash; the second cell is called twice for each third batch."""

    def __init__(self, root, *, mode="pynative", crash_at=None, given=by_name, every=1, **options):
        begin_process(mode=mode)
        self.first, self.second = pair()
        self.crash_at = crash_at
        batches = ck.data.resumable(pipeline(), 2)
        state = given(self.first, self.second, batches)
        super().__init__(root, self.first, batches, state=state, save=ck.SaveEvery(micro_steps=every), **options)
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
        return Life(tmp_path_factory.mktemp("whole"), mode=mode, every=1000)

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


def test_refusal_of_several_cells_gives_working_advice(tmp_path):
    for wrong in (
        lambda g, d: ck.StateManager([g, d]),
        lambda g, d: ck.StateManager([g, d.network, d], net=d.network),
        lambda g, d: ck.StateManager([g, around(d)]),
        lambda g, d: ck.StateManager(around(g, d)),
    ):
        with pytest.raises(ValueError, match="each of these counts its own cycles") as caught:
            wrong(*pair())
        for words in ("of Part (g.out.weight, ...)", "of Part (d.out.weight, ...)", "(CELL, dataset, NAME=OTHER_CELL)"):
            assert words in str(caught.value)
    with pytest.raises(ValueError, match="Give the cell around it first"):
        ck.StateManager(around(pair()[0]))

    def advised(first, second, batches):
        return ck.StateManager(around(first, second), batches, training=ck.Training(ignore=NOTES), g=first, d=second)

    whole = Life(tmp_path / "whole", given=advised, every=1000)
    Life(tmp_path / "cut", crash_at=19, given=advised)
    resumed = Life(tmp_path / "cut", given=advised)
    assert min(resumed.steps) == 19
    assert {step: whole.steps[step] for step in resumed.steps} == resumed.steps


def test_weights_that_another_cell_updates_are_unsteady():
    first, other = pair()
    shared = ck.AccumulationTrainCell(first.network, nn.SGD(first.network.out.trainable_params()), 2)
    for others, steady in (({"other": other}, [first.optimizer]), ({"other": other, "shared": shared}, [])):
        assert ck.StateManager(first, **others)._sources.steady_optimizers() == steady


def test_second_cell_that_differs_is_refused_unchanged():
    _, second, state = begun()
    second(*BATCH)
    contents = contents_of(state.capture(), AT_BEGIN)
    for options, words in (({"other_k": 5}, "accumulation_steps=3"), ({"remainder": "drop"}, "remainder='carry'")):
        first, second = pair()[0], pair(**options)[1]
        before = digest(first) + digest(second)
        with pytest.raises(ck.ResumeError, match=f"cell d of the checkpoint was taken with {words}, this train cell"):
            ck.StateManager(first, d=second).apply(contents)
        assert digest(first) + digest(second) == before, words


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


def test_failed_read_marks_second_cell_too(monkeypatch):
    contents = contents_of(begun()[2].capture(), AT_BEGIN)
    for reading in ("read_from", "read_again_from"):
        first, second, state = restored(contents)

        def fails(*given):
            raise ck.StorageError("gone")

        with monkeypatch.context() as patched:
            patched.setattr(CellParameters, reading, fails)
            with pytest.raises(ck.StorageError, match="gone"):
                state.start.undo_changes() if reading == "read_again_from" else state.apply(contents)
        for refused in (first, second, state.progress, functools.partial(state.begin, "runs/other")):
            with pytest.raises(ck.ResumeError, match="are half restored from a000001"):
                refused()
        state.apply(contents)
        refuse_half_restored([first, second])


def test_memory_that_second_cell_ignores_fails_saves():
    _, second, state = begun()

    def train(micro_steps):
        for _ in range(micro_steps):
            second(*BATCH)
            state.capture()

    train(4)
    second.network.out.bias.set_data(ms.Tensor(np.ones(3, np.float32)))
    with pytest.raises(ck.ResumeError, match=r"^d/d\.out\.bias got new memory after the first update"):
        train(4)
