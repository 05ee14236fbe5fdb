"""One start of a script: ``python -m exactness.scripts.life SCRIPT TRACE [KILL]``.

Writes a line for each micro-step, with the digests of all parameters of the process, and one for each warning. What it
keeps in this process does not change, so that ckptkit has nothing to say of it.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import runpy
import signal
import sys

import mindspore as ms
import numpy as np
import xxhash

from ckptkit.manager.active_run import ActiveRun


class Warnings(logging.Handler):
    def __init__(self, trace):
        super().__init__(logging.WARNING)
        self.trace = trace

    def emit(self, record):
        tell(self.trace, warning=record.getMessage())


def tell(trace, **line):
    os.write(trace, json.dumps(line).encode() + b"\n")


def digests():
    """Digests of all parameters by name; of those with one name, all of them that the script can still reach."""
    found = parameters_by_name()
    if any(len(each) > 1 for each in found.values()):
        gc.collect()  # what load_checkpoint() read for a moment goes when the collector happens to run
        found = parameters_by_name()
    return {name: sorted(each) for name, each in sorted(found.items())}


def parameters_by_name():
    found = {}
    for one in gc.get_objects():
        if issubclass(type(one), ms.Parameter) and not one.name.startswith("Parameter#"):
            array = np.ascontiguousarray(one.asnumpy())
            found.setdefault(one.name, set()).add(xxhash.xxh3_64_hexdigest(array.tobytes()))
    return found


def main(script, trace, kill="0"):
    descriptor = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    logging.getLogger("ckptkit").addHandler(Warnings(descriptor))
    end_step = ActiveRun.step

    def step(self, state, metrics):
        saved = end_step(self, state, metrics)
        at = state.progress().batches_delivered
        tell(descriptor, step=at, parameters=digests())
        if at >= int(kill) > 0:
            self.services.results.drain()
            os.kill(os.getpid(), signal.SIGKILL)
        return saved

    ActiveRun.step = step
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
