"""Loaders as scripts have them: their batches in another order in every epoch, read again or with a state."""

import numpy as np


class Again:
    """Takes each order from a counter of its own; has no state."""

    def __init__(self, batches, epoch=0):
        self.batches, self.epoch = list(batches), epoch

    def order(self):
        return np.random.default_rng(self.epoch).permutation(len(self.batches))

    def __iter__(self):
        self.epoch += 1
        return iter([self.batches[index] for index in self.order()])


class DrawingAgain(Again):
    """Draws each order from the global generator, at once."""

    def order(self):
        return np.random.permutation(len(self.batches))


class WithState(Again):
    """Goes on with the rest of the epoch that its state is in; what it is told decides the order of the next one."""

    def __init__(self, batches):
        super().__init__(batches)
        self.done = self.told = 0
        self.now = self.order()

    def order(self):
        return np.random.default_rng([self.epoch, self.told]).permutation(len(self.batches))

    def __iter__(self):
        while self.done < len(self.now):
            self.done += 1
            yield self.batches[self.now[self.done - 1]]
        self.epoch, self.done = self.epoch + 1, 0
        self.now = self.order()

    def tell(self, number):
        self.told += number

    def state_dict(self):
        return {name: getattr(self, name) for name in ("epoch", "done", "told", "now")}

    def load_state_dict(self, state):
        vars(self).update(state)


class Rows:
    """A source of as many rows in each epoch as is said; one column has six values, two have six and three."""

    def __init__(self, *counts, columns=1):
        self.counts, self.widths = iter(counts), (6, 3)[:columns]

    def __iter__(self):
        for row in range(next(self.counts)):
            yield tuple(np.full(width, row, np.float32) for width in self.widths)
