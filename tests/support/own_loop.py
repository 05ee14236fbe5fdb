"""One start of a script with a loop of its own, for the tests that compare such starts bit by bit."""

import mindspore as ms
import numpy as np

import ckptkit as ck
from support.options import grouped
from support.training import NOTES, digest, disturb, rng_digest


class OwnLoop:
    """Trains a cell on resumable batches, and notes what is there after every micro-step."""

    def __init__(self, root, cell, batches, *, state=None, **options):
        self.cell = cell.set_train()
        self.batches = batches
        training = ck.Training(ignore=NOTES)
        self.state = ck.StateManager(cell, batches, training=training) if state is None else state
        self.manager = ck.CheckpointManager(root, **grouped(when_busy="wait", **options))
        self.steps = {}

    def train(self, batch):
        self.cell(*(ms.Tensor(column) if isinstance(column, np.ndarray) else column for column in batch))

    def look(self, batch):
        """What two lives are compared by: the digest of everything, and of the next draw."""
        return digest(self.cell) + rng_digest()

    def run(self, until=None):
        """Restore, in a process whose generators stand somewhere else, and train to ``until`` or to the end."""
        disturb()
        with self.manager as manager:
            self.point = manager.restore(self.state)
            for batch in self.batches:
                self.train(batch)
                at = self.state.progress().batches_delivered
                self.steps[at] = self.look(batch)
                manager.step(self.state)
                if at == until:
                    return self
            manager.save_final(self.state)
        return self
