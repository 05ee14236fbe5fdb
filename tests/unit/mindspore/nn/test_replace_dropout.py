"""`ckptkit.nn.replace_dropout`: every layer that runs is replaced, no other is, and training resumes exactly."""

import pytest
from mindspore import nn, ops

import ckptkit as ck
from ckptkit.mindspore.observe.random_operators import RandomOperators

RATES = {"drop": 0.5, "blocks.0.drop": 0.25, "blocks.1.drop": 0.25, "layers.2": 0.125, "again": 0.5}


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(8, 8)
        self.drop = nn.Dropout(p=0.25)


class Derived(nn.Dropout):
    """As packages have them."""


class Written(nn.Dropout):
    def construct(self, x):
        return x + 1


class ReadyMade(nn.Cell):
    """As somebody else may have written it: attributes, a list of blocks, a sequence, a layer with two names."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(p=0.5)
        self.blocks = nn.CellList([Block(), Block()])
        self.layers = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), Derived(keep_prob=0.875), nn.Dense(8, 3))
        self.again = self.drop
        self.never = nn.Dropout(p=0.0)
        self.other = Written(p=0.5)

    def construct(self, x, y):
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        return ops.square(self.layers(self.other(self.again(self.never(x)))) - y).mean()


def find(network):
    return RandomOperators([("", network)]).findings


def test_replaced_layers_keep_rate_and_unique_names():
    """Every place has a layer of the same rate, with parameters under its own name."""
    network = ReadyMade()
    before = {one.name for one in network.get_parameters()}
    assert ck.nn.replace_dropout(network) is network
    replaced = {name: cell.p for name, cell in network.cells_and_names() if isinstance(cell, ck.nn.Dropout)}
    assert replaced == RATES
    names = [one.name for one in network.get_parameters()]
    assert len(set(names)) == len(names)
    assert set(names) - before == {f"{name}.{one}" for name in RATES for one in ("key", "step")}
    assert before <= set(names)
    assert network.layers.cell_list == list(network.layers)
    assert type(network.never) is nn.Dropout
    assert [one.where for one in find(network)] == ["other (Written)"]  # its forward nobody knows
    assert len({int(cell.key.asnumpy()) for cell in network.cells() if isinstance(cell, ck.nn.Dropout)}) == 2
    assert not network.drop.training
    cells = {name: id(cell) for name, cell in network.cells_and_names()}
    assert {name: id(cell) for name, cell in ck.nn.replace_dropout(network).cells_and_names()} == cells
    assert ck.nn.replace_dropout(ReadyMade().set_train()).drop.training, "evaluation stays evaluation, and training so"


def test_displaced_layer_that_still_runs_stays_named():
    layers = nn.SequentialCell(nn.ReLU(), nn.Dropout(p=0.5), nn.Dense(8, 8)).set_train()
    layers.insert_child_to_cell("1", nn.Identity())
    layers.insert_child_to_cell("2", nn.Dropout(p=0.5))
    called = list(layers.cell_list)
    ck.nn.replace_dropout(layers)
    assert layers.cell_list == called
    assert len(find(layers)) == 1
    layer = nn.Dropout(p=0.5)  # one in two places becomes two
    layers = ck.nn.replace_dropout(nn.SequentialCell(layer, nn.Dense(8, 8), layer))
    assert layers.cell_list == list(layers)
    assert layers[0] is not layers[2]
    assert not find(layers)


class Headed(nn.SequentialCell):
    """Has a layer beside its list, and before the layers of that."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(p=0.5)
        for layer in (nn.Dense(8, 8), nn.Dropout(p=0.25)):
            self.append(layer)
        del self.cell_list[0]

    def construct(self, x):
        return self.drop(super().construct(x))


def test_layers_in_and_beside_a_sequence_are_replaced():
    network = ck.nn.replace_dropout(Headed())
    assert [type(one) for one in network.cell_list] == [nn.Dense, ck.nn.Dropout]
    assert (type(network.drop), network.cell_list[1].p, network.drop.p) == (ck.nn.Dropout, 0.25, 0.5)
    assert not find(network)


def test_what_cannot_hold_one_is_refused():
    for wrong in (nn.Dropout(p=0.5), None):
        with pytest.raises(TypeError, match=r"takes a network with nn\.Dropout in it"):
            ck.nn.replace_dropout(wrong)
