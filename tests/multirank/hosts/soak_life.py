"""One life of the soak: a NumPy training with all tiers; its argument is a `Life` as JSON.

What it says survives it: each line is written at once to a file that is not of any host. A micro-step is told before
the save that follows it may begin.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import ckptkit as ck
from ckptkit.testing.state import NumpyRun
from multirank.hosts.homes import opened

CYCLE = 4
SIZE = 2_000
STEP_SECONDS = 0.05
Say = Callable[..., None]


@dataclass(frozen=True)
class Life:
    """What a life is told.

    Attributes:
        notes: Where it says what it did.
        memory: Its run root.
        neighbour: As for `opened`.
        bucket: The same.
        until: Micro-steps after which it ends by itself.
    """

    notes: str
    memory: str
    neighbour: str
    bucket: str
    until: int

    def dumps(self) -> str:
        return json.dumps(asdict(self))


def new_run() -> NumpyRun:
    """What every life begins with."""
    return NumpyRun(accumulation_steps=CYCLE, size=SIZE)


class Uploaded(logging.Handler):
    """Says which mirror got what, from the log."""

    def __init__(self, say: Say) -> None:
        super().__init__(logging.INFO)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("%s is uploaded to the mirror") and isinstance(record.args, tuple):
            name, url, *_ = record.args
            self._say("uploaded", name=str(name), url=url)


def manager_of(life: Life, say: Say) -> ck.CheckpointManager:
    """Saves after each update, and tells each commit."""

    def mirror(home: str, retry_for: float, **options: Any) -> ck.Mirror:
        root, connected = opened(home, retry_for=timedelta(seconds=retry_for))
        return ck.Mirror(root, storage_options=connected, **options)

    return ck.CheckpointManager(
        life.memory,
        save=ck.SaveEvery(optimizer_steps=1),
        keep=ck.KeepLatest(2),
        mirror=[
            mirror(life.neighbour, 3, required=False),
            mirror(life.bucket, 60, every=timedelta(seconds=2)),
        ],
        saving=ck.Saving(when_busy="wait", on_save=lambda report: say("committed", name=report.checkpoint)),
        preemption=ck.Preemption(then="off"),
    )


def main(life: Life) -> None:
    descriptor = os.open(life.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(what: str, **more: Any) -> None:
        os.write(descriptor, json.dumps({"what": what, **more}).encode() + b"\n")

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("ckptkit").addHandler(Uploaded(say))
    run = new_run()
    with manager_of(life, say) as manager:
        point = manager.restore(run)
        say("restored", name=point.checkpoint, at=run.batches, digest=run.digest())
        for at in run.train_until(life.until):
            say("step", at=at, digest=run.digest())
            manager.step(run)
            time.sleep(STEP_SECONDS)  # what a micro-step takes
        manager.save_final(run)
    say("ended", digest=run.digest())


if __name__ == "__main__":
    main(Life(**json.loads(sys.argv[1])))
