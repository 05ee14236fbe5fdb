"""The data files that the pipelines read, 24 samples each, always the same."""

import struct
from pathlib import Path

import numpy as np
from mindspore.mindrecord import FileWriter
from PIL import Image

COUNT = 24


def write_files(folder: Path) -> None:
    """Images in folders, MNIST, CSV and MindRecord files below ``folder``."""
    rng = np.random.default_rng(0)
    for index in range(COUNT):
        place = folder / "images" / f"class{index % 3}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(place / f"{index:03d}.png")
    for part in range(2):
        half = range(part * 12, part * 12 + 12)
        (folder / f"{part}.csv").write_text("".join(f"{index},{2 * index}\n" for index in half))
    (folder / "lines.txt").write_text("".join(f"line {index}\n" for index in range(COUNT)))
    _write_mnist(folder / "mnist", rng)
    writer = FileWriter(str(folder / "x.mindrecord"), 1, overwrite=True)
    writer.add_schema({"x": {"type": "int32", "shape": [1]}}, "numbers")
    writer.write_raw_data([{"x": np.array([index], np.int32)} for index in range(COUNT)])
    writer.commit()


def _write_mnist(folder: Path, rng: np.random.Generator) -> None:
    folder.mkdir()
    images = rng.integers(0, 255, (COUNT, 28, 28), dtype=np.uint8)
    labels = np.arange(COUNT, dtype=np.uint8) % 10
    (folder / "train-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, COUNT, 28, 28) + images.tobytes())
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, COUNT) + labels.tobytes())
