"""Tells which callbacks may write to the parameters while a checkpoint still reads them.

A callback of the user's only looks if its hooks, and the functions that they name, name nothing that leads to a
parameter. A wrong verdict is found by ``ckptkit doctor --own-saves``. MindSpore's own callbacks change only what a save
copies anyway. Guarantees: runs nothing of the user's. Main thread only.
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
from ckptkit.mindspore.observe.user_code import is_of_users, is_users

# What leads to a parameter: of the arguments of a hook, `test_arguments_of_hooks_are_known` finds others. Of the
# optimizer, the learning rate and the step may be used: a save copies anything that small at once.
LEADS = {"network", "train_network", "eval_network", "loss_fn", "list_callback", "dataset_helper", "train_dataset"}
LEADS |= {"valid_dataset", "parameters", "trainable_params", "untrainable_params", "get_parameters", "parameters_dict"}
LEADS |= {"parameters_and_names", "cells", "cells_and_names", "_original_args", "load_param_into_net", "__dict__"}
_MOST_LEVELS = 4  # of containers and objects in each other

_HOOKS = {name for name in vars(Callback) if not name.startswith("_")}
# Those that run while a window may be open.
_STEP_HOOKS = {hook for hook in _HOOKS if "eval" not in hook and ("step" in hook or hook.endswith("epoch_begin"))}


def may_write_in_window(callbacks: Sequence[Callback], read_only: Sequence[Callback | type[Callback]]) -> list[str]:
    """Return the class names of the ``callbacks`` that may write to parameters while a window may be open.

    Those in ``read_only``, or of classes in it, do not.
    """
    classes = tuple(declared for declared in read_only if isinstance(declared, type))
    objects = {id(declared) for declared in read_only}
    others = [callback for callback in callbacks if not isinstance(callback, classes) and id(callback) not in objects]
    return sorted({type(callback).__name__ for callback in others if not only_looks(callback, _STEP_HOOKS)})


def only_looks(callback: Callback, hooks: Iterable[str]) -> bool:
    """Return whether no hook of these names of ``callback`` names what leads to a parameter."""
    return not any(name in LEADS or _holds(value) for value, name in _named_by(callback, hooks))


def acting_among(callbacks: Sequence[Callback]) -> list[Callback]:
    return [callback for callback in callbacks if not _is_idle(callback)]


def _is_idle(callback: Callback) -> bool:
    """Return whether ``callback`` has no effect on training: it only looks, draws nothing and never ends it."""
    is_own = all(is_users(kind.__module__) for kind in type(callback).__mro__ if kind not in (Callback, object))
    named = [*_named_by(callback, _HOOKS)]
    draws = any(issubclass(type(owner_of(value)), GENERATORS) for value, _ in named)
    acts = any(name in ("optimizer", "request_stop") for _, name in named)
    return is_own and not draws and not acts and only_looks(callback, _HOOKS)


def _named_by(callback: Callback, hooks: Iterable[str]) -> Iterator[tuple[Any, str]]:
    """Yield the objects that hooks of the user's name, and the last name of each."""
    for method in (attribute(callback, hook) for hook in hooks):
        module = getattr(getattr(method, "__func__", method), "__module__", "")
        if str(module).partition(".")[0] not in ("mindspore", "ckptkit"):
            yield from ((named.value, named.name.rpartition(".")[2]) for named in named_objects(method))


def _holds(value: Any, levels: int = _MOST_LEVELS) -> bool:
    """Return whether a value is or shows a parameter, a cell or a model, or holds such in containers or objects."""
    shows_memory = issubclass(type(value), np.ndarray) and not value.flags.owndata
    if shows_memory or isinstance(value, (ms.Parameter, nn.Cell, Model)):
        return True
    parts: Iterable[Any] = ()
    if issubclass(type(value), (list, tuple)):
        parts = value
    elif issubclass(type(value), dict):
        parts = dict.values(value)
    elif type(value) is types.MethodType:
        parts = (value.__self__,)
    elif type(value) is types.FunctionType:
        parts = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    elif is_of_users(value) and not isinstance(value, (type, types.ModuleType, Callback)):
        parts = own_attributes(value).values()
    return levels > 0 and any(_holds(part, levels - 1) for part in [*parts])
