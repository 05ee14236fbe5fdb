"""The synthetic training that every system saves: MindSpore Parameters, computed with NumPy in their own memory.

MindSpore's CPU kernels keep threads spinning on every core, which would leave none to any background save; `training`
measures that. Here a micro-step keeps one core busy for a fixed time and adds to one K-th of the accumulators, and an
update changes every byte of weights and moments in place and zeroes the accumulators. All of it is deterministic, so a
torn or stale checkpoint shows as another digest.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
import xxhash
from mindspore import nn

from ckptkit.core.contents import Buffers, Capture, Contents
from ckptkit.core.process_group import ALONE, World
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import Leaf, Lifetime, Role
from ckptkit.errors import StateMismatchError
from ckptkit.mindspore.parameters.tracked import TrackedTensor, synchronize

from .options import MIB, Options

FLOATS = MIB // 4  # per MiB
PIECE = 1 << 14  # elements; temporaries of that size stay in the cache
BETA1, BETA2, RATE, EPSILON = 0.9, 0.999, 1e-3, 1e-8
Shapes = Mapping[str, tuple[int, ...]]


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


class Trainer:
    """The live state and its training; a `ckptkit.snapshot.Capturable`.

    Args:
        shapes: Of the weights ``p.*``; moments ``m.*`` and ``v.*`` and accumulators ``a.*`` have the same.
        seed: Of the values; None makes the state that a restore fills.
        micro_steps: K.
        micro_ms: Length of a micro-step; 0 does without the load.
        kinds: Which of the four there are; without all of them it cannot train.

    Attributes:
        parameters: By name.
        cell: A cell with all of them.
        micro_steps: K.
        world: One rank.
    """

    world: World = ALONE

    def __init__(
        self, shapes: Shapes, seed: int | None, *, micro_steps: int = 8, micro_ms: float = 0.0, kinds: str = "pmva"
    ) -> None:
        self._names = list(shapes)
        self.micro_steps = micro_steps
        self._groups = [self._names[i::micro_steps] for i in range(micro_steps)]
        self._load = np.full((512, 512), 1 / 512, np.float32)
        self._fence: Callable[[], None] = lambda: None
        self.micro_step = self.cycles = self.batches = 0
        self.parameters: dict[str, ms.Parameter] = {}
        self._tracked: list[TrackedTensor] = []
        self.cell = nn.Cell()
        ms.set_device("CPU")
        ms.set_context(mode=ms.PYNATIVE_MODE)
        rng = np.random.default_rng(seed)
        for kind in kinds:
            for name, shape in shapes.items():
                self._add(f"{kind}.{name}", _values(rng, kind, shape, fresh=seed is None))
        self._repeats = self._calibrated(micro_ms / 1e3) if micro_ms else 0

    def _add(self, name: str, values: np.ndarray) -> None:
        parameter = ms.Parameter(ms.Tensor(values), name=name)
        self.cell.insert_param_to_cell(name.replace(".", "_"), parameter)
        parameter.name = name
        self.parameters[name] = parameter

    def _calibrated(self, seconds: float) -> int:
        adding = min(timed(self._accumulate, group) for group in self._groups * 2)
        loading = min(timed(self._compute) for _ in range(6))
        return max(1, round((seconds - adding) / loading))

    def micro(self) -> None:
        """One micro-step; after the K-th, `update` is due."""
        for _ in range(self._repeats):
            self._compute()
        self._accumulate(self._groups[self.micro_step % self.micro_steps])
        self.micro_step += 1
        self.batches += 1

    @property
    def update_due(self) -> bool:
        """Whether the cycle's micro-steps are done."""
        return self.micro_step == self.micro_steps

    def update(self) -> None:
        """Adam, in place; ends the cycle."""
        for p, m, v, a in self._pieces(self._names, "pmva"):
            m[:] = BETA1 * m + (1 - BETA1) * a
            v[:] = BETA2 * v + (1 - BETA2) * a * a
            np.subtract(p, RATE * m / (np.sqrt(v) + EPSILON), out=p)
            a[:] = 0
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
        self._accumulate(self._groups[0])
        self.batches += 1
        self.fence()
        self.update()

    def arrays(self) -> Iterator[np.ndarray]:
        """Every tensor's live memory, as flat bytes."""
        return (one.asnumpy().reshape(-1).view(np.uint8) for one in self.parameters.values())

    def digest(self) -> str:
        """Of every bit."""
        hasher = xxhash.xxh3_128()
        for array in self.arrays():
            hasher.update(array.data)
        return hasher.hexdigest()

    def _compute(self) -> None:
        self._load @ self._load @ self._load @ self._load

    def _accumulate(self, names: Sequence[str]) -> None:
        for a, p in self._pieces(names, "ap"):
            np.add(a, np.float32(0.01) * p, out=a)

    def _pieces(self, names: Sequence[str], kinds: str) -> Iterator[list[np.ndarray]]:
        for name in names:
            whole = [self.parameters[f"{kind}.{name}"].asnumpy().reshape(-1) for kind in kinds]
            for at in range(0, whole[0].size, PIECE):
                yield [one[at : at + PIECE] for one in whole]

    # What follows is the Capturable.

    def guard(self, fence: Callable[[], None]) -> None:
        """Take what has to be called before weights or moments change."""
        self._fence = fence

    def progress(self) -> Progress:
        """Where the training stands."""
        return Progress(
            epoch=0,
            batch=self.batches,
            cycles=self.cycles,
            updates=self.cycles,
            micro_step=self.micro_step,
            accumulation_steps=self.micro_steps,
            batches_delivered=self.batches,
            cycle_first_batch=self.batches - self.micro_step,
        )

    def complete_step(self) -> Progress:
        """Where the training stands; each micro-step that it counts is complete."""
        return self.progress()

    def capture(self) -> Capture:
        """Live references to everything; accumulators in mid-cycle only."""
        progress = self.progress()
        return Capture(progress, tuple(self._leaves(at_boundary=progress.at_boundary)), {})

    def _leaves(self, *, at_boundary: bool) -> list[Leaf]:
        """As a `ckptkit.StateManager` takes them."""
        if not self._tracked:
            self._tracked = [_tracked(name, parameter) for name, parameter in self.parameters.items()]
        chosen = [one for one in self._tracked if not (at_boundary and one.name[0] == "a")]
        synchronize([one.tensor for one in chosen])
        return [one.leaf() for one in chosen]

    def mark_cycle_start(self) -> Progress:
        """Never called: ``mid_cycle`` is "exact"."""
        raise NotImplementedError

    def capture_cycle_start(self) -> Capture:
        """As `mark_cycle_start`."""
        raise NotImplementedError

    def begin(self, root: str) -> None:
        """Any state may begin."""

    def apply(self, contents: Contents) -> None:
        """Take over ``contents``.

        Raises:
            StateMismatchError: If other tensors are in it.
        """
        stored = {name for name in self.parameters if name[0] != "a" or not contents.progress.at_boundary}
        found = contents.entries.keys()
        if stored != found:
            raise StateMismatchError(f"{contents.checkpoint} holds {len(found)} tensors, this training {len(stored)}")
        live = {leaf.name: leaf.array for leaf in self._leaves(at_boundary=False)}
        contents.read_into(Buffers({name: live[name].reshape(-1).view(np.uint8).data for name in stored}))
        for name in live.keys() - stored:
            live[name][...] = 0
        progress = contents.progress
        self.micro_step, self.cycles, self.batches = progress.micro_step, progress.cycles, progress.batches_delivered


def _tracked(name: str, parameter: ms.Parameter) -> TrackedTensor:
    roles: dict[str, Role] = {"p": "weights", "a": "accumulators", "m": "optimizer", "v": "optimizer"}

    def lifetime_of(size_bytes: int) -> Lifetime:
        return "micro" if name[0] == "a" or size_bytes < 64 << 10 else "cycle"

    return TrackedTensor(name, parameter, roles[name[0]], lifetime_of, deferred=False, moved=set())


def _values(rng: Any, kind: str, shape: tuple[int, ...], *, fresh: bool) -> np.ndarray:
    if fresh or kind == "a":
        return np.full(shape, float(fresh), np.float32)  # what is restored must differ before
    values = rng.random(shape, np.float32)  # incompressible
    return values if kind == "v" else values - np.float32(0.5)


def build(options: Options, shapes: Shapes, seed: int | None, **choices: Any) -> Trainer:
    """A warm trainer. Threads that libraries make meanwhile stay on one core until the end, so they are few."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    trainer = Trainer(shapes, seed, **{"micro_ms": options.micro_ms, "micro_steps": options.micro_steps, **choices})
    if choices.get("kinds", "pmva") == "pmva":
        trainer.change()
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)
    return trainer
