"""What a script changes before its loop is undone, or named where the loop positions its data itself."""

import mindspore as ms
import pytest
from mindspore import nn, ops
from support.training import accumulation_cell, begin_process, pipeline, tensors
from test_state import Box
from unit.mindspore.data.test_iterable import BATCHES, AtNextIter

import ckptkit as ck


def life(root, change, until):
    """All values after a training to a batch after ``change``."""
    begin_process()
    cell = accumulation_cell(2, optimizer=lambda weights: nn.Momentum(weights, 0.1, 0.9)).set_train()
    level, data = Box(0.0), ck.data.resumable(pipeline(), epochs=1)
    state = ck.StateManager(cell, data, level=level)
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2)) as manager:
        manager.restore(state)
        change(cell, level)
        for batch in data:
            cell(*batch)
            level.value += 1
            manager.step(state)
            if cell.counters.micro_steps == until:
                return tensors(cell), level.value


def change_all(cell, level):
    ops.assign(cell.optimizer.learning_rate, ms.Tensor(0.5))
    cell.network.out.weight.set_data(cell.network.out.weight * 0.5)  # as of a pretrained network
    rows = cell.network.hidden.weight.asnumpy().copy()
    rows[-1, -1] += 1
    ops.assign(cell.network.hidden.weight, ms.Tensor(rows))
    level.value = 7.0


@pytest.mark.parametrize("change", [change_all, lambda cell, level: cell.network.hidden.weight.asnumpy()])
def test_change_before_the_loop_is_undone_and_named(tmp_path, caplog, change):
    """The first start has nothing to undo. The checkpoint has the rate that the script sets."""
    whole = life(tmp_path / "whole", change, until=5)
    life(tmp_path / "cut", change, until=3)
    caplog.clear()
    assert life(tmp_path / "cut", change, until=5) == whole
    words = "hidden.weight, out.weight: restored to the value at the save"
    assert [words in text for text in caplog.messages].count(True) == (change is change_all)


def test_loader_iterated_before_the_loop_takes_its_state_once(tmp_path):
    def train(root, until):
        begin_process()
        cell, beside, given = accumulation_cell(2).set_train(), AtNextIter(), []
        batches = ck.data.resumable(pipeline(), epochs=2)
        state = ck.StateManager(cell, batches, beside=beside, training=ck.Training(ignore=["*"]))
        with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2)) as manager:
            manager.restore(state)
            left = iter(beside)
            for batch in batches:
                if beside.place == BATCHES:
                    left = iter(beside)
                given.append(next(left).tolist())
                cell(*batch)
                manager.step(state)
                if cell.counters.micro_steps == until:
                    break
        return given

    expected = train(tmp_path / "whole", 9)
    assert train(tmp_path / "cut", 3) + train(tmp_path / "cut", 9)[1:] == expected


def training_of(kind):
    network = nn.WithLossCell(nn.Dense(8, 1), nn.MSELoss())
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    if kind == "functional":
        gradients, judge = ms.value_and_grad(network, None, optimizer.parameters), nn.PReLU()
        # It calls its second cell after the first update, which is no change before the loop.
        return [network, judge, optimizer], lambda *batch: (optimizer(gradients(*batch)[1]), judge(batch[0])), optimizer
    own = kind == "own"
    cell = ck.AccumulationTrainCell(network, optimizer, 2) if own else nn.TrainOneStepCell(network, optimizer)
    return cell, cell, optimizer


@pytest.mark.parametrize(("kind", "mode"), [("own", "pynative"), ("foreign", "graph"), ("functional", "pynative")])
def test_loop_that_positions_its_data_itself_is_told_at_its_first_call(root, caplog, kind, mode):
    """Not at the first start, which no checkpoint precedes; and of no rate, which such a loop may set per batch."""
    for changes, is_named in ((True, False), (False, False), (True, True)):
        begin_process(mode=mode)
        cells, step, optimizer = training_of(kind)
        state = ck.StateManager(cells)
        with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2)) as manager:
            point = manager.restore(state)
            if changes:
                optimizer.parameters[0].set_data(optimizer.parameters[0] * 0.5)
            for number in range(point.batches_delivered, point.batches_delivered + 4):
                ops.assign(optimizer.learning_rate, ms.Tensor(0.1 / (1 + number)))
                step(ops.ones((4, 8)), ops.ones((4, 1)))
                if kind != "own":
                    state.count_delivered()
                manager.step(state)
        words = "changed between restore() and the first batch"
        said = [text for text in caplog.messages if words in text]
        assert [f"{optimizer.parameters[0].name}: {words}" in text for text in said] == [True] * is_named
        caplog.clear()
