"""Loaders of many kinds go on exactly where they were, also with what the loop has told them since the last batch."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from mindspore import nn
from support.training import NOTES, accumulation_cell, begin_process

import ckptkit as ck
from ckptkit.mindspore.data.batch_digest import digest_of

BATCHES, EPOCHS = 4, 3
STORED = ("epoch", "place", "level", "order")


class Plain:
    """Counts in attributes; gives the next order where an epoch ends.

    Args:
        learns: Whether the loop tells it a level that decides the next batch.
    """

    def __init__(self, learns: bool) -> None:
        self.learns = learns
        self.epoch = self.place = 0
        self.level = 1.0
        self.order = self.drawn()

    def drawn(self):
        return np.random.default_rng([7, self.epoch]).permutation(12).reshape(BATCHES, 3)

    def batch(self):
        self.place += 1
        rows = np.random.default_rng(self.order[self.place - 1])
        return rows.random((3, 6), np.float32) * np.float32(self.level), rows.random((3, 3), np.float32)

    def end(self):
        self.epoch, self.place = self.epoch + 1, 0
        self.order = self.drawn()

    def __iter__(self):
        while self.place < BATCHES:
            yield self.batch()
        self.end()

    def tell(self, value):
        if self.learns:
            self.level = 0.9 * self.level + value

    def state_dict(self):
        return {name: getattr(self, name) for name in STORED}

    def load_state_dict(self, state):
        vars(self).update({name: state[name] for name in STORED})


class CleansUp(Plain):
    """Begins at 0 again however its iterator ends."""

    def __iter__(self):
        try:
            while self.place < BATCHES:
                yield self.batch()
            self.end()
        finally:
            self.place = 0


class AtNextIter(Plain):
    """Takes a loaded state when it is iterated next, as StatefulDataLoader of torchdata does."""

    loaded = None

    def __iter__(self):
        if self.loaded is not None:
            super().load_state_dict(self.loaded)
            self.loaded = None
        elif self.place == BATCHES:
            self.end()
        return self._left()

    def _left(self):
        while self.place < BATCHES:
            yield self.batch()

    def state_dict(self):
        return super().state_dict() if self.loaded is None else self.loaded

    def load_state_dict(self, state):
        self.loaded = state


class OwnGenerator(Plain):
    """Draws noise from a generator that its iterator holds; a load makes a new one."""

    def __init__(self, learns):
        self.rng = np.random.default_rng(7)
        super().__init__(learns)

    def drawn(self):
        return self.rng.permutation(12).reshape(BATCHES, 3)

    def __iter__(self):
        rng = self.rng
        while self.place < BATCHES:
            x, y = self.batch()
            yield x + np.float32(rng.random()), y
        self.end()

    def state_dict(self):
        return {**super().state_dict(), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.rng = np.random.default_rng()
        self.rng.bit_generator.state = state["rng"]


class GlobalAtTheEnd(Plain):
    """Draws noise for each batch, and the next order where the epoch ends, from NumPy's global generator."""

    def drawn(self):
        return np.random.permutation(12).reshape(BATCHES, 3)

    def __iter__(self):
        while self.place < BATCHES:
            x, y = self.batch()
            yield x + np.float32(np.random.random()), y
        self.end()


class Itself(Plain):
    """Is its own iterator."""

    def __iter__(self):
        if self.place == BATCHES:
            self.end()
        return self

    def __next__(self):
        if self.place == BATCHES:
            raise StopIteration
        return self.batch()


def counting(kind):
    """The kind, with a statistic in its state that is not restored: what this process gave."""

    class Counting(kind):
        given = 0

        def batch(self):
            self.given += 1
            return super().batch()

        def state_dict(self):
            return {**super().state_dict(), "given": self.given}

        def load_state_dict(self, state):
            super().load_state_dict({name: value for name, value in state.items() if name != "given"})

    return Counting


def sized(kind):
    class Sized(kind):
        def __len__(self):
            return BATCHES

    return Sized


def life(root, make, until=None):
    begin_process()
    np.random.seed(5)
    source, cell = make(), accumulation_cell()
    batches = ck.data.resumable(source, EPOCHS)
    seen = {}
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait")) as manager:
        cells = [cell.network, nn.Momentum(cell.network.trainable_params(), 0.1, 0.9)]
        state = ck.StateManager(cells, batches, training=ck.Training(ignore=NOTES))
        point = manager.restore(state)
        for number, batch in enumerate(batches, point.batches_delivered + 1):
            seen[number] = digest_of(batch)
            source.tell(float(batch[1].mean()))
            manager.step(state)
            if number == until:
                break
    return seen


KINDS = {kind.__name__: kind for kind in (Plain, CleansUp, AtNextIter, OwnGenerator, GlobalAtTheEnd, Itself)}
LEARNS = {"learns": (True, lambda kind: kind), "counts": (False, counting), "neither": (False, lambda kind: kind)}


@pytest.mark.covering(1)
@pytest.mark.parametrize("length", ["known", "unknown"])
@pytest.mark.parametrize("what", list(LEARNS))
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("at", [1, 3, 4, 5, 8, 11])
def test_loader_goes_on_exactly(tmp_path, at, kind, what, length):
    """Within an epoch, at its last batch, and in later epochs."""
    learns, changed = LEARNS[what]
    made = changed(KINDS[kind])
    make = functools.partial(sized(made) if length == "known" else made, learns)
    expected = life(tmp_path / "whole", make)
    assert len(expected) == BATCHES * EPOCHS
    life(tmp_path / "run", make, until=at)
    assert life(tmp_path / "run", make) == {number: one for number, one in expected.items() if number > at}
