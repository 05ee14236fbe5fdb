"""Provides `NumpyRun`: a training run without a framework, small enough to compare bit by bit.

Two runs on one machine with equal options and equally many micro-steps have equal digests, whatever was saved, killed
and restored in between. The digest covers every bit that a later step depends on. Only one thread may call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptkit.core.contents import Capture, Contents
from ckptkit.core.process_group import ALONE, World
from ckptkit.core.progress import Progress
from ckptkit.core.state_encoding import decode_tree, encode_tree
from ckptkit.core.tensors import Leaf, leaf_of
from ckptkit.errors import ResumeError, StateMismatchError
from ckptkit.format.documents import canonical, digest_of

_Float32 = npt.NDArray[np.float32]


class NumpyRun:
    """Trains in NumPy, with gradient accumulation, momentum, dropout-like noise and a frozen embedding.

    It is a `ckptkit.snapshot.Capturable`: pass it to a `ckptkit.CheckpointManager` instead of a model.

    Args:
        seed: Seed of the initial weights and of the generator that every micro-step draws from.
        accumulation_steps: Micro-steps per update.
        size: Number of elements of each tensor.
        batches_per_epoch: Number of batches after which the epoch grows by one.
        world: The ranks; each draws and accumulates on its own, and an update takes the sum over all.
    """

    def __init__(
        self,
        seed: int = 7,
        *,
        accumulation_steps: int = 4,
        size: int = 5,
        batches_per_epoch: int = 10,
        world: World = ALONE,
    ) -> None:
        self.world = world
        self._accumulation_steps = accumulation_steps
        self._batches_per_epoch = batches_per_epoch
        self._rng = np.random.default_rng(seed)
        self.weights: _Float32 = self._rng.standard_normal(size, np.float32)
        self.embedding: _Float32 = self._rng.standard_normal(size, np.float32)
        self.moments: _Float32 = np.zeros(size, np.float32)
        self.accumulators: _Float32 = np.zeros(size, np.float32)
        if world.size > 1:
            self._rng = np.random.default_rng([seed, world.rank])
        self.batches = 0
        self._rng_at_cycle_start = self._rng.bit_generator.state
        self._fences: list[Callable[[], None]] = []

    def train_step(self) -> None:
        """Run one micro-step; the last one of a cycle updates the weights."""
        noise = self._rng.standard_normal(self.weights.size, np.float32)
        number = self.batches * self.world.size + self.world.rank
        batch = np.float32((number * 37 % 101) / 101)
        self.accumulators += self.weights * noise + self.embedding * batch
        self.batches += 1
        if self.batches % self._accumulation_steps == 0:
            self._reduce()
            self._fence()
            self.moments *= np.float32(0.9)
            self.moments += self.accumulators / np.float32(self._accumulation_steps * self.world.size)
            self.weights -= np.float32(0.01) * self.moments
            self.accumulators[:] = 0

    def _reduce(self) -> None:
        if self.world.size > 1:
            words = self.world.gather(self.accumulators.tobytes().hex())
            parts = [np.frombuffer(bytes.fromhex(word), np.float32) for word in words]
            self.accumulators[:] = sum(parts[1:], start=parts[0])

    def train_until(self, batches: int) -> Iterator[int]:
        """Train up to ``batches`` in total; yields the number of batches done after every micro-step."""
        while self.batches < batches:
            self.train_step()
            yield self.batches

    def digest(self) -> str:
        tensors = (self.weights, self.embedding, self.moments, self.accumulators)
        parts = [digest_of(tensor.tobytes()) for tensor in tensors]
        return digest_of(canonical([*parts, self.batches, encode_tree(self._rng.bit_generator.state, "rng", [])]))

    def progress(self) -> Progress:
        return self._progress_at(self.batches)

    def complete_step(self) -> Progress:
        """Return the progress of the run; every micro-step that it counts is complete."""
        return self.progress()

    def _progress_at(self, batches: int) -> Progress:
        cycles, micro_step = divmod(batches, self._accumulation_steps)
        return Progress(
            epoch=batches // self._batches_per_epoch,
            batch=batches % self._batches_per_epoch,
            cycles=cycles,
            updates=cycles,
            micro_step=micro_step,
            accumulation_steps=self._accumulation_steps,
            batches_delivered=batches,
            cycle_first_batch=cycles * self._accumulation_steps,
        )

    def capture(self) -> Capture:
        """Return live references to the state."""
        return self._captured(self.progress(), self._rng.bit_generator.state)

    def leaves(self, *, at_boundary: bool) -> list[Leaf]:
        """Return references to all arrays; at a boundary without the accumulators, which are zero there."""
        leaves = [
            leaf_of("weights", self.weights, role="weights", lifetime="cycle", placement="replicated"),
            leaf_of("embedding", self.embedding, role="weights", lifetime="frozen", placement="replicated"),
            leaf_of("moments", self.moments, role="optimizer", lifetime="cycle", placement="replicated"),
        ]
        return leaves if at_boundary else [*leaves, leaf_of("accumulators", self.accumulators, role="accumulators")]

    def guard(self, fence: Callable[[], None]) -> None:
        if fence not in self._fences:
            self._fences.append(fence)

    def _fence(self) -> None:
        while self._fences:
            self._fences[-1]()  # popped only afterwards: a fence that raises runs again before the next update
            self._fences.pop()

    def mark_cycle_start(self) -> Progress:
        """Keep the generator's state at a boundary; only it and the accumulators change within a cycle."""
        progress = self.progress()
        if progress.at_boundary:
            self._rng_at_cycle_start = self._rng.bit_generator.state
        return progress

    def capture_cycle_start(self) -> Capture:
        """Return live references to the state as it was when the current cycle began."""
        first = self.batches - self.progress().micro_step
        return self._captured(self._progress_at(first), self._rng_at_cycle_start)

    def _captured(self, progress: Progress, rng_state: Mapping[str, Any]) -> Capture:
        state_leaves: list[Leaf] = []
        rng = encode_tree(rng_state, "rng", state_leaves)
        leaves = self.leaves(at_boundary=progress.at_boundary)
        return Capture(progress, (*leaves[:3], *state_leaves, *leaves[3:]), {"rng": rng})

    def is_over(self) -> bool:
        return False  # the caller decides how long to train

    def begin(self, root: str) -> None:
        """Accept any state: checkpoints do not hold what a run began with."""

    def apply(self, contents: Contents) -> None:
        targets = {"weights": self.weights, "embedding": self.embedding, "moments": self.moments}
        if not contents.progress.at_boundary:
            targets["accumulators"] = self.accumulators
        stored, wanted = (
            {name: (tensor.shape, str(tensor.dtype)) for name, tensor in tensors.items()}
            for tensors in (contents.tensors, targets)
        )
        if stored != wanted:
            raise StateMismatchError(f"{contents.checkpoint} holds {stored}, this run needs {wanted}")
        if contents.progress.accumulation_steps != self._accumulation_steps:
            theirs = contents.progress.accumulation_steps
            raise StateMismatchError(f"{contents.checkpoint} has K = {theirs}, this run {self._accumulation_steps}")
        if contents.world_size != self.world.size:
            raise ResumeError(
                f"{contents.checkpoint} was made by {contents.world_size} ranks, this job has {self.world.size}"
            )
        rng = decode_tree(contents.state["rng"], contents.state_tensors)
        self._fence()
        self.accumulators[:] = 0
        for name, target in targets.items():
            target[:] = contents.tensors[name]
        self._rng.bit_generator.state = rng
        self.batches = contents.progress.batches_delivered
