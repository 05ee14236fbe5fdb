"""Ways to save a training of PyTorch: safetensors, and the distributed checkpoint's asynchronous save in a thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from .system import Nothing, System
from .workload import BETA1, BETA2, EPSILON, RATE, Workload


class TorchTrainer(Workload):
    """The synthetic training on one thread of PyTorch."""

    def boot(self, load: np.ndarray) -> None:
        torch.set_num_threads(1)
        self._load, self._step = torch.from_numpy(load), torch.tensor(10.0)
        self.tensors: dict[str, torch.Tensor] = {}

    def add(self, name: str, values: np.ndarray) -> None:
        self.tensors[name] = torch.from_numpy(values).clone()

    def arrays(self) -> Iterator[np.ndarray]:
        return (one.numpy().reshape(-1).view(np.uint8) for one in self.tensors.values())

    def compute(self) -> None:
        self._load @ self._load @ self._load @ self._load

    def accumulate(self, names: Sequence[str]) -> None:
        torch._foreach_add_(self._all("a", names), self._all("p", names), alpha=0.01)

    def adam(self) -> None:
        p, a, m, v = (self._all(kind, self.names) for kind in "pamv")
        rates = {"lr": RATE, "beta1": BETA1, "beta2": BETA2, "eps": EPSILON, "weight_decay": 0.0}
        torch._fused_adam_(p, a, m, v, [], [self._step] * len(p), amsgrad=False, maximize=False, **rates)
        torch._foreach_zero_(a)

    def _all(self, kind: str, names: Sequence[str]) -> list[torch.Tensor]:
        return [self.tensors[f"{kind}.{name}"] for name in names]


class Safetensors(Nothing):
    """`safetensors.torch.save_file`, which returns when the file is written; one tensor at a time back."""

    def __init__(self, trainer: TorchTrainer, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._trainer = trainer
        self._folder = folder

    def path(self, label: int) -> Path:
        return self._folder / f"{label}.safetensors"

    def save(self, label: int) -> None:
        save_file(self._trainer.tensors, self.path(label))

    def complete(self, label: int) -> bool:
        return self.path(label).exists()

    def restore(self, label: int) -> None:
        with safe_open(self.path(label), "pt") as file:
            for name, live in self._trainer.tensors.items():
                live.copy_(file.get_tensor(name))


class Dcp(Nothing):
    """`torch.distributed.checkpoint.async_save`, with one stager whose buffers are used again."""

    def __init__(self, trainer: TorchTrainer, folder: Path) -> None:
        self._trainer = trainer
        self._folder = folder
        store = dist.TCPStore("127.0.0.1", 0, 1, True)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), RANK="0", WORLD_SIZE="1")
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        # Pinned memory, asynchronous staging and copies that do not block need an accelerator.
        self._stager = DefaultStager(StagingOptions(False, False, False, False))
        self._pending: Any = None

    def path(self, label: int) -> Path:
        return self._folder / str(label)

    def save(self, label: int) -> None:
        self.wait()
        saved = dcp.async_save(self._trainer.tensors, checkpoint_id=str(self.path(label)), async_stager=self._stager)
        self._pending = getattr(saved, "upload_completion", saved)

    def complete(self, label: int) -> bool:
        return (self.path(label) / ".metadata").exists()

    def wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def restore(self, label: int) -> None:
        dcp.load(self._trainer.tensors, checkpoint_id=str(self.path(label)))


WORKLOAD = TorchTrainer
SYSTEMS: dict[str, Callable[[TorchTrainer, Path], System]] = {"torch-safetensors": Safetensors, "dcp": Dcp}
