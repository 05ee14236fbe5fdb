"""Gives random numbers that depend on the sample, not on the process.

Guarantees: pure functions of non-negative integers of any size; distinct arguments give distinct streams, up to a
collision of BLAKE2b at 128 bits. Code that draws only from them resumes exactly at no cost, since nothing has to be
stored or replayed. Any thread, any process.

The key of the Philox generator is the BLAKE2b digest (16 bytes, little endian) of a word for the purpose and the
decimal numbers, joined by slashes: ``sample/<seed>/<epoch>/<index>``. It must not change: stored runs depend on it.
"""

from __future__ import annotations

import hashlib
import operator

import numpy as np


def sample_rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Return the generator of one sample in one epoch.

    For augmentation: draw crop, flip and noise from it, and from nothing else::

        def augment(sample, rng):
            image, label = sample
            top, left = rng.integers(0, 5, size=2)
            return image[top : top + 28, left : left + 28], label

    Args:
        seed: Seed of the run.
        epoch: Zero-based.
        index: Index of the sample in its source.

    Raises:
        TypeError: If an argument is not an integer.
        ValueError: If one is negative.
    """
    return np.random.Generator(_philox("sample", seed, epoch, index))


def epoch_order(num_samples: int, seed: int, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the order of the samples in one epoch, a permutation of ``range(num_samples)``: int64 (num_samples,).

    Sorts raw bits of Philox, which are the same in every version of NumPy; `Generator.permutation` may change.
    """
    return np.argsort(_philox("order", seed, epoch).random_raw(num_samples), kind="stable")


def _philox(purpose: str, *numbers: int) -> np.random.Philox:
    plain = [operator.index(number) for number in numbers]
    if min(plain) < 0:
        raise ValueError(f"seed, epoch and index must not be negative, got {', '.join(map(str, plain))}")
    key = hashlib.blake2b("/".join([purpose, *map(str, plain)]).encode(), digest_size=16).digest()
    return np.random.Philox(key=int.from_bytes(key, "little"))
