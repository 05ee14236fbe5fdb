"""What a script changes between the restore and its loop would take the place of what was restored: it is named."""

from __future__ import annotations

from functools import partial

import mindspore as ms
import pytest
from mindspore import nn, ops
from support.training import Mlp, accumulation_cell, begin_process, each_mode, pipeline

import ckptkit as ck
from ckptkit.errors import ResumeError

SAID = "changed between restore() and the first batch"


def assign_rate(cell):
    ops.assign(cell.optimizer.learning_rate, ms.Tensor(0.5))


def load_weights(cell):
    """As of a pretrained network."""
    for one in cell.network.trainable_params():
        one.set_data(one * 0.5)


def warm_up(cell):
    ops.assign(cell.network.hidden.bias, cell.network.hidden.bias + 1)


def look(cell):
    cell.network.hidden.weight.asnumpy()


@pytest.fixture
def trained(root):
    """Trains after ``change``; returns the cell."""

    def train(change, *, strict=False, network=Mlp, **given):
        momentum = partial(nn.Momentum, learning_rate=0.1, momentum=0.9)
        cell = accumulation_cell(2, network=network, optimizer=momentum).set_train()
        data = ck.data.resumable(pipeline(), epochs=1)
        state = ck.StateManager(cell, data, strict=strict, **given)
        with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2)) as manager:
            manager.restore(state)
            change(cell)
            for batch in data:
                cell(*batch)
                for one in given.values():
                    one.update()
                manager.step(state)
                if cell.counters.micro_steps == 4:
                    break
        return cell

    return train


@each_mode
@pytest.mark.parametrize("change", [assign_rate, load_weights, warm_up])
def test_change_is_named_at_the_first_start_and_at_the_next(trained, caplog, mode, change):
    begin_process(mode=mode)
    trained(change)
    assert caplog.text.count(SAID) == 1
    begin_process(mode=mode)
    trained(change)
    # The checkpoint has the rate that the script sets, so that the second time it changes nothing.
    assert caplog.text.count(SAID) == (1 if change is assign_rate else 2)


def test_strict_refuses_it(trained):
    begin_process()
    with pytest.raises(ResumeError, match="changed between restore"):
        trained(load_weights, strict=True)


class Tracker:
    def __init__(self):
        self.level = 0.0

    def update(self):
        self.level += 1.0

    def state_dict(self):
        return {"level": self.level}

    def load_state_dict(self, state):
        self.level = state["level"]


@pytest.mark.parametrize("resets", [True, False])
def test_object_that_is_reset_after_its_restore_is_named(trained, caplog, resets):
    """The first start has nothing to lose."""

    def on_fit_start(cell):
        if resets:
            tracker.level = 0.0

    for said in (0, int(resets)):
        begin_process()
        tracker = Tracker()
        trained(on_fit_start, tracker=tracker)
        assert caplog.text.count(f"tracker: {SAID}") == said


def test_looking_at_parameters_is_no_change(trained, caplog):
    begin_process()
    trained(look)
    begin_process()
    trained(look)
    assert SAID not in caplog.text


def loss_and_optimizer():
    network = nn.WithLossCell(nn.Dense(8, 1), nn.MSELoss())
    return network, nn.Momentum(network.trainable_params(), 0.1, 0.9)


def own():
    cell = ck.AccumulationTrainCell(*loss_and_optimizer(), 2)
    return cell, cell


def foreign():
    cell = nn.TrainOneStepCell(*loss_and_optimizer())
    return cell, cell


def functional():
    network, optimizer = loss_and_optimizer()
    gradients = ms.value_and_grad(network, None, optimizer.parameters)
    return [network, optimizer], lambda *batch: optimizer(gradients(*batch)[1])


@pytest.mark.parametrize(
    ("training", "mode"),
    [(own, "pynative"), (own, "graph"), (foreign, "pynative"), (foreign, "graph"), (functional, "pynative")],
)
@pytest.mark.parametrize("changes", [True, False])
def test_loop_that_positions_its_data_itself_is_told_at_its_first_call(root, caplog, training, mode, changes):
    """Not at the first start, which no checkpoint precedes; and of no rate, which such a loop may set per batch."""
    for said in (0, int(changes)):
        begin_process(mode=mode)
        cells, step = training()
        optimizer = cells[1] if isinstance(cells, list) else cells.optimizer
        state = ck.StateManager(cells)
        with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2)) as manager:
            point = manager.restore(state)
            if changes:
                optimizer.parameters[0].set_data(optimizer.parameters[0] * 0.5)
            for number in range(point.batches_delivered, point.batches_delivered + 4):
                ops.assign(optimizer.learning_rate, ms.Tensor(0.1 / (1 + number)))
                step(ops.ones((4, 8)), ops.ones((4, 1)))
                if training is not own:
                    state.count_delivered()
                manager.step(state)
        assert caplog.text.count(SAID) == said


class Embedding(Mlp):
    """Has a table of 128 KiB."""

    def __init__(self):
        super().__init__()
        self.table = ms.Parameter(ops.zeros((4096, 8)), name="table")

    def logits(self, x):
        return super().logits(x) + self.table.mean()


def test_change_of_the_last_rows_is_named(trained, caplog):
    def give_rows(cell):
        table = cell.network.table.asnumpy().copy()
        table[-1] = 1
        ops.assign(cell.network.table, ms.Tensor(table))

    begin_process()
    trained(give_rows, network=Embedding)
    assert f"table: {SAID}" in caplog.text
