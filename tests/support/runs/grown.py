"""Runs grown on disk with `NumpyRun`, for tests to break."""

from pathlib import Path
from typing import Any

from ckptkit.checkpoint.open import OpenedCheckpoint, open_checkpoint
from ckptkit.core.contents import Capture, Contents
from ckptkit.core.save_policy import SaveEvery
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.index import Index
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.storage import Storage
from ckptkit.testing.state import NumpyRun
from support.clock import Manual
from support.options import grouped

ON_REQUEST = SaveEvery(micro_steps=10**9)


class WatchedRun(NumpyRun):
    """Also notes which checkpoints it took over."""

    def __init__(self) -> None:
        super().__init__()
        self.applied: list[str] = []

    def apply(self, contents: Contents) -> None:
        super().apply(contents)
        self.applied.append(contents.checkpoint)


def run_at(batches: int) -> WatchedRun:
    """The state of an uninterrupted run after so many micro-steps."""
    run = WatchedRun()
    train(run, batches)
    return run


def train(run: NumpyRun, batches: int) -> None:
    for _ in run.train_until(batches):
        pass


def started(
    storage: Path | Storage, run: NumpyRun | None = None, **options: Any
) -> tuple[CheckpointManager, WatchedRun | Any]:
    """A manager that saves on request and keeps all, and the run that it has restored."""
    run = run or WatchedRun()
    manager = CheckpointManager(storage, **grouped(**{"save": ON_REQUEST, "keep": KeepLatest(100), **options}))
    manager.restore(run)
    return manager, run


def slow_capture(run: NumpyRun, time: Manual, seconds: float) -> None:
    """Let each capture of ``run`` take so long, by a clock of the test."""
    capture = run.capture

    def slow() -> Capture:
        time.now += seconds
        return capture()

    run.capture = slow  # type: ignore[method-assign]


def grow(root: Path | Storage, *saves_at: int, embedding: float | None = None) -> list[str]:
    """One attempt on ``root``, which saves after each of the given micro-steps; returns the names."""
    run = WatchedRun()
    names = []
    with CheckpointManager(root, save=ON_REQUEST, keep=KeepLatest(100)) as manager:
        manager.restore(run)
        if embedding is not None:
            run.embedding[:] = embedding
        for at in saves_at:
            train(run, at)
            names.append(manager.save(run).result())
    return names


def opened(storage: Storage, name: str) -> OpenedCheckpoint:
    parsed = CheckpointName.parse(name)
    assert parsed is not None
    return open_checkpoint(storage, parsed, Index(storage).document(parsed.attempt))
