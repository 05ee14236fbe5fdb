"""What an interrupted micro-step leaves belongs to no position, and is not saved as if it did."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from support.training import accumulation_cell, begin_process, tensors

import ckptkit as ck
from ckptkit.errors import ResumeError


class FailsOnce(nn.Momentum):
    """An optimizer whose first call is out of memory."""

    calls = 0

    def construct(self, gradients):
        self.calls += 1
        if self.calls == 1:
            raise MemoryError("no memory")
        return super().construct(gradients)


BATCH = ms.Tensor(np.ones((4, 6), np.float32)), ms.Tensor(np.zeros((4, 3), np.float32))


class Normalized(nn.Cell):
    """Raises between two layers whose statistics a forward pass changes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(6), nn.BatchNorm1d(3)
        self.dense = nn.Dense(6, 3)
        self.error = None

    def construct(self, x, y):
        x = self.first(x)
        if self.error is not None:
            raise self.error
        return ops.mse_loss(self.second(self.dense(x)), y)


@pytest.fixture
def job(tmp_path):
    begin_process(mode="pynative")
    cell = accumulation_cell(2, network=Normalized).set_train()
    manager = ck.CheckpointManager(tmp_path, save=ck.SaveEvery(micro_steps=1000))
    state = ck.StateManager(cell)
    manager.restore(state)
    yield cell, manager, state
    cell.network.error = None


def interrupt(cell, error):
    cell.network.error = error
    with pytest.raises(type(error)):
        cell(*BATCH)
    cell.network.error = None


def refused(message, *calls):
    for one in calls:
        with pytest.raises(ResumeError, match=message):
            one()


@pytest.mark.parametrize("before", [1, 2], ids=["in mid-cycle", "at a boundary"])
@pytest.mark.parametrize(
    ("error", "message"),
    [(MemoryError("no memory"), "raised in its forward"), (KeyboardInterrupt(), "was interrupted")],
    ids=["error", "ctrl-c"],
)
def test_interrupted_micro_step_is_not_saved(job, before, error, message):
    cell, manager, state = job
    for _ in range(before):
        cell(*BATCH)
    name = manager.save(state).result()
    was = tensors(cell)
    interrupt(cell, error)
    assert tensors(cell) != was, "the forward pass has changed nothing, so that this test tries nothing"
    refused(message, state.progress, state.capture, lambda: manager.step(state), lambda: manager.save_final(state))
    assert [one.name for one in manager.checkpoints()] == [name]
    if isinstance(error, KeyboardInterrupt):  # it may have come after the gradients were added
        refused(message, lambda: cell(*BATCH), cell.end_epoch)
        cell.load_counters(cell.counters)
    cell(*BATCH)
    assert manager.save_final(state) != name, "the next complete micro-step can be saved"
    manager.close()


def test_batch_whose_update_failed_is_not_trained_twice(tmp_path):
    """The gradients are in the accumulators already: the same call again would add them twice."""
    begin_process(mode="pynative")
    network = Normalized()
    optimizer = FailsOnce(network.trainable_params(), learning_rate=0.1, momentum=0.9)
    cell = ck.AccumulationTrainCell(network, optimizer, 2).set_train()
    manager = ck.CheckpointManager(tmp_path, save=ck.SaveEvery(micro_steps=1000))
    state = ck.StateManager(cell)
    manager.restore(state)
    cell(*BATCH)
    name = manager.save(state).result()
    with pytest.raises(MemoryError):
        cell(*BATCH)
    assert optimizer.calls == 1
    refused("was interrupted", lambda: cell(*BATCH), cell.end_epoch, state.progress, lambda: manager.save_final(state))
    assert [one.name for one in manager.checkpoints()] == [name]
    manager.close()
    again = ck.CheckpointManager(tmp_path)
    again.restore(ck.StateManager(cell))
    cell(*BATCH)
    assert (cell.counters.updates, int(optimizer.global_step.asnumpy()[0])) == (1, 1)
    again.close()


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_error_after_the_gradients_were_added_is_not_passed_by_calling_again(tmp_path, mode):
    """As of a signal handler, which Python calls when the compiled code has ended."""
    begin_process(mode=mode)
    cell = accumulation_cell(2).set_train()
    manager = ck.CheckpointManager(tmp_path, save=ck.SaveEvery(micro_steps=1000))
    state = ck.StateManager(cell)
    manager.restore(state)
    cell(*BATCH)
    micro, late = cell._micro, []

    class Late:
        def __call__(self, *inputs):
            micro(*inputs)
            late.append(True)
            raise TimeoutError("the step took too long")

    object.__setattr__(cell, "_micro", Late())
    with pytest.raises(TimeoutError):
        cell(*BATCH)
    assert late
    object.__setattr__(cell, "_micro", micro)
    refused("was interrupted", lambda: cell(*BATCH), state.progress, lambda: manager.save_final(state))
    manager.close()


def test_error_that_was_raised_before_says_nothing_of_now(job):
    """Python keeps where one object was raised first, here in a forward pass."""
    cell, manager, state = job
    cell(*BATCH)
    error = TimeoutError("one object for all deadlines")
    interrupt(cell, error)
    refused("raised in its forward", state.progress)
    micro = cell._micro

    def late(*inputs):
        micro(*inputs)
        raise error

    object.__setattr__(cell, "_micro", late)
    vars(cell)["_micro"] = late
    with pytest.raises(TimeoutError):
        cell(*BATCH)
    vars(cell).pop("_micro")
    object.__setattr__(cell, "_micro", micro)
    refused("was interrupted", lambda: cell(*BATCH), state.progress)
    manager.close()


def test_network_that_cannot_be_compiled_has_added_nothing(tmp_path):
    begin_process(mode="graph")
    cell = accumulation_cell(2).set_train()
    manager = ck.CheckpointManager(tmp_path, save=ck.SaveEvery(micro_steps=1000))
    state = ck.StateManager(cell)
    manager.restore(state)
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        cell(ms.Tensor(np.ones((4, 5), np.float32)), BATCH[1])
    cell(*BATCH)
    assert state.progress().micro_step == 1
    manager.close()


def test_fence_that_raised_is_not_passed_by_calling_again(job):
    cell, manager, state = job
    cell(*BATCH)
    manager.save(state).result()

    def fence():
        raise MemoryError("a save could not copy what it still reads")

    cell.guard(fence)
    with pytest.raises(MemoryError):
        cell(*BATCH)
    refused("was interrupted", lambda: cell(*BATCH))
    cell._fences.clear()
    manager.close()


def test_restored_state_can_be_saved_after_an_interruption(job, tmp_path):
    cell, manager, state = job
    cell(*BATCH)
    manager.save_final(state)
    manager.close()
    was = tensors(cell)
    interrupt(cell, MemoryError("no memory"))
    again = ck.CheckpointManager(tmp_path, save=ck.SaveEvery(micro_steps=1000))
    again.restore(ck.StateManager(cell))
    assert tensors(cell) == was
    assert again.save_final(ck.StateManager(cell)) == again.latest().name
    again.close()


def test_interrupted_end_of_an_epoch_is_not_saved(tmp_path):
    """Dropped accumulators with the counters from before them."""
    begin_process(mode="pynative")
    cell = accumulation_cell(3, remainder="drop", normalize="samples").set_train()
    manager = ck.CheckpointManager(tmp_path, save=ck.SaveEvery(micro_steps=1000))
    state = ck.StateManager(cell)
    manager.restore(state)
    cell(*BATCH)
    begin = cell._begin_cycle

    def interrupted(*arguments, **options):
        raise TimeoutError("a signal handler of the user's")

    vars(cell)["_begin_cycle"] = interrupted
    with pytest.raises(TimeoutError):
        cell.end_epoch()
    vars(cell)["_begin_cycle"] = begin
    refused("was interrupted", lambda: manager.save_final(state), lambda: cell(*BATCH), cell.end_epoch)
    assert manager.checkpoints() == []
    manager.close()
