"""What a callback takes from the weights where an epoch begins is named: a start in mid-epoch takes it from others."""

from __future__ import annotations

import pytest
from mindspore import nn, ops
from mindspore.train import Callback
from support.training import begin_process

from ckptkit.mindspore.inspect import find_in_steps_of_callbacks


class Near(nn.Cell):
    """Stays near an anchor."""

    def __init__(self):
        super().__init__()
        self.network, self.anchor, self.temperature = nn.Dense(6, 3), None, 1.0

    def construct(self, x, y):
        loss = ops.cross_entropy(self.network(x), y) * self.temperature
        return loss if self.anchor is None else loss + ((self.network.weight - self.anchor) ** 2).sum()


class OfCell(Callback):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell


class TakesWeights(OfCell):
    def on_train_epoch_begin(self, run_context):
        self.cell.anchor = self.cell.network.weight.value().copy()


class TakesNumber(OfCell):
    def on_train_epoch_begin(self, run_context):
        self.cell.temperature = 0.9 ** run_context.original_args().cur_epoch_num


class Shows(OfCell):
    def on_train_epoch_begin(self, run_context):
        print(float(self.cell.network.weight.sum()))


@pytest.mark.parametrize(("kind", "named"), [(TakesWeights, True), (TakesNumber, False), (Shows, False)])
def test_weights_that_are_taken_where_an_epoch_begins_are_named(kind, named):
    begin_process(mode="pynative")
    found = [*find_in_steps_of_callbacks([kind(Near())], [])]
    assert [one.where for one in found] == (["TakesWeights.on_train_epoch_begin(): self.cell (Near)"] * named)
    assert all("carries anchor" in one.why for one in found)
