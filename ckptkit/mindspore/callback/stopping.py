"""A stop of ``Model.train`` that every rank is to take at the same micro-step.

Guarantees: a request that was taken away is not seen by ``Model`` until somebody makes it again; of MindSpore's own
callbacks a few are known never to make one. Main thread only, within a callback.
"""

from __future__ import annotations

from mindspore.train import Callback, History, LossMonitor, ModelCheckpoint, RunContext, TimeMonitor

_NEVER_STOP = (LossMonitor, TimeMonitor, ModelCheckpoint, History)


def may_stop(callback: Callback) -> bool:
    """Whether ``callback`` may ask for a stop, as far as its type tells; a subclass may do anything."""
    return type(callback) not in _NEVER_STOP


def hold_back(run_context: RunContext) -> bool:
    """Take a request to stop away, where there is one; returns whether there was.

    Raises:
        AttributeError: If MindSpore keeps the request somewhere else than this package knows.
    """
    if not run_context.get_stop_requested():
        return False
    # Private, because RunContext can only be asked to stop and not to go on. Should it move, get_stop_requested() below
    # says so, as does tests/with_mindspore/test_stopping.py.
    run_context._stop_requested = False
    if run_context.get_stop_requested():
        raise AttributeError("RunContext keeps its request to stop elsewhere in this MindSpore: it cannot be held back")
    return True
