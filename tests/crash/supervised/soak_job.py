"""A MindSpore training that dies as it is told to, at moments: ``python soak_job.py ROOT PLAN EPOCHS PAUSE``.

PLAN is a JSON list of ``[kind, seconds]``: the first that has not happened yet happens so many seconds after training
has begun in this life, and after `LEAST` micro-steps, so that every life saves something. What happens is noted in
PLAN.done before it does. PAUSE is a time in seconds per micro-step.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits

BATCH, K = 32, 4
LEAST = 30


class Loss(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))

    def construct(self, image, label):
        return ops.cross_entropy(self.network(image), label)


class Misfortune(Callback):
    def __init__(self, root: Path, plan: Path, pause: float) -> None:
        super().__init__()
        self._root, self._pause = root, pause
        self._done = plan.with_suffix(".done")
        self._began, self._steps = 0.0, 0
        done = len(self._done.read_text().splitlines()) if self._done.exists() else 0
        self._next = (json.loads(plan.read_text()) if plan.exists() else [])[done : done + 1]

    def on_train_step_end(self, run_context) -> None:
        threading.Event().wait(self._pause)  # as a larger network would take
        self._began = self._began or time.monotonic()
        self._steps += 1
        for kind, seconds in self._next:
            if self._steps >= LEAST and time.monotonic() - self._began >= seconds:
                self._next = []
                with self._done.open("a") as file:
                    print(kind, file=file)
                self._happen(kind)

    def _happen(self, kind: str) -> None:
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "exception":
            raise ValueError("a cosmic ray")
        elif kind == "crash":
            ctypes.string_at(0)
        elif kind == "out-of-memory":
            used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (1 << 28), resource.RLIM_INFINITY))
            bytearray(1 << 36)
        elif kind == "disk-full":
            fill(self._root)
        elif kind == "hang":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind == "hang-of-a-worker":
            stuck_of(self._root).touch()


def fill(root: Path) -> None:
    """Leave no room on the file system of the run; where it is large, allow no file any size."""
    room = os.statvfs(root)
    if room.f_bavail * room.f_frsize > 1 << 28:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
        return
    with filler_of(root).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def filler_of(root: Path) -> Path:
    return root.parent / "filler"


def stuck_of(root: Path) -> Path:
    return root.parent / "stuck"


class Scale:
    """Runs in processes of its own, one of which waits for ever once a file is there."""

    def __init__(self, stuck: Path) -> None:
        self._stuck = str(stuck)

    def __call__(self, image):
        if os.path.exists(self._stuck):
            signal.pause()
        return (image / np.float32(16)).astype(np.float32)


def main() -> None:
    root, plan, epochs, pause = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    filler_of(root).unlink(missing_ok=True)  # as somebody who frees some space, or corrects the loader
    stuck_of(root).unlink(missing_ok=True)
    ms.set_seed(1)
    digits = load_digits()
    dataset = ds.NumpySlicesDataset((digits.train_images, digits.train_labels), ["image", "label"])
    dataset = dataset.map(Scale(stuck_of(root)), "image", num_parallel_workers=2, python_multiprocessing=True)
    loss = Loss()
    cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.01), accumulation_steps=K)
    misfortune = Misfortune(root, plan, pause)
    ckpt = ck.CheckpointCallback(
        root,
        save=ck.SaveEvery(optimizer_steps=5),
        keep=ck.KeepLatest(2),
        training=ck.Training(read_only=[misfortune], augmentation="stateless"),
        preemption=ck.Preemption(grace=timedelta(seconds=4)),
    )
    ckpt.train(ms.Model(cell), epochs, dataset.batch(BATCH), callbacks=[misfortune])


if __name__ == "__main__":
    main()
