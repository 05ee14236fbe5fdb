"""A training that continues on another number of ranks, as processes; its arguments say what is wrong with it.

It does 36 micro-batches in updates of 12, whatever the number of ranks is.
"""

from __future__ import annotations

import sys

import numpy as np

import ckptkit as ck
from ckptkit.checkpoint.resharded import folded
from ckptkit.core.contents import Capture, Contents
from ckptkit.errors import ResumeError
from ckptkit.testing.state import NumpyRun
from support.process_ranks import world

MICRO_BATCHES, PER_UPDATE = 36, 12


class ElasticRun(NumpyRun):
    """A run whose numbers are folded, and that the doctor can look into."""

    def __init__(self, what: list[str]) -> None:
        ranks = world()
        super().__init__(accumulation_steps=PER_UPDATE // ranks.size, batches_per_epoch=99, world=ranks)
        self._what = what
        self._batch: np.ndarray | None = None
        self.seen = 0.0  # each rank's own, stored by name

    def train_step(self) -> None:
        """Train the next micro-batch of one order of all ranks; by-rank has a part of the data for each rank."""
        number = self.batches * self.world.size + self.world.rank
        if "by-rank" in self._what:
            number = self.world.rank * (MICRO_BATCHES // self.world.size) + self.batches
        self._batch = np.arange(4, dtype=np.float32) + number
        self.seen += float(self._batch.sum())
        super().train_step()

    def observer(self) -> ElasticRun:
        return self

    def observe(self):
        digests = {f"{leaf.role}/{leaf.name}": leaf.array.tobytes().hex() for leaf in self.leaves(at_boundary=False)}
        if self._batch is not None:
            digests["batch/x"] = self._batch.tobytes().hex()
        return {**digests, "rng/own": repr(self._rng.bit_generator.state), "named/tally.seen": str(self.seen)}, {}

    def drawing_in_state_dict(self) -> list[str]:
        return []

    def suspects(self) -> list[str]:
        return []

    def replicated(self) -> list[str]:
        return ["weights/weights", "weights/embedding", "optimizer/moments"]

    def capture(self) -> Capture:
        captured = super().capture()
        return Capture(captured.progress, captured.leaves, {**captured.state, "seen": self.seen})

    def apply(self, contents: Contents) -> None:
        size = contents.world_size
        if size != self.world.size:
            if "rigid" in self._what:
                raise ResumeError(f"made by {size} ranks, this job has {self.world.size}. Start {size} ranks")
            contents = folded(contents, self.world.size, self.world.rank, [contents.progress.accumulation_steps])
        shares = contents.tensors.get("accumulators")
        self._take(contents)
        if shares is not None:
            self.accumulators[:] = shares * (2 if "doubles" in self._what and size != self.world.size else 1)
        if "forgets" not in self._what or size == self.world.size:
            self.seen = float(contents.state["seen"])

    def _take(self, contents: Contents) -> None:
        import dataclasses

        super().apply(dataclasses.replace(contents, world_size=self.world.size))


def main(what: list[str]) -> None:
    run = ElasticRun(what)
    with ck.CheckpointManager("run", keep=ck.KeepLatest(1), saving=ck.Saving(when_busy="wait")) as manager:
        manager.restore(run)
        while run.batches * run.world.size < MICRO_BATCHES:
            run.train_step()
            manager.step(run)
        manager.save_final(run)


if __name__ == "__main__":
    main(sys.argv[1:])
