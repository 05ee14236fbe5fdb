"""One life of a process that trains over several pipelines, one after the other.

``python -m exactness.pipelines.process JOBS``; prints one JSON object. ``record`` goes through all epochs and saves at
three cuts; ``resume`` restores one of those checkpoints and goes on to the end.
"""

import io
import json
import logging
import random
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck
from ckptkit.mindspore.data.batch_digest import digest_of

from .zoo import KINDS

EPOCHS = 3


def started(name, root, folder):
    kind = KINDS[name]
    augmentation = "stateless" if kind.stateless else None
    batches = ck.data.resumable(kind.build(folder), EPOCHS, augmentation=augmentation)
    return batches, ck.StateManager(nn.Dense(2, 2), batches), ck.CheckpointManager(root, keep=ck.KeepLatest(1000))


def record(name, root, folder, _):
    batches, state, manager = started(name, root, folder)
    size = batches.position.size or 8
    cuts = (2, size, 2 * size - 1)  # in an epoch, at its end, in a later one
    digests, saved = [], {}
    with manager:
        manager.restore(state)
        for batch in batches:
            digests.append(digest_of(batch))
            manager.step(state)
            if len(digests) in cuts:
                saved[len(digests)] = manager.save(state).result()
    return {"digests": digests, "saved": saved}


def resume(name, root, folder, checkpoint):
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger("ckptkit").addHandler(handler)
    random.seed(2)
    np.random.seed(3)  # a restart draws its own numbers before it gets to the data
    batches, state, manager = started(name, root, folder)
    try:
        with manager:
            manager.restore(state, checkpoint=checkpoint, rewind=True)
            return {"digests": [digest_of(batch) for batch in batches], "log": log.getvalue()}
    except ck.ResumeError as error:
        return {"refused": str(error), "log": log.getvalue()}
    finally:
        logging.getLogger("ckptkit").removeHandler(handler)


def main(jobs):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    logging.getLogger("ckptkit").setLevel("INFO")
    answers = []
    for verb, name, root, folder, what in jobs:
        ms.set_seed(1)
        answers.append({"record": record, "resume": resume}[verb](name, root, Path(folder), what))
    print(json.dumps(answers))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
