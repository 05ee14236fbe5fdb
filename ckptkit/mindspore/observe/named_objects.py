"""Lists the objects that Python code names, by its bytecode, and what the user's functions among them name in turn.

A name such as ``a.b.c`` is looked up in globals, closures, the variables of a running frame, and what other functions
import or plainly assign. Arguments but ``self``, and results of calls are unknown. Runs no user code. Any thread.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import os.path
import random
import sys
import types
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from mindspore import nn

from ckptkit.mindspore.nn.sequential import registered_in
from ckptkit.mindspore.observe.attributes import own_attributes, unwrapped
from ckptkit.mindspore.observe.frame_variables import variables_of
from ckptkit.mindspore.observe.user_code import is_users
from ckptkit.mindspore.parameters.memory import is_compiled

UNKNOWN = object()
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_DRAWING = ("mindspore.dataset.vision", "mindspore.dataset.transforms")  # in Python, and is read like the user's code
_MOST = 100_000  # names that are followed, more than any training has


class NamedObject(NamedTuple):
    """Describes an object at a place where code names it."""

    value: Any  # of a text, itself; `UNKNOWN` for an attribute of something unknown
    name: str  # as written: ``np.random.rand``; of an unknown attribute, its last part
    where: str  # ``augment() in train.py:12``
    compiled: bool  # by MindSpore


class _Scope(NamedTuple):
    code: types.CodeType
    local: Mapping[str, Any]  # ``self``, and the variables of closures and frames
    module: Mapping[str, Any]
    compiled: bool


def named_objects(code: Any, *, compiled: bool = False) -> Iterator[NamedObject]:
    """Yield what a function, method, partial, callable object or running frame names, and what it calls names."""
    waiting, read = [(code, compiled)], set[Any]()
    for target in islice(waiting, _MOST):  # which grows meanwhile
        scope = _scope_of(*target)
        if scope is None or (read and not _is_read(scope)):
            continue
        key = (scope.code, scope.compiled, *map(id, scope.local.values()))
        if key in read:
            continue
        read.add(key)
        owner = scope.local.get("self", UNKNOWN)
        if "super" in scope.code.co_names:
            bases = (vars(kind).get(scope.code.co_name) for kind in type(owner).__mro__)
            waiting += [(types.MethodType(base, owner), scope.compiled) for base in bases if callable(base)]
        for named in _named_in(scope):
            yield named
            waiting.append((named.value, scope.compiled))


def _is_read(scope: _Scope) -> bool:
    module = str(scope.module.get("__name__"))  # what exec() made may have none
    return is_users(module) or module.startswith(_DRAWING)


def _scope_of(target: Any, compiled: bool) -> _Scope | None:
    """Return the code of a running frame, or that which a call of an object runs, if it is Python's."""
    if type(target) is types.FrameType:
        return _Scope(target.f_code, variables_of(target), target.f_globals, compiled)
    target = target.func if type(target) is functools.partial else target
    if not issubclass(type(target), (types.FunctionType, types.MethodType, type)):
        target = attribute(target, "__call__")
    owner = (target.__self__,) if type(target) is types.MethodType else ()
    function = target.__func__ if owner else target
    if is_compiled(function):
        function, compiled = function.__wrapped__, True
    if type(function) is not types.FunctionType:
        return None
    local = dict(zip(function.__code__.co_varnames, owner, strict=False))
    with contextlib.suppress(ValueError):  # a variable that is not set yet
        local |= inspect.getclosurevars(function).nonlocals
    return _Scope(function.__code__, local, function.__globals__, compiled)


def _named_in(scope: _Scope) -> Iterator[NamedObject]:
    local = {**scope.local}
    spaces: dict[str, Mapping[str, Any]] = {"LOAD_GLOBAL": scope.module, "LOAD_NAME": scope.module}
    spaces |= {"LOAD_FAST": local, "LOAD_FAST_CHECK": local, "LOAD_DEREF": local, "IMPORT_NAME": sys.modules}
    value, name, line = UNKNOWN, "", scope.code.co_firstlineno
    package: tuple[str, Any] = "", UNKNOWN
    for step in _instructions_of(scope.code):
        line = step.starts_line or line
        is_attribute = step.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
        if step.opname == "IMPORT_FROM":  # several may follow one package
            name, value = package
        if is_attribute:
            name = step.argval if value is UNKNOWN else f"{name}.{step.argval}"
            value = attribute(value, step.argval)
        elif step.opname in ("STORE_FAST", "STORE_DEREF"):
            if step.argval not in scope.local:  # a running frame knows better
                local[step.argval] = value
            value = UNKNOWN
        elif type(step.argval) is str:
            is_text = step.opname in ("LOAD_CONST", "RETURN_CONST")
            name, value = step.argval, step.argval if is_text else spaces.get(step.opname, {}).get(step.argval, UNKNOWN)
            package = (name, value) if step.opname == "IMPORT_NAME" else package
        else:
            value = UNKNOWN
        if value is not UNKNOWN or is_attribute:
            where = f"{scope.code.co_name}() in {os.path.basename(scope.code.co_filename)}:{line}"
            yield NamedObject(value, name, where, scope.compiled)
        if type(step.argval) is types.CodeType:
            yield from _named_in(scope._replace(code=step.argval, local=local))


@functools.lru_cache(maxsize=2048)
def _instructions_of(code: types.CodeType) -> list[dis.Instruction]:
    return [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]


def attribute(owner: Any, name: str) -> Any:
    """Return ``owner.name`` as far as no user code decides it, a property as its method; `UNKNOWN` otherwise."""
    if type(owner) in GENERATORS:
        return getattr(owner, name, UNKNOWN)
    if issubclass(type(owner), nn.Cell) and name in registered_in(owner):
        return registered_in(owner)[name]
    member = inspect.getattr_static(owner, name, UNKNOWN)
    function = unwrapped(member)
    is_bound = type(function) is types.FunctionType and type(member) is not staticmethod
    return types.MethodType(function, owner) if is_bound and name not in own_attributes(owner) else function


def owner_of(function: Any) -> Any:
    """Return the object that a bound method belongs to; None for anything else."""
    is_library = type(function).__module__ == "builtins" or type(function).__name__ == "cython_function_or_method"
    return getattr(function, "__self__", None) if is_library and callable(function) else None
