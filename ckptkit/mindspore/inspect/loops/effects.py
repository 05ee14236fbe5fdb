"""Classifies what a call does to a training, by the called object and its name.

Guarantees: calls nothing. Any thread.
"""

from __future__ import annotations

import contextvars
import datetime
import re
import time
import types
from typing import Any

from mindspore import nn
from mindspore.experimental.optim import Optimizer as ExperimentalOptimizer  # also covers mindspore.mint.optim

from ckptkit.mindspore.inspect.attributes import is_users, own_attributes

_CHANGES = re.compile(
    r"(append|extend|insert|pop|add|discard|remove|clear|update|setdefault|rotate|reverse|sort|put)(left|item)?"
)
# Calls that write parameters, seed generators or write a file of weights.
_EFFECTS = re.compile(r"set_data|assign|copy_|set_lr|(set_|manual_)?seed$|save_checkpoint|export$")
_LOADS = re.compile(r"load|restore|resume|read|open")
_ASKS = ("get_parameters", "trainable_params", "untrainable_params", "parameters_dict", "parameters_and_names")
_CLOCKS = (time, datetime.datetime, datetime.date)
_OPTIMIZERS = (nn.Optimizer, ExperimentalOptimizer)


def trains(called: Any, name: str) -> bool:
    """Return whether the call has an effect that a resumed run must repeat at the same moment, such as an update."""
    if isinstance(called, nn.Cell):
        cells = own_attributes(called).get("_cells") or {}
        return any(isinstance(one, _OPTIMIZERS) for one in (called, *cells.values()))
    return _EFFECTS.match(name) is not None


def computes(called: Any, owner: Any, name: str) -> bool:
    """Return whether the arguments decide what the call computes: a network, a gradient, a graph."""
    if isinstance(called, nn.Cell):
        return True
    if isinstance(owner, nn.Cell):
        return name not in _ASKS
    # A function that MindSpore made from a user's function.
    made = type(called) is types.FunctionType and "<locals>" in called.__qualname__
    return made and not is_users(called.__module__)


def changes(name: str, owner: Any) -> bool:
    """Return whether a method of that name changes its object."""
    if isinstance(owner, contextvars.ContextVar):
        return name in ("set", "reset")
    return _CHANGES.fullmatch(name) is not None


def loads(name: str) -> bool:
    """Return whether the call returns something that is stored somewhere."""
    return _LOADS.search(name) is not None


def asks_a_clock(called: Any, owner: Any) -> bool:
    """Return whether the call returns the time."""
    is_builtin = type(called) is types.BuiltinFunctionType and called.__module__ == "time"
    return is_builtin or any(owner is clock for clock in _CLOCKS)


def is_ours(one: Any) -> bool:
    """Return whether the object's class belongs to ckptkit."""
    return str(type(one).__module__).partition(".")[0] == "ckptkit"
