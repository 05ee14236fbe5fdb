"""What a script changes between the restore and its loop would take the place of what was restored: it is named."""

import mindspore as ms
import pytest
from mindspore import nn, ops
from support.training import accumulation_cell, begin_process, pipeline

import ckptkit as ck
from ckptkit.errors import ResumeError

SAID = "changed between restore() and the first batch"


@pytest.fixture
def trained(root):
    """Trains after ``change``."""

    def train(change, *, strict=False, **given):
        begin_process()
        cell = accumulation_cell(2, optimizer=lambda weights: nn.Momentum(weights, 0.1, 0.9)).set_train()
        data = ck.data.resumable(pipeline(), epochs=1)
        state = ck.StateManager(cell, data, strict=strict, **given)
        with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2)) as manager:
            manager.restore(state)
            change(cell)
            for batch in data:
                cell(*batch)
                for tracker in given.values():
                    tracker.update()
                manager.step(state)
                if cell.counters.micro_steps == 4:
                    break

    return train


@pytest.fixture
def said(caplog):
    """Gives the names in the messages since the last call."""

    def names():
        found = [text.split(SAID)[0].removesuffix(": ").rpartition(". ")[2] for text in caplog.messages if SAID in text]
        caplog.clear()
        return found

    return names


def change_all(cell):
    ops.assign(cell.optimizer.learning_rate, ms.Tensor(0.5))
    cell.network.out.weight.set_data(cell.network.out.weight * 0.5)  # as of a pretrained network
    rows = cell.network.hidden.weight.asnumpy().copy()
    rows[-1, -1] += 1
    ops.assign(cell.network.hidden.weight, ms.Tensor(rows))


def test_change_is_named_at_the_first_start_and_at_the_next(trained, said):
    trained(change_all)
    assert said() == ["hidden.weight, learning_rate, out.weight"]
    trained(change_all)
    # The checkpoint has the rate that the script sets, so that the second time it changes nothing.
    assert said() == ["hidden.weight, out.weight"]
    with pytest.raises(ResumeError, match=SAID.replace("()", r"\(\)")):
        trained(change_all, strict=True)


class Tracker:
    def __init__(self):
        self.level = 0.0

    def update(self):
        self.level += 1.0

    def state_dict(self):
        return {"level": self.level}

    def load_state_dict(self, state):
        self.level = state["level"]


def test_object_that_is_reset_after_its_restore_is_named_alone(trained, said):
    """The first start has nothing to lose, and looking at parameters is no change."""

    def on_fit_start(cell):
        reset.level = -1.0
        cell.network.hidden.weight.asnumpy()

    for names in ([], ["reset"]):
        reset, kept = Tracker(), Tracker()
        trained(on_fit_start, reset=reset, kept=kept)
        assert said() == names


def training_of(kind):
    """Cells, what trains a batch, and the optimizer."""
    network = nn.WithLossCell(nn.Dense(8, 1), nn.MSELoss())
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    if kind == "functional":
        gradients = ms.value_and_grad(network, None, optimizer.parameters)
        return [network, optimizer], lambda *batch: optimizer(gradients(*batch)[1]), optimizer
    own = kind == "own"
    cell = ck.AccumulationTrainCell(network, optimizer, 2) if own else nn.TrainOneStepCell(network, optimizer)
    return cell, cell, optimizer


@pytest.mark.parametrize(("kind", "mode"), [("own", "pynative"), ("foreign", "graph"), ("functional", "pynative")])
def test_loop_that_positions_its_data_itself_is_told_at_its_first_call(root, said, kind, mode):
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
        assert said() == ([optimizer.parameters[0].name] if is_named else [])
