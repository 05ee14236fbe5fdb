"""One life of a process that trains over several pipelines, one after the other.

``python -m exactness.pipelines.process JOB``; prints one JSON object. ``record`` goes through all epochs and saves at
each of the cuts; ``resume`` restores one of those checkpoints and goes on to the end.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck
from ckptkit import data
from ckptkit.mindspore.data.batch_digest import digest_of

from .zoo import KINDS

EPOCHS = 3


class Heard(logging.Handler):
    """What ckptkit logged."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def batches_and_state(name, folder):
    kind = KINDS[name]
    batches = data.resumable(kind.build(folder), EPOCHS, augmentation="stateless" if kind.stateless else None)
    return batches, ck.StateManager(nn.Dense(2, 2), batches)


def cuts_of(size, wanted):
    """Numbers of delivered batches: in epoch 0, at an epoch's end, in a later epoch; or every one."""
    chosen = {"covering": [2, size, 2 * size - 1], "every": range(1, EPOCHS * size)}[wanted]
    return sorted(set(chosen))


def record(name, root, folder, wanted):
    batches, state = batches_and_state(name, folder)
    cuts = cuts_of(getattr(batches.position, "size", 8), wanted)
    digests, saved = [], {}
    with ck.CheckpointManager(root, keep=ck.KeepLatest(1000)) as manager:
        manager.restore(state)
        for batch in batches:
            digests.append(digest_of(batch))
            manager.step(state)
            if len(digests) in cuts:
                saved[len(digests)] = manager.save(state).result()
    return {"digests": digests, "saved": saved}


def resume(name, root, folder, checkpoint):
    heard = Heard()
    logging.getLogger("ckptkit").addHandler(heard)
    batches, state = batches_and_state(name, folder)
    try:
        with ck.CheckpointManager(root, keep=ck.KeepLatest(1000)) as manager:
            manager.restore(state, checkpoint=checkpoint, rewind=True)
            digests = [digest_of(batch) for batch in batches]
    except ck.ResumeError as error:
        return {"refused": str(error), "log": heard.lines}
    finally:
        logging.getLogger("ckptkit").removeHandler(heard)
    return {"digests": digests, "log": heard.lines}


def main(jobs):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    logging.getLogger("ckptkit").setLevel("INFO")
    found = []
    for verb, name, root, folder, what in jobs:
        ms.set_seed(1)
        if verb == "resume":
            random.seed(2)
            np.random.seed(3)  # a restart draws its own numbers before it gets to the data
        found.append({"record": record, "resume": resume}[verb](name, root, Path(folder), what))
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
