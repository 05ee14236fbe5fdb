"""A state that holds `id()` of an object means nothing in the next process: that is named at the first saves."""

from __future__ import annotations

import pytest
from mindspore import nn
from support.training import Mlp, adam, begin_process, pipeline

import ckptkit as ck


class Norms:
    """Keeps a number for each weight."""

    def __init__(self, key):
        self.norms = {}
        self.key = key

    def see(self, weights):
        for weight in weights:
            self.norms[self.key(weight)] = 1.0

    def state_dict(self):
        return {"norms": dict(self.norms), "seen": [7, 1 << 40, {"what": "0x7f0123456789"}]}

    def load_state_dict(self, state):
        self.norms = dict(state["norms"])


def by_repr(weight):
    return object.__repr__(weight)


def by_name(weight):
    return weight.name


class Loader(list):
    def __init__(self, batches, norms):
        super().__init__(batches)
        self.norms, self.at = norms, 0

    def __iter__(self):
        while self.at < len(self):
            self.at += 1
            yield self[self.at - 1]
        self.at = 0

    def state_dict(self):
        return {"at": self.at, **self.norms.state_dict()}

    def load_state_dict(self, state):
        self.at = state["at"]
        self.norms.load_state_dict(state)


def trained(root, norms, place):
    begin_process()
    network = Mlp().set_train()
    cell = nn.TrainOneStepCell(network, adam(network.trainable_params()))
    rows = [tuple(batch) for batch in pipeline().create_tuple_iterator(num_epochs=1)][:3]
    batches = ck.data.resumable(Loader(rows, norms) if place == "loader" else rows, epochs=1)
    named = {"by name": {"norms": norms}, "attributes": {"norms": ck.attributes(norms, "norms")}, "loader": {}}[place]
    state = ck.StateManager(cell, batches, **named)
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait")) as manager:
        manager.restore(state)
        for x, y in batches:
            cell(x, y)
            norms.see(network.trainable_params())
            manager.step(state)


@pytest.mark.covering(1)
@pytest.mark.parametrize("place", ["by name", "attributes", "loader"])
@pytest.mark.parametrize("key", [id, by_repr, by_name])
def test_address_in_a_state_is_named_once(tmp_path, caplog, key, place):
    trained(tmp_path, Norms(key), place)
    assert caplog.text.count("its state holds id() of hidden.weight") == (key is not by_name)
