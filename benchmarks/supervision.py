"""Measures what `ckptkit run` costs when nothing goes wrong: ``python -m benchmarks.supervision [PAIRS]``.

Trains a MindSpore network with and without `ckptkit run`, in turn, and compares the medians of the time from the first
micro-step to the last and of the whole process. Also measures the heartbeat of a micro-step by itself.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS_EACH = 20_000
JOB = """
import sys, time
import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops
import ckptkit as ck
from ckptkit.mindspore.digits import load_digits

class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 128), nn.ReLU(), nn.Dense(128, 10))
    def construct(self, image, label):
        return ops.cross_entropy(self.network(image), label)

class Clock(ms.train.Callback):
    def on_train_step_end(self, run_context):
        times.append(time.perf_counter())

times = []
ms.set_seed(1)
digits = load_digits()
dataset = ds.NumpySlicesDataset((digits.train_images, digits.train_labels), ["image", "label"]).batch(32)
loss = Loss()
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.01), accumulation_steps=4)
clock = Clock()
training = ck.Training(read_only=[clock])
ckpt = ck.CheckpointCallback(sys.argv[1], save=ck.SaveEvery(optimizer_steps=50), training=training)
ckpt.train(ms.Model(cell), 8, dataset, callbacks=[clock])
print("TOOK", times[-1] - times[0])
"""


def heartbeat(folder: Path) -> float:
    """Microseconds of one micro-step's heartbeat, as the callback and the manager call it."""
    code = (
        "import statistics, time\n"
        "from ckptkit.manager.heartbeat.heart import HEART\n"
        "HEART.begin()\n"
        "HEART.restored(root='r', attempt=1, checkpoint=None, micro_step=0, rank=0, ranks=1)\n"
        "found, step = [], 0\n"
        "for _ in range(20):\n"
        "    began = time.perf_counter()\n"
        f"    for _ in range({STEPS_EACH}):\n"
        "        HEART.begin_step(); step += 1; HEART.step(step); HEART.step(step)\n"
        f"    found.append((time.perf_counter() - began) / {STEPS_EACH} * 1e6)\n"
        "print(statistics.median(found))\n"
    )
    environment = {**os.environ, "CKPTKIT_HEARTBEAT": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def life(command: list[str], folder: Path) -> tuple[float, float, float]:
    """Seconds of training, of the whole process, and of processors for it, which other programs change little."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    took = next(line for line in done.stdout.splitlines() if line.startswith("TOOK"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return float(took.split()[1]), time.perf_counter() - began, used


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "job.py").write_text(JOB)
        print(f"heartbeat: {heartbeat(folder):.2f} µs per micro-step")
        supervised = [sys.executable, "-m", "ckptkit", "run", "--"]
        found: dict[str, list[tuple[float, float, float]]] = {"without": [], "with": []}
        for number in range(pairs):
            both = [("without", []), ("with", supervised)]
            for name, before in both if number % 2 == 0 else reversed(both):
                found[name].append(life([*before, sys.executable, "job.py", f"{name}-{number}"], folder))
                print(f"{number} {name:8} {found[name][-1][0]:.2f} s of {found[name][-1][1]:.2f} s", flush=True)
        for at, what in enumerate(("training", "whole process", "processors")):
            plain, other = (statistics.median(one[at] for one in found[name]) for name in ("without", "with"))
            print(f"{what}: {plain:.3f} s without, {other:.3f} s with, ratio {other / plain:.3f}")


if __name__ == "__main__":
    main()
