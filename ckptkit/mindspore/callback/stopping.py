"""Makes every rank stop ``Model.train`` at the same micro-step.

Guarantees: ``Model`` does not see a request that was held back until it is made again. Only a few of MindSpore's own
callbacks are known never to request a stop. Main thread only, within a callback.
"""

from __future__ import annotations

from mindspore.train import Callback, History, LossMonitor, ModelCheckpoint, RunContext, TimeMonitor

_NEVER_STOP = (LossMonitor, TimeMonitor, ModelCheckpoint, History)


def may_stop(callback: Callback) -> bool:
    """Return whether ``callback`` may request a stop, as far as its type tells; a subclass may do anything."""
    return type(callback) not in _NEVER_STOP


def hold_back(run_context: RunContext) -> bool:
    """Withdraw a request to stop, if there is one, and return whether there was.

    Raises:
        AttributeError: If this MindSpore keeps the request elsewhere than this package expects.
    """
    if not run_context.get_stop_requested():
        return False
    # Private attribute: RunContext has no public way to withdraw a request. If it moves, get_stop_requested() below
    # and tests/unit/mindspore/callback/test_stopping.py notice it.
    run_context._stop_requested = False
    if run_context.get_stop_requested():
        raise AttributeError(
            "this version of MindSpore keeps the stop request of RunContext elsewhere, so it cannot be delayed"
        )
    return True
