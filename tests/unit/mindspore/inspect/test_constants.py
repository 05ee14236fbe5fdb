"""Attributes that callbacks set in mid-run are named in GRAPH mode, where a compiled graph has them as constants."""

from __future__ import annotations

import mindspore as ms
import pytest
from mindspore import nn, ops
from mindspore.train import Callback, LambdaCallback
from support.training import begin_process

import ckptkit as ck
from ckptkit.mindspore.inspect import constants_in_callbacks, constants_in_loops


class Weighted(nn.Cell):
    def __init__(self):
        super().__init__()
        self.out = nn.Dense(4, 3)
        self.alpha = 0.5
        self.act = ops.ReLU()
        self.unread = 0
        self.beta = ms.Parameter(ms.Tensor(1.0), name="beta")

    def construct(self, x):
        return self.scaled(self.out(x)) * self.beta

    def scaled(self, x):
        return self.act(x) * self.alpha


class Sets(Callback):
    """One of the ways below."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell
        self.alpha = 0.0


class Assigns(Sets):
    def on_train_epoch_begin(self, run_context):
        self.cell.alpha = 0.1 * run_context.original_args().cur_epoch_num


class Inherits(Assigns):
    pass


class Multiplies(Sets):
    def on_train_step_end(self, run_context):
        self.cell.alpha *= 0.5


class ByHelper(Sets):
    def on_train_step_end(self, run_context):
        self.lower(run_context)

    def lower(self, run_context):
        cell = self.cell
        cell.alpha = 0.1


class ByContext(Sets):
    def on_train_step_end(self, run_context):
        run_context.original_args().train_network.alpha = 0.1


class OfItems(Sets):
    def on_train_step_end(self, run_context):
        for cell in [self.cell]:
            cell.alpha = 0.1


class AtBegin(Sets):
    """The same at each start."""

    def on_train_begin(self, run_context):
        self.cell.alpha = 0.1

    def begin(self, run_context):
        self.cell.alpha = 0.2


class ItsOwn(Sets):
    def on_train_step_end(self, run_context):
        self.alpha += 1
        self.cell.unread = 3
        self.cell.unread += 1


class InPlace(Sets):
    def on_train_step_end(self, run_context):
        ops.assign(self.cell.beta, 0.5)
        self.cell.out.training = True
        self.cell.act = ops.ReLU()


@pytest.mark.parametrize("kind", [Assigns, Inherits, Multiplies, ByHelper, ByContext, OfItems])
def test_constant_that_a_callback_sets_is_found(kind):
    cell = nn.SequentialCell(nn.Dense(4, 4), Weighted())
    (found,) = constants_in_callbacks([kind(cell[1])], [cell], in_graph=True)
    assert str(found).startswith(f"{kind.__name__}: ")
    assert "sets 1.alpha, but a compiled graph keeps the value of its first call" in str(found)
    assert not found.certain


def test_constant_of_a_second_cell_is_found():
    cells = nn.Dense(4, 4), Weighted()
    (found,) = constants_in_callbacks([Assigns(cells[1])], cells, in_graph=True)
    assert "sets the train cell.alpha" in str(found)


def test_constant_that_a_lambda_callback_sets_is_found():
    cell = Weighted()

    def lower(run_context):
        cell.alpha = 0.1

    (found,) = constants_in_callbacks([LambdaCallback(on_train_step_end=lower)], [cell], in_graph=True)
    assert "LambdaCallback: lower() in " in found.where
    assert [*constants_in_callbacks([LambdaCallback(on_train_begin=lower)], [cell], in_graph=True)] == []


def loop_that_sets(cell):
    found = [*constants_in_loops([cell], in_graph=True)]
    for epoch in range(2):
        cell.alpha = 0.1 * epoch
    return found


def loop_that_calls(cell):
    def lower():
        cell.alpha *= 0.5

    found = [*constants_in_loops([cell], in_graph=True)]
    for _ in range(2):
        lower()
    return found


def set_beside_a_loop(cell):
    for _ in range(2):
        cell.alpha = 0.2
    found = [*constants_in_loops([cell], in_graph=True)]
    cell.alpha = 0.1
    for _ in range(2):
        cell.unread += 1
    return found


@pytest.mark.parametrize(("loop", "at"), [(loop_that_sets, "loop_that_sets"), (loop_that_calls, "lower")])
def test_constant_that_a_loop_sets_is_found(loop, at):
    (found,) = loop(Weighted())
    assert str(found).startswith(f"the loop: {at}() in test_constants.py:")
    assert "sets the train cell.alpha, but a compiled graph keeps" in str(found)


@pytest.mark.parametrize(("mode", "count"), [("graph", 1), ("pynative", 0)])
def test_own_loop_is_read_in_graph_only(mode, count):
    begin_process(mode=mode)
    cell = Weighted()
    found = ck.StateManager(cell).findings()
    for epoch in range(2):
        cell.alpha = 0.1 * epoch
    assert len(found) == count


def test_what_is_set_beside_loops_is_none():
    assert set_beside_a_loop(Weighted()) == []


@pytest.mark.parametrize("kind", [AtBegin, ItsOwn, InPlace, Callback])
def test_what_no_graph_keeps_is_no_finding(kind):
    cell = Weighted()
    callback = kind(cell) if kind is not Callback else kind()
    assert [*constants_in_callbacks([callback], [cell], in_graph=True)] == []


class OfItsKind(Sets):
    def on_train_step_end(self, run_context):
        print([one.beta for one in [self.cell] if isinstance(one, Weighted)])


def test_class_that_a_callback_names_sets_nothing_of_others():
    cell = Weighted()
    assert [*constants_in_callbacks([OfItsKind(cell)], [cell], in_graph=True)] == []


class Decays(Callback):
    def on_train_step_begin(self, run_context):
        args = run_context.original_args()
        args.optimizer.weight_decay = ms.Tensor(0.1 / args.cur_step_num, ms.float32)
        args.train_network.alpha = 0.1


def test_an_optimizer_has_constants_in_pynative_mode_too():
    """Its update is compiled there; the attributes of other cells are read anew."""
    cell = Weighted()
    optimizer = nn.Momentum(cell.trainable_params(), 0.1, 0.9, weight_decay=0.2)
    train = nn.TrainOneStepCell(cell, optimizer)
    (found,) = constants_in_callbacks([Decays()], [train], in_graph=False)
    assert "sets optimizer.weight_decay, but a compiled graph keeps the value of its first call" in str(found)
    assert "PYNATIVE" not in found.fix
    assert len([*constants_in_callbacks([Decays()], [train], in_graph=True)]) == 2


class Swaps(Sets):
    """After so many epochs."""

    def on_train_epoch_begin(self, run_context):
        args = run_context.original_args()
        if args.cur_epoch_num == 3:
            args.train_network.optimizer = nn.SGD(self.cell.trainable_params(), 0.1)


class KeepsOne(Sets):
    def on_train_epoch_begin(self, run_context):
        self.optimizer = run_context.original_args().optimizer


def loop_that_swaps(cell):
    def step(one, at):
        if at == 1:
            one.optimizer = nn.SGD(one.network.trainable_params(), 0.1)

    found = [*constants_in_loops([cell], in_graph=False)]
    for at in range(2):
        step(cell, at)
    return found


class Unknown:
    def train(self):
        self.optimizer = None


def loop_of_another(cell):
    found = [*constants_in_loops([cell], in_graph=False)]
    for make in (Unknown,):
        make().train()
        Unknown.train(make())
    return found


def train_cell():
    network = Weighted()
    return nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9))


def test_an_exchange_of_the_optimizer_is_found():
    """Each save after it is refused, so that it must be known before."""
    cell = train_cell()
    (in_loop,), (in_callback,) = loop_that_swaps(cell), constants_in_callbacks([Swaps(cell)], [cell], in_graph=False)
    for found in (in_loop, in_callback):
        assert "sets TrainOneStepCell.optimizer, the optimizer that checkpoints hold" in str(found)
        assert not found.certain


def test_an_optimizer_of_another_object_is_no_finding():
    cell = train_cell()
    assert loop_of_another(cell) == []
    assert [*constants_in_callbacks([KeepsOne(cell)], [cell], in_graph=False)] == []


def test_an_optimizer_that_is_given_by_itself_may_be_stored_with_the_other_one():
    cell = train_cell()
    assert [*constants_in_callbacks([Swaps(cell)], [cell, cell.optimizer], in_graph=False)] == []


def test_a_graph_has_attributes_as_constants():
    """Were it otherwise, nothing would have to be named."""
    begin_process(mode="graph")
    cell = Weighted()
    x = ops.ones((2, 4))
    before = cell(x).asnumpy()
    cell.alpha = 3.0
    assert (cell(x).asnumpy() == before).all()
