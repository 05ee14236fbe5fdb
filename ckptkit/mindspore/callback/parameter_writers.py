"""Finds callbacks that may write to the parameters while a checkpoint still reads them.

Guarantees: a user's callback that acts while a checkpoint may still be read from live memory is named, unless it only
looks there (`ckptkit.mindspore.callback.read_only`) or is declared to change nothing. MindSpore's own callbacks change
only what a save copies anyway. Main thread only.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore.train import Callback, LambdaCallback

from ckptkit.mindspore.callback.read_only import only_looks

# Hooks that run while a window may be open.
_STEP_HOOKS = (
    "step_begin",
    "step_end",
    "epoch_begin",
    "on_train_step_begin",
    "on_train_step_end",
    "on_train_epoch_begin",
)
# Hooks after a fence, unless callbacks follow the one that fences: those run after the save at the end of an epoch, or
# stop an epoch whose last step that one has already seen.
_END_HOOKS = (
    "epoch_end",
    "end",
    "on_train_epoch_end",
    "on_train_end",
    "on_eval_begin",
    "on_eval_end",
    "on_eval_epoch_begin",
    "on_eval_epoch_end",
    "on_eval_step_begin",
    "on_eval_step_end",
)


def may_write_in_window(
    callbacks: Sequence[Callback], read_only: Sequence[Callback | type[Callback]], *, followed: bool
) -> list[str]:
    """Return the class names of the ``callbacks`` that run user code while a window may be open.

    Args:
        callbacks: Callbacks of the training.
        read_only: Callbacks, or classes of them, that are declared to change no parameter.
        followed: Whether some of ``callbacks`` come after the one that saves and fences.
    """
    hooks = _STEP_HOOKS + _END_HOOKS if followed else _STEP_HOOKS
    acting = [one for one in callbacks if not _is_declared(one, read_only) and _acts(one, hooks)]
    return sorted({type(one).__name__ for one in acting if not only_looks(one, hooks)})


def _is_declared(callback: Callback, read_only: Sequence[Callback | type[Callback]]) -> bool:
    return any(callback is one or (isinstance(one, type) and isinstance(callback, one)) for one in read_only)


def _acts(callback: Callback, hooks: Sequence[str]) -> bool:
    # LambdaCallback is MindSpore's class, but it runs user code.
    return isinstance(callback, LambdaCallback) or any(not _is_known(callback, hook) for hook in hooks)


def _is_known(callback: Callback, hook: str) -> bool:
    module = getattr(getattr(callback, hook, None), "__module__", None) or ""
    return module.partition(".")[0] in ("mindspore", "ckptkit")
