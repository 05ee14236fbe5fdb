"""The synthetic training that every system saves, without its framework.

A micro-step keeps one core busy for a fixed time and adds to one K-th of the accumulators; an update changes every byte
of weights and moments (Adam) and zeroes the accumulators. Shapes and initial values are the same in every framework.
All of it is deterministic, so a torn or stale checkpoint shows as another digest.
"""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import xxhash

from benchmarks.bench.options import MIB, Options

FLOATS = MIB // 4  # per MiB
BETA1, BETA2, RATE, EPSILON = 0.9, 0.999, 1e-3, 1e-8
Shapes = Mapping[str, tuple[int, ...]]
Made = TypeVar("Made", bound="Workload")


def timed(function: Callable[..., object], *arguments: object) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


def like_a_model(mib: int) -> Shapes:
    """354 shapes of ``mib`` MiB in all: 4 large matrices, 150 of middle size, 200 below 8 KiB."""
    if mib < 2:
        raise ValueError(f"{mib} MiB are too few for the shapes of a model; take 2 or more")
    total = mib * FLOATS
    shapes: dict[str, tuple[int, ...]] = {
        f"big{i}": (int(total * share) // 512, 512) for i, share in enumerate((1 / 6, 1 / 6, 1 / 12, 1 / 12))
    }
    shapes |= {f"small{i}": ((64, 256, 512, 1024, 1536)[i % 5],) for i in range(200)}
    for_middle = int(total * 0.985) - sum(math.prod(shape) for shape in shapes.values())
    weights = [(0.125, 0.25, 0.5, 0.75, 1.0, 1.125)[i % 6] for i in range(149)]
    shapes |= {f"mid{i}": (int(for_middle * w / sum(weights)) // 64, 64) for i, w in enumerate(weights)}
    return {**shapes, "mid149": (total - sum(math.prod(shape) for shape in shapes.values()),)}


def equal(count: int, total_bytes: int) -> Shapes:
    """``count`` equal shapes of about ``total_bytes`` in all."""
    return {f"w{i}": (max(1, total_bytes // 4 // count),) for i in range(count)}


class Workload(ABC):
    """The live state and its training.

    Args:
        shapes: Of the weights ``p.*``; moments ``m.*`` and ``v.*`` and accumulators ``a.*`` have the same.
        seed: Of the values; None makes the state that a restore fills.
        micro_steps: K.
        micro_ms: Length of a micro-step; 0 does without the load.
        kinds: Which of the four there are; without all of them it cannot train.

    Attributes:
        micro_steps: K.
        micro_step: Micro-steps of the cycle that are done.
        cycles: That are done.
        batches: That were trained on.
    """

    def __init__(
        self, shapes: Shapes, seed: int | None, *, micro_steps: int = 8, micro_ms: float = 0.0, kinds: str = "pmva"
    ) -> None:
        self.names = list(shapes)
        self.micro_steps = micro_steps
        self._groups = [self.names[i::micro_steps] for i in range(micro_steps)]
        self._fence: Callable[[], None] = lambda: None
        self.micro_step = self.cycles = self.batches = 0
        self.boot(np.full((512, 512), 1 / 512, np.float32))
        rng = np.random.default_rng(seed)
        for kind in kinds:
            for name, shape in shapes.items():
                self.add(f"{kind}.{name}", _values(rng, kind, shape, fresh=seed is None))
        self._repeats = self._calibrated(micro_ms / 1e3) if micro_ms else 0

    @abstractmethod
    def boot(self, load: np.ndarray) -> None:
        """Set the framework up; ``load`` is the matrix of `compute`, whose powers are itself."""

    @abstractmethod
    def add(self, name: str, values: np.ndarray) -> None:
        """Add a tensor to the state."""

    @abstractmethod
    def arrays(self) -> Iterator[np.ndarray]:
        """Every tensor's live memory, as flat bytes; all ``p``, then ``m``, ``v`` and ``a``."""

    @abstractmethod
    def compute(self) -> None:
        """Keep one core busy for a millisecond or so."""

    @abstractmethod
    def accumulate(self, names: Sequence[str]) -> None:
        """Add a hundredth of the weights of these names to their accumulators."""

    @abstractmethod
    def adam(self) -> None:
        """Update weights and moments from the accumulators, in place, and zero these."""

    def _calibrated(self, seconds: float) -> int:
        adding = min(timed(self.accumulate, group) for group in self._groups * 2)
        loading = min(timed(self.compute) for _ in range(6))
        return max(1, round((seconds - adding) / loading))

    def micro(self) -> None:
        """One micro-step; after the K-th, `update` is due."""
        for _ in range(self._repeats):
            self.compute()
        self.accumulate(self._groups[self.micro_step % self.micro_steps])
        self.micro_step += 1
        self.batches += 1

    @property
    def update_due(self) -> bool:
        """Whether the cycle's micro-steps are done."""
        return self.micro_step == self.micro_steps

    def update(self) -> None:
        """Change every byte of weights and moments; ends the cycle."""
        self.adam()
        self.end_cycle()

    def end_cycle(self) -> None:
        """Count a cycle."""
        self.batches += self.micro_step == 0  # a cycle has a micro-step at least
        self.micro_step = 0
        self.cycles += 1

    def fence(self) -> None:
        """Call right before an update: whoever reads live memory lets go of it."""
        self._fence()

    def change(self) -> None:
        """One deterministic change of every tensor, behind the fence."""
        self.accumulate(self._groups[0])
        self.batches += 1
        self.fence()
        self.update()

    def digest(self) -> str:
        """Of every bit."""
        hasher = xxhash.xxh3_128()
        for array in self.arrays():
            hasher.update(array.data)
        return hasher.hexdigest()


def _values(rng: Any, kind: str, shape: tuple[int, ...], *, fresh: bool) -> np.ndarray:
    if fresh or kind == "a":
        return np.full(shape, float(fresh), np.float32)  # what is restored must differ before
    values = rng.random(shape, np.float32)  # incompressible
    return values if kind == "v" else values - np.float32(0.5)


def build(make: type[Made], options: Options, shapes: Shapes, seed: int | None, **choices: Any) -> Made:
    """A warm workload. Threads that libraries make meanwhile stay on one core until the end, so they are few."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    made = make(shapes, seed, **{"micro_ms": options.micro_ms, "micro_steps": options.micro_steps, **choices})
    if choices.get("kinds", "pmva") == "pmva":
        made.change()
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)
    return made
