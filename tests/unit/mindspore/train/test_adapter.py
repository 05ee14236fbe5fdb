"""What cycle adapters say, and what is made of it."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import boost, nn
from mindspore.train import Model
from support.training import Mlp, accumulation_cell, adam, checkpoints, pipeline

import ckptkit as ck
from ckptkit.mindspore.state.manager import StateManager, Training
from ckptkit.mindspore.train.counting import BoostCycle, CycleAdapter
from ckptkit.run.catalog import list_checkpoints
from ckptkit.storage import open_storage
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


class Says:
    def __init__(self, accumulation_steps=K, micro_step=0):
        self.accumulation_steps = accumulation_steps
        self.micro_step = micro_step


def boosted():
    cell = Boosted(Mlp())
    cell.set_train()
    return cell, BoostCycle(cell.accumulation)


def trained(state, cell, calls):
    for batch in pipeline().create_tuple_iterator(num_epochs=1):
        if not calls:
            return
        cell(*batch)
        state.count_delivered()
        calls -= 1


def test_boost_says_k_and_its_micro_step():
    cell, cycle = boosted()
    state = StateManager(cell, training=Training(cycle=cycle))
    assert isinstance(cycle, CycleAdapter)
    seen = []
    for _ in range(7):
        now = state.progress()
        seen.append((now.cycles, now.micro_step, now.cycle_first_batch, now.updates))
        assert now.accumulation_steps == K
        trained(state, cell, 1)
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
        trained(state, cell, 1)


def test_only_the_fenced_call_writes_steadily():
    cell = accumulation_cell()
    assert StateManager(cell)._sources.counting.steady_optimizers() == [cell.optimizer]
    cell = type("Own", (ck.AccumulationTrainCell,), {"__call__": lambda self, *given: None})(
        cell.network, cell.optimizer, 2
    )
    assert StateManager(cell)._sources.counting.steady_optimizers() == []


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
    saved(root, cell, cycle, 4)
    for with_optimizer in (False, True):
        path = tmp_path / f"{with_optimizer}.safetensors"
        done = export_weights(root, path, with_optimizer=with_optimizer)
        with open_weights(path) as file:
            exported = set(file.tensors)
        assert not any("grad_accumulation" in name or "accumulation_step" in name for name in exported)
        assert exported >= {parameter.name for parameter in cell.network.get_parameters()}
        assert "the accumulators, after micro-step 1 of 3" in done.left_out


def test_checkpoints_are_due_and_named_by_cycle(root):
    cell, cycle = boosted()
    ckpt = checkpoints(root, cycle=cycle, save=ck.SaveEvery(optimizer_steps=2), keep=ck.KeepLatest(9))
    ckpt.train(Model(cell), 1, pipeline())  # 11 batches
    gathered = [info.progress for info in list_checkpoints(open_storage(root))]
    assert sorted((item.cycles, item.micro_step, item.updates) for item in gathered) == [(2, 0, 2), (3, 2, 3)]


def test_a_train_cell_may_say_it_itself():
    network = Mlp()
    network.accumulation_steps = K
    network.micro_step = ms.Parameter(ms.Tensor(np.array([2]), ms.int32), name="micro_step", requires_grad=False)
    state = StateManager(network)
    state.count_delivered(5)
    assert (state.progress().cycles, state.progress().micro_step) == (1, 2)


def test_one_more_counts_beside_an_accumulation_cell_too():
    cell = accumulation_cell(K)
    state = StateManager(cell)
    trained(state, cell, 4)
    assert (state.progress().batches_delivered, state.progress().micro_step) == (4, 1)
    state.count_delivered()
    with pytest.raises(ck.ResumeError, match=r"called 4 times, but 5 batches"):
        state.progress()


def test_a_contradiction_is_refused():
    for k, micro_step, delivered in ((3, 1, 3), (3, 3, 3), (3, -1, 2), (3, 2, 1), (0, 0, 0)):
        state = StateManager(Mlp(), training=Training(cycle=Says(k, micro_step)))
        state.count_delivered(delivered)
        with pytest.raises(
            ck.ResumeError, match=rf"Says\) says that it is at micro-step {micro_step} of cycles of {k}"
        ):
            state.progress()


def test_called_cell_is_no_fresh_start():
    cell, cycle = boosted()
    trained(StateManager(cell, training=Training(cycle=cycle)), cell, 1)
    with pytest.raises(ck.ResumeError, match="micro-step 1"):
        StateManager(cell, training=Training(cycle=cycle)).begin("runs")


def saved(root, cell, cycle, calls):
    state = StateManager(cell, training=Training(cycle=cycle))
    with ck.CheckpointManager(root) as manager:
        manager.restore(state)
        trained(state, cell, calls)
        manager.save(state)


def test_restored_adapter_goes_on_where_it_was(root):
    saved(root, *boosted(), 4)
    cell, cycle = boosted()
    state = StateManager(cell, training=Training(cycle=cycle))
    point = ck.CheckpointManager(root).restore(state)
    assert (point.micro_step, point.optimizer_step, cycle.micro_step) == (1, 1, 1)
    assert state.progress().cycles == 1


def test_a_counter_outside_of_the_checkpoint_is_noticed(root):
    says = Says(K, 0)
    state = StateManager(Mlp(), training=Training(cycle=says))
    with ck.CheckpointManager(root) as manager:
        manager.restore(state)
        says.micro_step = 2
        state.count_delivered(2)
        manager.save(state)
    said = r"micro-step 2 .*Says\) says 0: its counter is not in the checkpoint"
    with pytest.raises(ck.StateMismatchError, match=said):
        ck.CheckpointManager(root).restore(StateManager(Mlp(), training=Training(cycle=Says(K, 0))))


def test_another_k_is_refused(root):
    saved(root, *boosted(), 4)
    with pytest.raises(ck.ResumeError, match="accumulation_steps=3"):
        ck.CheckpointManager(root).restore(StateManager(Boosted(Mlp())))


def test_what_is_no_adapter_is_refused():
    with pytest.raises(TypeError, match="cycle must have accumulation_steps and micro_step, got object"):
        StateManager(Mlp(), training=Training(cycle=object()))
    with pytest.raises(ValueError, match="counts for itself"):
        StateManager(accumulation_cell(2), training=Training(cycle=Says()))
    with pytest.raises(TypeError, match=r"takes a boost\.GradientAccumulation, got Mlp"):
        BoostCycle(Mlp())
