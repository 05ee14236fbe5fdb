"""One start of a script: ``python life.py SCRIPT TRACE SYSTEM [--kill | --copy FOLDER COPY]``.

Writes a line for each micro-step, with the digests of all parameters of the process, and one for each record of
ckptkit's log. What it keeps in this process does not change, so that ckptkit has nothing to say of it. A server of warm
processes imports this module, and with it what scripts need.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import runpy
import shutil
import signal
import sys

import mindspore as ms
import mindspore.dataset
import mindspore.train
import ms_checkpoint
import numpy as np
import xxhash

import ckptkit as ck
from ckptkit.manager.run import Run

LOADED = (ck.AccumulationTrainCell, ck.CheckpointCallback, ck.CheckpointManager, ck.StateManager, ck.data, ck.nn)
STOP = 17  # the micro-step after which a life is killed; the scripts save each fifth


class Trace(logging.Filter):
    """Writes what happens, and each record of ckptkit's log; those of the level INFO go no further, as without it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._descriptor = os.open(path, os.O_WRONLY)
        log = logging.getLogger("ckptkit")
        log.addFilter(self)
        log.addHandler(logging.NullHandler())  # ckptkit prints its log where nobody else has a handler
        log.setLevel(logging.INFO)

    def write(self, **line: object) -> None:
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def filter(self, record: logging.LogRecord) -> bool:
        self.write(level=record.levelname, message=record.getMessage())
        return record.levelno > logging.INFO


def digests() -> dict[str, list[str]]:
    """Digests of all parameters by name; of those with one name, all of them that the script can still reach."""
    parameters = [value for value in gc.get_objects() if issubclass(type(value), ms.Parameter)]
    by_name: dict[str, set[str]] = {}
    for parameter in parameters:
        if not parameter.name.startswith("Parameter#"):
            array = np.ascontiguousarray(parameter.asnumpy())
            by_name.setdefault(parameter.name, set()).add(xxhash.xxh3_64_hexdigest(array.tobytes()))
    return {name: sorted(values) for name, values in sorted(by_name.items())}


def main(script: str, path: str, system: str, stop: str = "", *copied: str) -> None:
    trace = Trace(path)

    def after_step(number, drain=lambda: None):
        parameters = digests()
        if any(len(values) > 1 for values in parameters.values()):
            gc.collect()  # what load_checkpoint() read for a moment goes when the collector happens to run
            parameters = digests()
        trace.write(step=number, parameters=parameters)
        if stop and number >= STOP and not (copied and os.path.exists(copied[1])):
            drain()
            if stop == "--kill":
                os.kill(os.getpid(), signal.SIGKILL)
            shutil.copytree(*copied, symlinks=True)

    if system == "ckptkit":
        end_step = Run.step

        def step(self, state, metrics):
            saved = end_step(self, state, metrics)
            after_step(state.progress().batches_delivered, self.results.drain)
            return saved

        Run.step = step  # all that the corpus knows of ckptkit's inside is here
    else:
        ms_checkpoint.replace(after_step)
    globals()["__name__"] = "ckptkit.corpus"  # what this module holds is nothing of the job's
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
