"""Who but the train cell may write to the parameters while a checkpoint still reads them.

Guarantees: a callback of the user's that acts between two micro-steps of an epoch is named, unless it is declared to
change nothing; whether it really does is not examined. MindSpore's own callbacks change only what a save copies
anyway. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore.train import Callback, LambdaCallback, OnRequestExit

# Those that run while a window may be open; all others are preceded by a fence.
_HOOKS = (
    "step_begin",
    "step_end",
    "epoch_begin",
    "on_train_step_begin",
    "on_train_step_end",
    "on_train_epoch_begin",
)


def may_write_within_epoch(callbacks: Sequence[Callback], read_only: Sequence[Callback | type[Callback]]) -> list[str]:
    """Names of the classes of ``callbacks`` that run code of the user's within an epoch.

    Args:
        callbacks: Of the training.
        read_only: Those, or their classes, that are declared to change no parameter.
    """
    suspects = [one for one in callbacks if not _is_declared(one, read_only) and _acts_within_epoch(one)]
    return sorted({type(one).__name__ for one in suspects})


def acts_after(me: Callback, callbacks: Sequence[Callback]) -> bool:
    """Whether one of ``callbacks`` that follows ``me`` runs code of the user's, or may end training."""
    after = callbacks[[one is me for one in callbacks].index(True) + 1 :]
    hooks = (*_HOOKS, "epoch_end", "on_train_epoch_end")
    return any(
        isinstance(one, (LambdaCallback, OnRequestExit)) or any(not _is_known(one, hook) for hook in hooks)
        for one in after
    )


def _is_declared(callback: Callback, read_only: Sequence[Callback | type[Callback]]) -> bool:
    return any(callback is one or (isinstance(one, type) and isinstance(callback, one)) for one in read_only)


def _acts_within_epoch(callback: Callback) -> bool:
    # A LambdaCallback is MindSpore's, but what it runs is not.
    return isinstance(callback, LambdaCallback) or any(not _is_known(callback, hook) for hook in _HOOKS)


def _is_known(callback: Callback, hook: str) -> bool:
    module = getattr(getattr(callback, hook, None), "__module__", None) or ""
    return module.partition(".")[0] in ("mindspore", "ckptkit")
