"""Ways to save a training of JAX: Orbax, asynchronous as its `CheckpointManager` is by default."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"  # read when jax is imported

import jax
import numpy as np
import orbax.checkpoint as ocp

from .system import Nothing, System
from .workload import BETA1, BETA2, EPSILON, RATE, Workload


class JaxTrainer(Workload):
    """The synthetic training on JAX. Arrays are immutable; an update donates its inputs, which is JAX's in-place."""

    def boot(self, load: np.ndarray) -> None:
        self._load = load
        self.tensors: dict[str, jax.Array] = {}
        self._place = jax.sharding.SingleDeviceSharding(jax.devices()[0])  # as restored arrays have it
        self._adam = jax.jit(_adam, donate_argnums=(0, 1, 2, 3))
        self._add = jax.jit(lambda a, p: a + 0.01 * p, donate_argnums=0)
        self._multiply = jax.jit(lambda x: x @ x @ x @ x)

    def add(self, name: str, values: np.ndarray) -> None:
        self.tensors[name] = jax.device_put(jax.numpy.array(values, copy=True), self._place)

    def arrays(self) -> Iterator[np.ndarray]:
        return (np.asarray(one).reshape(-1).view(np.uint8) for one in self.tensors.values())

    def compute(self) -> None:
        self._multiply(self._load).block_until_ready()

    def accumulate(self, names: Sequence[str]) -> None:
        for name in names:
            self.tensors[f"a.{name}"] = self._add(self.tensors[f"a.{name}"], self.tensors[f"p.{name}"])
        jax.block_until_ready([self.tensors[f"a.{name}"] for name in names])

    def adam(self) -> None:
        for name in self.names:
            keys = [f"{kind}.{name}" for kind in "pmva"]
            self.tensors.update(zip(keys, self._adam(*(self.tensors[key] for key in keys)), strict=True))
        jax.block_until_ready(self.tensors)


def _adam(p: jax.Array, m: jax.Array, v: jax.Array, a: jax.Array) -> tuple[jax.Array, ...]:
    m, v = BETA1 * m + (1 - BETA1) * a, BETA2 * v + (1 - BETA2) * a * a
    return p - RATE * m / (jax.numpy.sqrt(v) + EPSILON), m, v, jax.numpy.zeros_like(a)


class Orbax(Nothing):
    """`orbax.checkpoint.CheckpointManager` with `StandardSave` of the tree."""

    def __init__(self, trainer: JaxTrainer, folder: Path) -> None:
        self._trainer = trainer
        self._folder = folder
        self._manager = ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(create=True))

    def path(self, label: int) -> Path:
        return self._folder / str(label)

    def save(self, label: int) -> None:
        self._manager.save(label, args=ocp.args.StandardSave(self._trainer.tensors))

    def complete(self, label: int) -> bool:
        return self.path(label).exists()

    def wait(self) -> None:
        self._manager.wait_until_finished()
        self._manager.check_for_errors()

    def restore(self, label: int) -> None:
        live = self._trainer.tensors
        abstract = jax.tree_util.tree_map(ocp.utils.to_shape_dtype_struct, live)
        live.update(self._manager.restore(label, args=ocp.args.StandardRestore(abstract)))
        jax.block_until_ready(live)


WORKLOAD = JaxTrainer
SYSTEMS: dict[str, Callable[[JaxTrainer, Path], System]] = {"orbax": Orbax}
