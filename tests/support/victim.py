"""A training without a framework in a process of its own, which gets real signals: ``victim.py ROOT JSON``.

Of the JSON: ``until`` and ``every`` count micro-steps; ``signals``: names, by the micro-step after which they are sent;
``stall`` and ``fail``: shell patterns of keys whose writing never ends, or fails; ``signal_at_stall``: name of the
signal when it begins not to end; ``script``: what else to do before the training; ``options`` of the manager, with
``grace`` in seconds from when something hangs. Prints what a test wants to know, as lines of JSON.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import ckptkit as ck
from ckptkit.storage import open_storage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun
from support.options import grouped


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


class Clock:
    """Stands still until something hangs, so that a busy machine takes nothing of the grace away."""

    def __init__(self) -> None:
        self._hung_at: float | None = None

    def __call__(self) -> float:
        return 0.0 if self._hung_at is None else time.monotonic() - self._hung_at

    def hang(self) -> None:
        self._hung_at = self._hung_at or time.monotonic()
        threading.Event().wait()


clock = Clock()


def main(root: str, plan: dict) -> None:
    logging.basicConfig(format="[%(name)s] %(message)s")
    storage = FaultyStorage(open_storage(root))

    def stall() -> None:
        if plan.get("signal_at_stall"):
            os.kill(os.getpid(), getattr(signal, plan["signal_at_stall"]))
        clock.hang()

    options = {"save": ck.SaveEvery(micro_steps=plan.get("every", 1000)), **plan.get("options", {})}
    if "grace" in plan:
        options |= {"grace": timedelta(seconds=plan["grace"]), "monotonic": clock}
    names = globals()
    exec(plan.get("script", ""), names)  # noqa: S102 - of the test itself
    run = NumpyRun()
    manager = ck.CheckpointManager(storage, **grouped(**options, **names.get("more_options", {})))
    with manager:
        point = manager.restore(run)
        say(began=point.batches_delivered, digest=run.digest())
        if "stall" in plan:
            storage.inject(Fault(stall, operations={"write", "create"}, key=plan["stall"], times=None))
        if "fail" in plan:
            storage.inject(Fault("error", operations={"write", "create"}, key=plan["fail"], times=None))
        for batches in run.train_until(plan["until"]):
            for number in plan.get("signals", {}).get(str(batches), ()):
                os.kill(os.getpid(), getattr(signal, number))
            manager.step(run)
            names.get("after_step", lambda batches: None)(batches)
            if manager.preempted:
                say(preempted=True)
                break
        else:
            manager.save_final(run)
    names.get("after", lambda: None)()
    say(exported=run.batches, digest=run.digest())


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
