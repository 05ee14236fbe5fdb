"""Runs with a history, made by the real manager with a clock that tests move."""

import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

from ckptkit.core.save_policy import SaveEvery
from ckptkit.errors import StorageError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.keep_policy import KeepEvery, KeepLatest
from ckptkit.storage import LocalStorage
from ckptkit.testing.state import NumpyRun
from support.options import grouped

K = 4
START = datetime(2026, 3, 2, 22, 10, tzinfo=timezone.utc)


class Clock:
    """Stands still, but for what is asked of it and some milliseconds at each look. Any thread."""

    def __init__(self) -> None:
        self.at = START
        self._random = random.Random(3)
        self._lock = threading.Lock()  # without it, a look of the writing thread undoes one of the training's

    def now(self) -> datetime:
        return self.at

    def seconds(self) -> float:
        with self._lock:
            self.at += timedelta(milliseconds=self._random.uniform(0.5, 6))
            return (self.at - START).total_seconds()

    def pass_by(self, **much: float) -> None:
        with self._lock:
            self.at += timedelta(**much)


class FailingDisk(LocalStorage):
    failures_to_come = 0

    def write(self, key, stream, size_bytes) -> None:
        if self.failures_to_come:
            self.failures_to_come -= 1
            raise StorageError(f"could not write {key}: No space left on device")
        super().write(key, stream, size_bytes)


def loss_at(step: int) -> float:
    drawn = random.Random(step)
    return 0.35 + 2.1 * math.exp(-step / 130) + drawn.gauss(0, 0.05 + 0.2 * math.exp(-step / 90))


def norm_at(step: int) -> float:
    return abs(1.6 + 9 * math.exp(-step / 60) + random.Random(-step).gauss(0, 0.6)) + 0.05


class Life:
    def __init__(self, storage: LocalStorage, clock: Clock, host: str, **options) -> None:
        self._clock = clock
        self.run = NumpyRun(accumulation_steps=K, size=4_000, batches_per_epoch=100)
        defaults = {"save": SaveEvery(optimizer_steps=25), "keep": KeepLatest(3) | KeepEvery(optimizer_steps=200)}
        self.manager = CheckpointManager(
            storage,
            **grouped(**{**defaults, **options}, when_busy="wait", clock=clock.now, monotonic=clock.seconds, host=host),
        )

    def train(self, steps: int) -> None:
        """Train up to ``steps`` optimizer steps in all."""
        for batches in self.run.train_until(steps * K):
            self._clock.pass_by(seconds=5)
            step = -(-batches // K)
            norm = {"gradient_norm": norm_at(step)} if batches % K == 0 else {}
            self.manager.observe({"loss": loss_at(step)}, norm)
            self.manager.step(self.run, {"accuracy": 1 - loss_at(step) / 3} if batches % 100 == 0 else None)
            self.manager.wait()


@contextmanager
def dying(life: Life, error: BaseException) -> Iterator[None]:
    """Let the attempt end with ``error``, raised at the end of the block."""
    try:
        with life.manager:
            yield
            raise error
    except type(error):
        pass


def grow_history(root: Path) -> None:
    """Four attempts: killed; failed; preempted after a failed save; rewound to an older checkpoint and finished."""
    clock, disk = Clock(), FailingDisk(root)

    first = Life(disk, clock, "node-a17")
    first.manager.restore(first.run)
    first.train(165)
    first.manager.fence()  # and no more: SIGKILL

    clock.pass_by(minutes=41)
    second = Life(disk, clock, "node-a17")
    second.manager.restore(second.run)
    with dying(second, RuntimeError("Malloc device memory failed, size: 8589934592")):
        second.train(331)

    clock.pass_by(hours=3, minutes=5)
    third = Life(disk, clock, "node-c02")
    third.manager.restore(third.run)
    with dying(third, SystemExit(143)):
        third.train(390)
        disk.failures_to_come = 1
        third.train(480)
        third.manager.save(third.run)

    clock.pass_by(minutes=12)
    fourth = Life(disk, clock, "node-c03")
    with fourth.manager:
        fourth.manager.restore(fourth.run, checkpoint="a000003-c0000000450-m0000", rewind=True)
        fourth.train(640)
        fourth.manager.save_final(fourth.run)


def grow_short(root: Path, **options) -> None:
    """One attempt that saves three times and ends."""
    clock = Clock()
    life = Life(LocalStorage(root), clock, "node-a17", **options)
    with life.manager:
        life.manager.restore(life.run)
        life.train(75)
        life.manager.save_final(life.run)
