"""The table of data that the kinds are trained on, each as a user would write it; all have the same shapes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from support.loaders import Again, WithState

from ckptkit import data

SAMPLES, FEATURES, CLASSES, BATCH = 48, 8, 3, 6
EPOCHS, K = 2, 3
STEPS = SAMPLES // BATCH  # of an epoch; K does not divide it, so cycles run across the ends of epochs


def arrays():
    rng = np.random.default_rng(5)
    y = np.arange(SAMPLES, dtype=np.int32) % CLASSES
    return rng.standard_normal((SAMPLES, FEATURES), np.float32) + y[:, None].astype(np.float32), y


def slices():
    return ds.NumpySlicesDataset(arrays(), ["x", "y"], shuffle=True).batch(BATCH)


def rows():
    """Batches in a list."""
    x, y = arrays()
    return [(ms.Tensor(x[i : i + BATCH]), ms.Tensor(y[i : i + BATCH])) for i in range(0, SAMPLES, BATCH)]


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


@dataclass(frozen=True)
class Data:
    """One way to feed a training, and what the user declares of it."""

    build: Callable[[], Any]
    augmentation: Literal["stateless"] | None = None
    needs_own_loop: bool = False  # since `Model.train` could not take it


DATA: dict[str, Data] = {
    "slices": Data(slices),
    "augmented": Data(lambda: data.Augmented(Rows(), jitter, seed=5).dataset(["x", "y"]).batch(BATCH)),
    "generator": Data(lambda: ds.GeneratorDataset(Rows(), ["x", "y"], shuffle=True).batch(BATCH)),
    "declared": Data(lambda: slices().map(negated, ["x"], num_parallel_workers=1), "stateless"),
    "batches": Data(lambda: Again(rows()), needs_own_loop=True),
    "loader": Data(lambda: WithState(rows()), needs_own_loop=True),
}
