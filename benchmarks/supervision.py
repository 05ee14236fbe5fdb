"""Measures what `ckptkit run` costs when nothing goes wrong: ``python -m benchmarks.supervision [PAIRS]``.

Trains a MindSpore network with and without `ckptkit run` in turn, and compares the medians of the time from the first
micro-step to the last. Which of the two comes first changes with each pair; run it on an idle machine.
Also measures the heartbeat of a micro-step by itself.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
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
ckpt.train(ms.Model(cell), 2, dataset, callbacks=[clock])
print("TOOK", times[-1] - times[0])
"""


def heartbeat(folder: Path) -> float:
    """Microseconds of one micro-step's heartbeat, as the callback and the manager call it."""
    code = (
        "import statistics, time\n"
        "from ckptkit.manager.heartbeat import HEARTBEAT\n"
        "HEARTBEAT.begin()\n"
        "HEARTBEAT.restored(root='r', attempt=1, checkpoint=None, micro_step=0, rank=0, ranks=1)\n"
        "found, step = [], 0\n"
        "for _ in range(20):\n"
        "    began = time.perf_counter()\n"
        f"    for _ in range({STEPS_EACH}):\n"
        "        HEARTBEAT.begin_step(); step += 1; HEARTBEAT.step(step); HEARTBEAT.step(step)\n"
        f"    found.append((time.perf_counter() - began) / {STEPS_EACH} * 1e6)\n"
        "print(statistics.median(found))\n"
    )
    environment = {**os.environ, "CKPTKIT_HEARTBEAT": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def start(command: list[str], folder: Path) -> subprocess.Popen[str]:
    # A session of its own, as `ckptkit run` gives its command: Linux may share the processors among sessions.
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )


def took(process: subprocess.Popen[str]) -> float:
    """Seconds of training."""
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    return float(next(line for line in printed.splitlines() if line.startswith("TOOK")).split()[1])


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "job.py").write_text(JOB)
        print(f"heartbeat: {heartbeat(folder):.2f} µs per micro-step")
        supervised = [sys.executable, "-m", "ckptkit", "run", "--"]
        found: dict[str, list[float]] = {"without": [], "with": []}
        for number in range(pairs):
            both = [("without", []), ("with", supervised)]
            for name, before in both if number % 2 == 0 else reversed(both):
                command = [*before, sys.executable, "job.py", f"{name}-{number}"]
                found[name].append(took(start(command, folder)))
            print(f"{number} without {found['without'][-1]:.2f} s, with {found['with'][-1]:.2f} s", flush=True)
        plain, other = (statistics.median(found[name]) for name in ("without", "with"))
        print(f"training: {plain:.3f} s without, {other:.3f} s with, ratio {other / plain:.3f}")


if __name__ == "__main__":
    main()
