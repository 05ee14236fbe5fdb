"""How long it takes to the first batch after a resume, by position; prints a Markdown table.

python -m benchmarks.bench.positioning [REPEATS]

Each figure is the fastest of REPEATS: making the iterator, moving it and comparing the last delivered batch. Fast
pipelines go up to batch 100,000; what is replayed has to read every batch before, and is measured up to 10,000.
"""

from __future__ import annotations

import logging
import sys
import time

import mindspore.dataset as ds
import numpy as np

from ckptkit import data
from ckptkit.mindspore.data.pipeline_position import DatasetPosition

SAMPLES = 20_000
BATCH = 10  # so 2,000 batches per epoch
POSITIONS = (100, 1_000, 10_000, 100_000)
EPOCHS = POSITIONS[-1] * BATCH // SAMPLES + 1
SLOW = 0.3e-3  # seconds that the slow map takes per sample


def rows() -> np.ndarray:
    return np.arange(SAMPLES, dtype=np.float32)[:, None]


def burn() -> None:
    """Keep the processor busy as decoding an image does."""
    until = time.perf_counter() + SLOW
    while time.perf_counter() < until:
        pass


def slices() -> ds.Dataset:
    return ds.NumpySlicesDataset(rows(), ["x"], shuffle=True).batch(BATCH)


def slow(x: np.ndarray) -> np.ndarray:
    burn()
    return x


def slow_augment(sample: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray]:
    burn()
    return (sample + np.float32(rng.random()),)


def augmented() -> ds.Dataset:
    return data.Augmented(rows(), slow_augment, seed=1).dataset(["x"]).batch(BATCH)


def mapped() -> ds.Dataset:
    return ds.NumpySlicesDataset(rows(), ["x"], shuffle=True).map(slow, ["x"], num_parallel_workers=1).batch(BATCH)


# What it is, how it is made, what is declared, how far it is measured.
PIPELINES = [
    ("slices, shuffle, batch", slices, None, POSITIONS[-1]),
    ("Augmented, 0.3 ms per sample", augmented, None, POSITIONS[-1]),
    ("map of 0.3 ms, declared stateless", mapped, "stateless", POSITIONS[-1]),
    ("map of 0.3 ms, replayed", mapped, None, 1_000),
    ("shuffle buffer of 1,000", lambda: slices().shuffle(1000), None, POSITIONS[-1]),
    ("filter without a map, replayed", lambda: slices().filter(lambda x: True, ["x"]), None, 10_000),
]


def seconds_to_first_batch(make, augmentation, delivered) -> float:
    position = DatasetPosition(make(), augmentation=augmentation)
    position.prepare(0, None)
    recorded = position.state(0)
    position.release()
    position.prepare(delivered, recorded)
    began = time.perf_counter()
    next(position.dataset.create_tuple_iterator(num_epochs=EPOCHS))
    spent = time.perf_counter() - began
    position.leave()
    return spent


def main(repeats: int) -> None:
    logging.getLogger("ckptkit").setLevel("ERROR")
    ds.config.set_seed(1)
    print("| time to the first batch | " + " | ".join(f"{position:,}" for position in POSITIONS) + " |")
    print("|---|" + "---:|" * len(POSITIONS))
    for name, make, augmentation, furthest in PIPELINES:
        cells = []
        for position in POSITIONS:
            if position > furthest:
                cells.append("-")
                continue
            best = min(seconds_to_first_batch(make, augmentation, position) for _ in range(repeats))
            cells.append(f"{1000 * best:,.0f} ms")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
