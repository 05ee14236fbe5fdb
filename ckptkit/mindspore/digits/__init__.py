"""Loads real handwritten digits for the demo and the examples; ``SOURCE.md`` names their source and licence."""

from __future__ import annotations

import gzip
from importlib import resources
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Digits(NamedTuple):
    """Holds the digits, every fifth of them held out for testing."""

    train_images: npt.NDArray[np.float32]  # (1438, 1, 8, 8), from 0 to 1
    train_labels: npt.NDArray[np.int32]  # (1438,), from 0 to 9
    test_images: npt.NDArray[np.float32]  # (359, 1, 8, 8)
    test_labels: npt.NDArray[np.int32]  # (359,)


def load_digits() -> Digits:
    """Read the 1,797 digits of the UCI test set."""
    packed = resources.files(__name__).joinpath("optdigits.csv.gz").read_bytes()
    table = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",", dtype=np.float32)
    images = (table[:, :64] / np.float32(16)).reshape(-1, 1, 8, 8)
    labels = table[:, 64].astype(np.int32)
    held_out = np.arange(len(table)) % 5 == 4
    return Digits(images[~held_out], labels[~held_out], images[held_out], labels[held_out])
