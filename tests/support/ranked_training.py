"""A training of one rank, or of several as processes, to be examined: its arguments say what is wrong with it.

It does 18 micro-steps in cycles of 3, and saves after each fourth and at the end. FLIP is ``RANK STEP LEAF BIT``: after
that micro-step, hardware flips that bit of the leaf, once; FLIPPED is a file that then says so.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import ckptkit as ck
from ckptkit.testing.state import NumpyRun
from support.process_ranks import world
from support.thread_ranks import RankLostError

STEPS, K, EVERY = 18, 3, 4


class Run(NumpyRun):
    """A run that the doctor can look into; `forgotten` is in no checkpoint."""

    forgotten = 0

    def observer(self):
        return self

    def observe(self):
        leaves = {"weights/w": self.weights, "optimizer/m": self.moments, "accumulators/a": self.accumulators}
        digests = {name: leaf.tobytes().hex() for name, leaf in leaves.items()}
        return {**digests, "rng/own": repr(self._rng.bit_generator.state)}, {}

    def environment(self):
        return {"mode": "none"}

    def began(self):
        return {}

    def unstored(self):
        return {}

    def drawing_in_state_dict(self):
        return []

    def suspects(self):
        return []

    def replicated(self):
        return ["weights/w", "optimizer/m"]

    def flip(self, leaf: str, bit: int) -> None:
        """Flip a bit of a leaf, counted through all its elements."""
        getattr(self, leaf).view(np.uint32)[bit // 32] ^= np.uint32(1 << bit % 32)


def main(what: list[str]) -> None:
    run = Run(accumulation_steps=K, world=world())
    rank = run.world.rank
    Path(f"pid-{rank}").write_text(str(os.getpid()))
    if "unequal" in what and rank == 1:
        run.weights[0] += 1
    flip_rank, flip_step, leaf, bit = os.environ.get("FLIP", "-1 -1 - 0").split()
    saving, keep, mirror = ck.Saving(when_busy="wait"), ck.KeepLatest(9), "mirror" if "mirrored" in what else None
    save = ck.SaveEvery(micro_steps=EVERY)
    with ck.CheckpointManager("run", mirror=mirror, save=save, keep=keep, saving=saving) as manager:
        manager.restore(run)
        while run.batches < STEPS:
            try:
                run.train_step()
            except RankLostError:
                if "clings" in what:
                    signal.pause()
                raise
            if (rank, run.batches) == (int(flip_rank), int(flip_step)):
                run.flip(leaf, int(bit))
                Path("flipped").write_text(os.environ["FLIP"])
            if "forgets" in what and rank == 1:
                run.forgotten += 1
                run.accumulators += run.forgotten
            if "lags" in what and rank == 0:
                time.sleep(0.3)  # it is behind the other ranks, as by a slower host
            if not ("skips" in what and rank == 1 and run.batches == 5):
                manager.step(run)
            manager.wait()
        manager.save_final(run)
    Path(f"trained-{rank}").touch()


if __name__ == "__main__":
    main(sys.argv[1:])
