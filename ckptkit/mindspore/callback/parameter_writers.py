"""Tells which callbacks may write to the parameters while a checkpoint still reads them.

A callback of the user's only looks if the code that runs then, and the functions that it names, name nothing that leads
to a parameter. A wrong verdict is found by ``ckptkit doctor --own-saves``.

Guarantees: runs nothing of the user's. MindSpore's own callbacks change only what a save copies anyway. Main thread
only.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.train import Callback, Model

from ckptkit.mindspore.observe.attributes import own_attributes
from ckptkit.mindspore.observe.named_objects import GENERATORS, attribute, named_objects, owner_of
from ckptkit.mindspore.observe.users import is_of_users, is_users

# What leads to a parameter: of the arguments of a hook, `test_arguments_of_hooks_are_known` finds others. Of the
# optimizer, the learning rate and the step may be used: a save copies anything that small at once.
LEADS = {"network", "train_network", "eval_network", "loss_fn", "list_callback", "dataset_helper", "train_dataset"}
LEADS |= {"valid_dataset", "parameters", "trainable_params", "untrainable_params", "get_parameters", "parameters_dict"}
LEADS |= {"parameters_and_names", "cells", "cells_and_names", "_original_args", "load_param_into_net", "__dict__"}
_MOST_LEVELS = 4  # of containers and objects in each other

# Hooks that run while a window may be open.
_STEP_HOOKS: tuple[str, ...] = ("step_begin", "step_end", "epoch_begin")
_STEP_HOOKS += ("on_train_step_begin", "on_train_step_end", "on_train_epoch_begin")
# Hooks after a fence, unless callbacks follow the one that fences: those run after the save at the end of an epoch, or
# stop an epoch whose last step that one has already seen.
_END_HOOKS: tuple[str, ...] = ("epoch_end", "end", "on_train_epoch_end", "on_train_end", "on_eval_begin", "on_eval_end")
_END_HOOKS += ("on_eval_epoch_begin", "on_eval_epoch_end", "on_eval_step_begin", "on_eval_step_end")
_HOOKS = ("begin", "on_train_begin", *_STEP_HOOKS, *_END_HOOKS)


def may_write_in_window(
    callbacks: Sequence[Callback], read_only: Sequence[Callback | type[Callback]], *, followed: bool
) -> list[str]:
    """Return the class names of the ``callbacks`` that may write to parameters while a window may be open.

    Args:
        callbacks: Callbacks of the training.
        read_only: Callbacks, or classes of them, that are declared to change no parameter.
        followed: Whether some of ``callbacks`` come after the one that saves and fences.
    """
    hooks = _STEP_HOOKS + _END_HOOKS if followed else _STEP_HOOKS
    undeclared = [callback for callback in callbacks if not _is_declared(callback, read_only)]
    return sorted({type(callback).__name__ for callback in undeclared if not only_looks(callback, hooks)})


def _is_declared(callback: Callback, read_only: Sequence[Callback | type[Callback]]) -> bool:
    classes = tuple(declared for declared in read_only if isinstance(declared, type))
    return isinstance(callback, classes) or any(callback is declared for declared in read_only)


def only_looks(callback: Callback, hooks: Iterable[str]) -> bool:
    """Return whether no hook of these names of ``callback`` names what leads to a parameter."""
    return all(LEADS.isdisjoint(names) and not _holds(value) for value, names in _named_by(callback, hooks))


def is_idle(callback: Callback) -> bool:
    """Return whether ``callback`` has no effect on training: it only looks, draws nothing and never ends it."""
    is_own = all(is_users(kind.__module__) for kind in type(callback).__mro__ if kind not in (Callback, object))
    named = [*_named_by(callback, _HOOKS)]
    draws = any(issubclass(type(owner_of(value)), GENERATORS) for value, _ in named)
    acts = any(not {"optimizer", "request_stop"}.isdisjoint(names) for _, names in named)
    return is_own and only_looks(callback, _HOOKS) and not draws and not acts


def _named_by(callback: Callback, hooks: Iterable[str]) -> Iterator[tuple[Any, set[str]]]:
    """Yield the objects that hooks of the user's name, and the names and texts in code."""
    for hook in hooks:
        method = attribute(callback, hook)
        code = getattr(method, "__func__", method)
        if str(getattr(code, "__module__", "")).partition(".")[0] in ("mindspore", "ckptkit"):
            continue
        yield None, _texts_in(code)
        for named in named_objects(method):
            if named.value is not callback:
                yield named.value, {named.name.rpartition(".")[2], *_texts_in(named.value)}


def _texts_in(function: Any) -> set[str]:
    code = getattr(getattr(function, "__func__", function), "__code__", None) if callable(function) else None
    return {text for text in getattr(code, "co_consts", ()) if isinstance(text, str)}


def _holds(value: Any, levels: int = _MOST_LEVELS) -> bool:
    """Return whether a value is or shows a parameter, a cell or a model, or holds such in containers or objects."""
    shows_memory = issubclass(type(value), np.ndarray) and not value.flags.owndata
    if shows_memory or isinstance(value, (ms.Parameter, nn.Cell, Model)):
        return True
    parts: Iterable[Any] = ()
    if issubclass(type(value), (list, tuple, dict)):
        parts = dict.values(value) if issubclass(type(value), dict) else value
    elif type(value) is types.MethodType:
        parts = (value.__self__,)
    elif type(value) is types.FunctionType:
        parts = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    elif is_of_users(value) and not isinstance(value, (type, types.ModuleType, types.FunctionType, Callback)):
        parts = own_attributes(value).values()
    return levels > 0 and any(_holds(part, levels - 1) for part in [*parts])
