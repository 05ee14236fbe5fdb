"""What an interrupted micro-step leaves belongs to no position, and is not saved as if it did."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from support.training import accumulation_cell, begin_process, tensors

import ckptkit as ck
from ckptkit.errors import ResumeError


class Fails(nn.Momentum):
    def construct(self, gradients):
        raise MemoryError("no memory")


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
def started(tmp_path):
    """Begins a run of a cell; returns its state and manager."""
    managers = []

    def start(cell):
        managers.append(ck.CheckpointManager(tmp_path, save=ck.SaveEvery(micro_steps=1000)))
        state = ck.StateManager(cell.set_train())
        managers[-1].restore(state)
        return state, managers[-1]

    yield start
    for manager in managers:
        manager.close()


@pytest.fixture
def job(started):
    cell = accumulation_cell(2, network=Normalized)
    yield (cell, *started(cell))
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


@pytest.mark.parametrize(
    ("before", "error", "message"),
    [(1, MemoryError("no memory"), "raised in its forward"), (2, KeyboardInterrupt(), "was interrupted")],
    ids=["error in mid-cycle", "ctrl-c at a boundary"],
)
def test_interrupted_micro_step_is_not_saved(job, before, error, message):
    cell, state, manager = job
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


def test_batch_whose_update_failed_is_not_trained_twice(started):
    """The gradients are in the accumulators already: the same call again would add them twice."""
    cell = accumulation_cell(2, network=Normalized, optimizer=lambda weights: Fails(weights, 0.1, 0.9))
    state, manager = started(cell)
    cell(*BATCH)
    name = manager.save(state).result()
    was = tensors(cell)
    with pytest.raises(MemoryError):
        cell(*BATCH)
    refused("was interrupted", lambda: cell(*BATCH), cell.end_epoch, state.progress, lambda: manager.save_final(state))
    assert [one.name for one in manager.checkpoints()] == [name]
    manager.close()
    started(cell)
    assert tensors(cell) == was


@pytest.mark.parametrize("mode", ["pynative", "graph"])
def test_error_after_the_gradients_were_added_is_not_passed_by_calling_again(started, mode):
    """As of a signal handler, which Python calls when the compiled code has ended."""
    begin_process(mode=mode)
    cell = accumulation_cell(2, network=Normalized)
    state, manager = started(cell)
    error = TimeoutError("one object for all deadlines")
    if mode == "pynative":  # Python keeps where the object was raised first
        interrupt(cell, error)
        refused("raised in its forward", state.progress)
    cell(*BATCH)
    assert state.progress().micro_step == 1
    micro = cell._micro

    class Late:
        def __call__(self, *inputs):
            micro(*inputs)
            raise error

    object.__setattr__(cell, "_micro", Late())
    with pytest.raises(TimeoutError):
        cell(*BATCH)
    object.__setattr__(cell, "_micro", micro)
    refused("was interrupted", lambda: cell(*BATCH), state.progress, lambda: manager.save_final(state))


@pytest.mark.parametrize("where", ["fence", "end of an epoch"])
def test_interrupted_fence_or_end_of_an_epoch_is_not_passed(started, where):
    """Dropped accumulators with the counters from before them, too."""

    def fail(*arguments, **options):
        raise TimeoutError("a signal handler of the user's, or a save that could not copy what it still reads")

    cell = accumulation_cell(2, remainder="drop", normalize="samples")
    state, manager = started(cell)
    cell(*BATCH)
    if where == "fence":
        cell.guard(fail)
    else:
        vars(cell)["_begin_cycle"] = fail
    with pytest.raises(TimeoutError):
        cell(*BATCH) if where == "fence" else cell.end_epoch()
    vars(cell).pop("_begin_cycle", None)
    refused("was interrupted", lambda: manager.save_final(state), lambda: cell(*BATCH), cell.end_epoch)
    assert manager.checkpoints() == []
    cell._fences._waiting.clear()
