"""The table of data that the kinds are trained on, each as a user would write it; all have the same shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import mindspore as ms
import mindspore.dataset as ds
import numpy as np

from ckptkit import data
from exactness.jobs.parts import BATCH, CLASSES, FEATURES, SAMPLES


class Rows:
    """A source with random access."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.x = rng.standard_normal((SAMPLES, FEATURES), np.float32)
        self.y = rng.standard_normal((SAMPLES, CLASSES), np.float32)

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

    def __init__(self) -> None:
        self.rows = Rows()
        self.epoch = self.done = 0

    def order(self):
        return np.random.default_rng(self.epoch).permutation(SAMPLES).reshape(-1, BATCH)

    def batch(self, indices):
        return ms.Tensor(self.rows.x[indices]), ms.Tensor(self.rows.y[indices])

    def __iter__(self):
        self.epoch += 1
        return map(self.batch, self.order())


class Loader(Batches):
    """The same with a state: an iteration delivers the rest of the epoch that the state is in."""

    def state_dict(self):
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state):
        self.epoch, self.done = state["epoch"], state["done"]

    def __iter__(self):
        for indices in self.order()[self.done :]:
            self.done += 1
            yield self.batch(indices)
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


def slices() -> ds.Dataset:
    rows = Rows()
    return ds.NumpySlicesDataset({"x": rows.x, "y": rows.y}, shuffle=True)


DATA: dict[str, Data] = {
    "slices": Data(lambda: slices().batch(BATCH)),
    "augmented": Data(lambda: data.Augmented(Rows(), jitter, seed=5).dataset(["x", "y"]).batch(BATCH)),
    "generator": Data(lambda: ds.GeneratorDataset(Rows(), ["x", "y"], shuffle=True).batch(BATCH)),
    "declared": Data(lambda: slices().map(negated, ["x"], num_parallel_workers=1).batch(BATCH), "stateless"),
    "batches": Data(Batches),
    "loader": Data(Loader),
}
