"""Ways to save a training of MindSpore; ``none`` saves nothing and shows the noise of everything else."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck
from benchmarks.bench.options import MIB
from ckptkit.manager.options import WindowUse

from .mindspore_trainer import Trainer
from .system import Nothing, System


class MindSpore(Nothing):
    """`mindspore.save_checkpoint` in its own thread, as ``ModelCheckpoint(async_save=True)`` calls it.

    It saves the whole cell, which holds the accumulators at a boundary, too.
    """

    def __init__(self, cell: nn.Cell, folder: Path, kind: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._cell = cell
        self._kind = kind
        self._folder = folder

    def path(self, label: int) -> Path:
        return self._folder / f"{label}.{self._kind}"

    def wait(self) -> None:
        # Private, but it is what MindSpore's own callback does before each save.
        from mindspore.train.callback._checkpoint import _wait_async_save_ckpt

        _wait_async_save_ckpt(True)

    def save(self, label: int) -> None:
        self.wait()
        ms.save_checkpoint(self._cell, str(self.path(label)), async_save=True, format=self._kind)

    def complete(self, label: int) -> bool:
        return self.path(label).exists()

    def restore(self, label: int) -> None:
        loaded = ms.load_checkpoint(str(self.path(label)), format=self._kind)
        missing, _ = ms.load_param_into_net(self._cell, loaded)
        if missing:
            raise RuntimeError(f"not in the checkpoint: {missing[:3]}")


class Copy(Nothing):
    """The ordinary way: copy everything into one reused buffer, then write, fsync and rename in a thread.

    No digests, no metadata, no accumulation window.
    """

    def __init__(self, trainer: Trainer, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._trainer = trainer
        self._folder = folder
        self._pool = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None
        self._buffer: np.ndarray | None = None

    def save(self, label: int) -> None:
        self.wait()
        live = list(self._trainer.arrays())
        if self._buffer is None:
            self._buffer = np.empty(sum(one.size for one in live), np.uint8)
        at = 0
        for one in live:
            np.copyto(self._buffer[at : at + one.size], one)
            at += one.size
        self._pending = self._pool.submit(self._write, self.path(label), self._buffer.data)

    def path(self, label: int) -> Path:
        return self._folder / str(label)

    def _write(self, path: Path, data: memoryview) -> None:
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb", buffering=0) as file:
            for at in range(0, len(data), 8 * MIB):
                file.write(data[at : at + 8 * MIB])
            os.fsync(file.fileno())
        temporary.rename(path)

    def wait(self) -> None:
        if self._pending is not None:
            self._pending.result()

    def complete(self, label: int) -> bool:
        return self.path(label).exists()

    def restore(self, label: int) -> None:
        with open(self.path(label), "rb", buffering=0) as file:
            for one in self._trainer.arrays():
                if file.readinto(one) != one.size:
                    raise RuntimeError(f"{self.path(label)} is too short")


class CkptKit(Nothing):
    """`ckptkit.CheckpointManager`, in one's own loop. Retention is off: the harness deletes.

    Args:
        trainer: Its own Capturable.
        folder: The run root.
        window: As for the manager.
    """

    def __init__(self, trainer: Trainer, folder: Path, window: WindowUse = "auto") -> None:
        self._trainer = trainer
        self._folder = folder
        self._names: dict[int, str] = {}
        self._reports: list[Any] = []
        self._manager = ck.CheckpointManager(
            folder,
            save=ck.SaveEvery(micro_steps=10**12),
            keep=ck.KeepEvery(optimizer_steps=1),
            saving=ck.Saving(on_error="raise", window=window, on_save=self._note),
        )
        if self._manager.latest() is None:
            self._manager.restore(trainer)

    def save(self, label: int) -> None:
        progress = self._trainer.progress()
        self._names[label] = f"a000001-c{progress.cycles:010d}-m{progress.micro_step:04d}"
        self._manager.save(self._trainer)

    def stepped(self) -> None:
        self._manager.step(self._trainer)

    def fence(self) -> None:
        self._manager.fence()

    def path(self, label: int) -> Path:
        return self._folder / "checkpoints" / self._names[label]

    def complete(self, label: int) -> bool:
        return (self.path(label) / "COMMIT").exists()

    def wait(self) -> None:
        self._manager.wait()

    def restore(self, label: int) -> None:
        self._manager.restore(self._trainer)

    def _note(self, report: Any) -> None:
        self._reports.append(report)

    def reports(self) -> list[dict[str, float]]:
        """The numbers of each `SaveReport`."""
        found, self._reports = self._reports, []
        return [_numbers(one) for one in found]


def _numbers(report: Any) -> dict[str, float]:
    """Those among the fields of a dataclass and of those in it."""
    numbers: dict[str, float] = {}
    for one in fields(report):
        value = getattr(report, one.name)
        if is_dataclass(value):
            numbers |= _numbers(value)
        elif isinstance(value, (int, float)):
            numbers[one.name] = float(value)
    return numbers


WORKLOAD = Trainer
SYSTEMS: dict[str, Callable[[Trainer, Path], System]] = {
    "none": lambda trainer, folder: Nothing(),
    "mindspore-ckpt": lambda trainer, folder: MindSpore(trainer.cell, folder, "ckpt"),
    "mindspore-safetensors": lambda trainer, folder: MindSpore(trainer.cell, folder, "safetensors"),
    "copy": Copy,
    "ckptkit": CkptKit,
    "ckptkit-slice": lambda trainer, folder: CkptKit(trainer, folder, "slice"),
    "ckptkit-off": lambda trainer, folder: CkptKit(trainer, folder, "off"),
}
