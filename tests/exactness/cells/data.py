"""The table of data that the kinds are trained on, each as a user would write it; all have the same shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import mindspore.dataset as ds
import numpy as np

from ckptkit import data
from exactness.jobs.parts import BATCH, SAMPLES, STEPS, arrays, rows, slices


class Rows:
    """A source with random access."""

    def __init__(self) -> None:
        self.x, self.y = arrays()

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def jitter(sample, rng):
    x, y = sample
    return x + rng.normal(0, 0.1, x.shape).astype(np.float32), y


def negated(x):
    return -x


class Batches:
    """Batches in another order in every epoch, from a counter of its own: iterated again, it must be replayed."""

    epoch = done = 0

    def order(self):
        return [rows()[index] for index in np.random.default_rng(self.epoch).permutation(STEPS)]

    def __iter__(self):
        self.epoch += 1
        return iter(self.order())


class Loader(Batches):
    """The same with a state: an iteration delivers the rest of the epoch that the state is in."""

    def state_dict(self):
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state):
        self.epoch, self.done = state["epoch"], state["done"]

    def __iter__(self):
        for batch in self.order()[self.done :]:
            self.done += 1
            yield batch
        self.epoch, self.done = self.epoch + 1, 0


@dataclass(frozen=True)
class Data:
    """One way to feed a training, and what the user declares of it."""

    build: Callable[[], Any]
    augmentation: Literal["stateless"] | None = None

    @property
    def needs_own_loop(self) -> bool:
        """Whether `Model.train` could not take it."""
        return isinstance(self.build, type)


DATA: dict[str, Data] = {
    "slices": Data(slices),
    "augmented": Data(lambda: data.Augmented(Rows(), jitter, seed=5).dataset(["x", "y"]).batch(BATCH)),
    "generator": Data(lambda: ds.GeneratorDataset(Rows(), ["x", "y"], shuffle=True).batch(BATCH)),
    "declared": Data(lambda: slices().map(negated, ["x"], num_parallel_workers=1), "stateless"),
    "batches": Data(Batches),
    "loader": Data(Loader),
}
