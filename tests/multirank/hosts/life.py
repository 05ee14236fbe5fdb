"""One rank of one life of a job on hosts, as a user would write it; its argument is a `Life` as JSON.

It traces the digest of everything that a later step depends on into a folder that survives the hosts, and stands still
where it is told to, until the test lets it go on.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
from exactness.equivalence.training import Trace
from mindspore.communication import init

import ckptkit as ck
from multirank.hosts.homes import opened
from multirank.msrun.life import Digits, trained

SAMPLES, GLOBAL_BATCH, MICRO_BATCH, EPOCHS = 24, 12, 2, 3  # for one, two, three and six ranks
STAND_STILL_SECONDS = 240


@dataclass(frozen=True)
class Life:
    """What every rank of a life is told."""

    notes: str = ""
    world_size: int = 1
    homes: tuple[str, ...] = ()
    mirrors: tuple[dict[str, Any], ...] = ()
    elastic: bool = False
    stand_still: tuple[int, ...] = ()
    retry_for: float = 60

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @property
    def accumulation_steps(self) -> int:
        return GLOBAL_BATCH // (self.world_size * MICRO_BATCH)

    @property
    def micro_steps(self) -> int:
        return EPOCHS * SAMPLES // (self.world_size * MICRO_BATCH)

    def standing(self, at: int, rank: int) -> Path:
        """The file that says that a rank stands still."""
        return Path(self.notes, f"standing-{at}-{rank}")

    def go(self, at: int) -> Path:
        """The file that lets them go on."""
        return Path(self.notes, f"go-{at}")

    def trace(self, rank: int) -> Path:
        return Path(self.notes, f"trace-{rank}.jsonl")

    def report(self, rank: int) -> Path:
        return Path(self.notes, f"rank-{rank}.json")


def pause(life: Life, rank: int, at: int) -> None:
    """Stand still after a micro-step, if the life is to."""
    if at not in life.stand_still:
        return
    life.standing(at, rank).touch()
    until = time.monotonic() + STAND_STILL_SECONDS
    while not life.go(at).exists():
        if time.monotonic() > until:
            raise TimeoutError(f"the test did not let rank {rank} go on after {at}")
        time.sleep(0.02)


def options(life: Life) -> dict[str, Any]:
    """The homes as options of a callback."""
    (root, connected), *mirrors = (opened(home, retry_for=timedelta(seconds=life.retry_for)) for home in life.homes)
    found: dict[str, Any] = {"root": root, "storage_options": connected}
    if mirrors:
        given = itertools.chain(life.mirrors, itertools.repeat({}))
        found["mirror"] = [mirror(*home, **how) for home, how in zip(mirrors, given, strict=False)]
    return found


def mirror(where: str, connected: dict[str, Any] | None, *, every: float = 0, **how: Any) -> ck.Mirror:
    """A mirror that keeps all; ``every`` in seconds, others as of `ckptkit.Mirror`."""
    pace = timedelta(seconds=every)
    return ck.Mirror(where, keep=ck.KeepLatest(100), every=pace, storage_options=connected, **how)


class Kept(ck.CheckpointCallback):
    """Saves and traces; each micro-step is traced before its save."""

    def __init__(self, life: Life, rank: int, trace: Trace) -> None:
        self._life, self._rank, self._trace = life, rank, trace
        super().__init__(
            **options(life),
            save=ck.SaveEvery(micro_steps=1),
            keep=ck.KeepLatest(100),
            saving=ck.Saving(when_busy="wait"),
            ranks=ck.Ranks(elastic=life.elastic, check_replicas=life.world_size > 1),
        )

    def on_train_step_end(self, run_context) -> None:
        params = run_context.original_args()
        self._trace.step(params)
        super().on_train_step_end(run_context)
        pause(self._life, self._rank, params.cur_step_num)


def data() -> ds.Dataset:
    order = ck.data.GlobalSampler(SAMPLES, global_batch=GLOBAL_BATCH, micro_batch=MICRO_BATCH, seed=5)
    source = ck.data.Augmented(Digits(SAMPLES), lambda sample, rng: (sample[0] + rng.random() / 64, sample[1]), seed=5)
    return source.dataset(["x", "y"], ranks=order).batch(MICRO_BATCH)


def main(life: Life) -> None:
    rank = 0
    if "MS_WORKER_NUM" in os.environ:
        init()
        if os.environ["MS_ROLE"] == "MS_SCHED":
            return
        ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
        rank = int(os.environ["MS_NODE_ID"])
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(11)
    trace, make = str(life.trace(rank)), (lambda trace: Kept(life, rank, trace)) if life.homes else None
    life.report(rank).write_text(json.dumps(trained(life.accumulation_steps, trace, EPOCHS, data(), make)))


if __name__ == "__main__":
    main(Life(**json.loads(sys.argv[1])))
