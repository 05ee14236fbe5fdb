"""Classifies what a call does to a training, by the called object and its name.

Guarantees: calls nothing. Any thread.
"""

from __future__ import annotations

import ast
import bisect
import builtins
import contextvars
import ctypes
import datetime
import functools
import heapq
import operator
import os
import random
import re
import secrets
import sys
import time
import types
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, nn
from mindspore.experimental.optim import Optimizer as ExperimentalOptimizer  # also covers mindspore.mint.optim

from ckptkit.mindspore.inspect.attributes import OneOf, Symbol, in_class, own_attributes, owner_of
from ckptkit.mindspore.inspect.carried_attributes import GENERATORS
from ckptkit.mindspore.inspect.loops.scope import Bound, Made, Trains
from ckptkit.mindspore.inspect.operators import (
    DROPOUTS,
    drops_nothing,
    functional,
    is_random_primitive,
)
from ckptkit.mindspore.inspect.users import is_of_users, is_users

_CHANGES = re.compile(
    r"(append|extend|insert|pop|add|discard|remove|clear|update|rotate|reverse|sort|put|fill|resize|subtract)"
    r"(left|item|_nowait)?|(difference|intersection|symmetric_difference)_update|move_to_end"
)
_ADJUSTS = ("adjust", "update_loss_scale")  # methods of loss scalers
_IN_PLACE = re.compile(r"[a-z]\w*[a-z0-9]_")  # methods of tensors, such as mul_
# Calls that write parameters, seed generators or write a file of weights.
_EFFECTS = re.compile(
    r"set_data|assign|copy_|set_lr|(set_|manual_)?seed$|set_?(rng_)?state$"
    r"|save_checkpoint|load_param_into_net|request_stop$|export$"
)
# These give a generator a state. Where that is the one that it had before, they need not be repeated.
PUTS_BACK = ("set_state", "setstate", "set_rng_state")
_WRITES_FILES = re.compile(r"save_checkpoint|request_stop$|export$")  # of these, what changes nothing that is stored
_MAKES = ("value_and_grad", "grad", "jit", "vmap")
NO_DATA = ("shape", "dtype", "ndim", "size", "name")  # attributes that are the same for every batch
RESETS = ("clear", "fill")  # methods after which nothing is left of what was there
SEEDS = ("seed", "setstate")  # methods of a generator after which its first seed no longer matters
_OF_GENERATORS = frozenset(name for kind in GENERATORS for name in dir(kind) if not name.startswith("_"))
# Functions that change their first argument. Generators and the modules of generators have `shuffle`, too.
_FILLS = OneOf(
    *(operator.setitem, operator.delitem, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis),
    *(operator.iadd, operator.iconcat, operator.isub, operator.imul, operator.itruediv, operator.ior, operator.iand),
    *(bisect.insort_left, bisect.insort_right, ctypes.memset, ctypes.memmove),
    *(heapq.heapify, heapq.heappop, heapq.heappush, heapq.heappushpop, heapq.heapreplace),
)
_ENDS = OneOf(sys.exit, os._exit, getattr(builtins, "exit", None), getattr(builtins, "quit", None))
# The methods that functions and operators call.
CALLED_BY: Mapping[Any, str] = {
    **{len: "__len__", float: "__float__", int: "__int__", bool: "__bool__", abs: "__abs__", next: "__next__"},
    **{ast.Lt: "__lt__", ast.LtE: "__le__", ast.Gt: "__gt__", ast.GtE: "__ge__", ast.Eq: "__eq__", ast.NotEq: "__eq__"},
    **{ast.In: "__contains__", ast.NotIn: "__contains__", ast.USub: "__neg__", ast.Invert: "__invert__"},
    **{ast.Add: "__add__", ast.Sub: "__sub__", ast.Mult: "__mul__", ast.Div: "__truediv__"},
    **{ast.FloorDiv: "__floordiv__", ast.Mod: "__mod__", ast.Pow: "__pow__", ast.MatMult: "__matmul__"},
}
_OF_THE_SYSTEM = OneOf(
    os.urandom, uuid.uuid4, secrets.token_bytes, secrets.token_hex, secrets.randbelow, secrets.randbits
)
_LOADS = re.compile(r"load|restore|resume|read|open")
REWORKS = re.compile(r"register_\w*hook|to_float|add_flags(_recursive)?|insert_child_to_cell|set_grad")  # of cells
_ASKS = ("get_parameters", "trainable_params", "untrainable_params", "parameters_dict", "parameters_and_names")
_ASKS_CELLS = ("cells", "cells_and_names", "name_cells", "apply")
_CLOCKS = OneOf(time, datetime.datetime, datetime.date)
_OPTIMIZERS = (nn.Optimizer, ExperimentalOptimizer)


def trains(called: Any, name: str) -> bool:
    """Return whether the call has an effect that a resumed run must repeat at the same moment, such as an update."""
    if isinstance(called, Trains):
        return True
    if isinstance(called, nn.Cell):
        cells = own_attributes(called).get("_cells") or {}
        return any(isinstance(one, _OPTIMIZERS) for one in (called, *cells.values()))
    return _EFFECTS.match(name) is not None


def writes_state(called: Any, name: str) -> bool:
    """Return whether the call changes parameters or generators, which checkpoints hold."""
    return trains(called, name) and _WRITES_FILES.match(name) is None


def gives_contents(name: str) -> bool:
    """Return whether a method of that name gives what is in its object, and no copy of it."""
    return name in (*_ASKS, *_ASKS_CELLS, "values", "items")


def may_change(called: Any, name: str) -> bool:
    """Return whether the call changes an object of which nothing is known, such as a parameter or a generator."""
    advances = name in (*_OF_GENERATORS, *_ADJUSTS) or called is next or called is anext
    return advances or writes_state(called, name) or _IN_PLACE.fullmatch(name) is not None


def makes_new(called: Any, name: str) -> bool:
    """Return whether the call makes a cell, or a function that computes gradients or runs a graph."""
    if isinstance(called, type):
        return issubclass(called, nn.Cell)
    if isinstance(called, functools.partial):
        return makes_new(called.func, getattr(called.func, "__name__", ""))
    return name in _MAKES and str(getattr(called, "__module__", "")).partition(".")[0] == "mindspore"


def makes_graph(decorator: Any) -> bool:
    """Return whether a function that is decorated so does what its body says, such as by `mindspore.jit`."""
    name = getattr(decorator, "__name__", "")
    return name in ("jit", "vmap") and makes_new(decorator, name)


def makes_optimizer(called: Any, given: Iterable[Any]) -> bool:
    """Return whether the call makes an optimizer, or a cell that is given one that code makes."""
    return isinstance(called, type) and (
        issubclass(called, _OPTIMIZERS) or any(isinstance(one, (Trains, *_OPTIMIZERS)) for one in given)
    )


def computes(called: Any, owner: Any, name: str) -> bool:
    """Return whether the arguments decide what the call computes: a network, a gradient, a graph."""
    while isinstance(called, (Bound, functools.partial)):
        called = called.function if isinstance(called, Bound) else called.func
    if isinstance(called, (nn.Cell, Made)):
        return True
    if isinstance(owner, nn.Cell):
        return name not in _ASKS
    # A function that MindSpore made from a user's function.
    made = type(called) is types.FunctionType and "<locals>" in called.__qualname__
    return made and not is_users(called.__module__)


def is_compiled(called: Any) -> bool:
    """Return whether it is a function that MindSpore compiles, as by `mindspore.jit`, or its gradient in GRAPH mode."""
    function = called.__func__ if type(called) is types.MethodType else called
    if type(function) is not types.FunctionType or "__wrapped__" not in vars(function):
        return False
    # MindSpore decorates methods of its own, too, such as `nn.Cell.get_parameters`; what it makes is local.
    is_made = is_users(function.__module__) or "<locals>" in function.__qualname__
    return is_made and str(function.__globals__.get("__name__")).partition(".")[0] == "mindspore"


def asked_parameters(owner: Any, name: str) -> Any:
    """Return what such a call of MindSpore's code gives, with one parameter that stands for all; None for others."""
    if not isinstance(owner, nn.Cell) or name not in _ASKS or is_users(in_class(type(owner), name).__module__):
        return None
    first = next(iter(nn.Cell.get_parameters(owner)), None)
    if first is None:
        return []
    if name == "parameters_dict":
        return {first.name: first}
    return [(first.name, first)] if name == "parameters_and_names" else [first]


def asked_cells(owner: Any, name: str) -> Any:
    """Return what such a call of MindSpore's code gives, with one cell of each class; None for others."""
    if not isinstance(owner, nn.Cell) or name not in _ASKS_CELLS or is_users(in_class(type(owner), name).__module__):
        return None
    is_deep = name in ("cells_and_names", "apply")
    inner = nn.Cell.cells_and_names(owner) if is_deep else (own_attributes(owner).get("_cells") or {}).items()
    by_class = {type(one): (place, one) for place, one in inner if one is not None}
    found = sorted(by_class.values(), key=lambda each: not is_of_users(each[1]))
    if name == "name_cells":
        return dict(found)
    return found if name == "cells_and_names" else [one for _, one in found]


def changes(name: str, owner: Any) -> bool:
    """Return whether a method of that name changes its object."""
    if isinstance(owner, contextvars.ContextVar):
        return name in ("set", "reset")
    if hasattr(type(owner), "put") and name in ("get", "get_nowait"):  # a queue, of which there are several kinds
        return True
    is_tensor = isinstance(owner, Tensor) and _IN_PLACE.fullmatch(name) is not None
    return is_tensor or _CHANGES.fullmatch(name) is not None


def outputs(called: Any, node: ast.Call) -> Sequence[ast.expr]:
    """Return the arguments that a call writes: those named ``out``, and positional ones."""
    named = [one.value for one in node.keywords if one.arg == "out"]
    if isinstance(called, np.ufunc):
        return [*node.args[called.nin :], *named]
    return [*(node.args[:1] if called is np.copyto else ()), *named]


def only_written(called: Any, node: ast.Call) -> Sequence[ast.expr]:
    """Return the `outputs` that a call writes whole, so that it does not read them; with a mask ``where``, none."""
    return () if any(one.arg == "where" for one in node.keywords) else outputs(called, node)


def fills(called: Any, owner: Any, name: str) -> bool:
    """Return whether the call changes its first argument."""
    if name == "at" and isinstance(owner, np.ufunc):
        return True
    return name in ("shuffle", "SubElement", "pack_into", "readinto", "recv_into") or called in _FILLS


def draws_out_of_reach(called: Any, *, empty: bool) -> str:
    """Return the name of a called operator or cell whose draws no checkpoint can restore; empty for anything else.

    Args:
        called: What is called, outside of a graph.
        empty: Whether it gets no argument, so that a generator seeds itself.
    """
    if isinstance(called, DROPOUTS):
        return "" if drops_nothing(called) else f"nn.{type(called).__name__}"
    if is_random_primitive(called):
        return f"ops.{called.__name__ if isinstance(called, type) else type(called).__name__}"
    if empty and any(called is one for one in (np.random.default_rng, *GENERATORS)):
        return "without a seed"
    if isinstance(owner_of(called), random.SystemRandom) or called in _OF_THE_SYSTEM:
        return "of the operating system"
    function = called.__func__ if type(called) is types.MethodType else called  # a method of a tensor
    _, name, exact = functional().get(id(function), (None, "", "pynative"))
    return name if exact != "pynative" else ""


def makes_generator(called: Any) -> bool:
    """Return whether the call makes a generator of random numbers."""
    return any(called is one for one in (np.random.default_rng, np.random.RandomState, random.Random))


def is_draw(called: Any) -> bool:
    """Return whether the call draws random numbers."""
    function = called.__func__ if type(called) is types.MethodType else called
    return isinstance(owner_of(called), GENERATORS) or id(function) in functional()


def ends(called: Any) -> bool:
    """Return whether the call ends the process."""
    return called is not None and called in _ENDS


def loads(name: str) -> bool:
    """Return whether the call returns something that is stored somewhere."""
    return _LOADS.search(name) is not None


def asks_a_clock(called: Any, owner: Any) -> bool:
    """Return whether the call returns the time."""
    is_builtin = type(called) is types.BuiltinFunctionType and called.__module__ == "time"
    return is_builtin or owner in _CLOCKS


def is_ours(one: Any) -> bool:
    """Return whether the object's class belongs to ckptkit."""
    return str(type(one).__module__).partition(".")[0] == "ckptkit" and not isinstance(one, Symbol)
