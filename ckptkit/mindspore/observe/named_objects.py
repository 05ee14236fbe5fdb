"""Lists the objects that Python code names, by its bytecode, and what the user's functions among them name in turn.

Guarantees: runs no user code. A name is followed through globals, closures, imports, attributes and plain assignments.
What a call returns, a container holds or an argument is stays unknown. Any thread.
"""

from __future__ import annotations

import builtins
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
from ckptkit.mindspore.observe.users import is_users
from ckptkit.mindspore.parameters.memory import is_compiled

UNKNOWN = object()
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
# What of MindSpore draws in Python is read like the user's code.
_DRAWING = ("mindspore.nn.probability", "mindspore.dataset.vision", "mindspore.dataset.transforms")
_MOST = 2_000  # code objects of one call, more than any network has


class NamedObject(NamedTuple):
    """Describes an object at a place where code names it."""

    value: Any  # `UNKNOWN` for an attribute of something unknown
    name: str  # as written: ``np.random.rand``; of an unknown attribute, its last part
    where: str  # ``augment() in train.py:12``
    compiled: bool  # by MindSpore
    is_called_bare: bool  # right there, without arguments


class _Body(NamedTuple):
    code: types.CodeType
    module: Mapping[str, Any]
    known: dict[str, Any]  # local variables, and those of closures
    compiled: bool


def named_objects(code: Any, *, compiled: bool = False) -> Iterator[NamedObject]:
    """Yield what a function, method, partial, callable object or running frame names, and what it calls names."""
    bodies, read = [*_bodies(code, compiled)], set()
    for body in islice(bodies, _MOST):  # which grows meanwhile
        key = (body.code, body.compiled, *map(id, body.known.values()))
        if key in read:
            continue
        read.add(key)
        for named in _named_in(body):
            yield named
            values = [named.value]
            if named.value is super and "self" in body.known:
                parents = [vars(kind).get(body.code.co_name) for kind in type(body.known["self"]).__mro__[1:]]
                values = [types.MethodType(parent, body.known["self"]) for parent in parents if callable(parent)]
            for part in (part for value in values for part in _bodies(value, body.compiled)):
                module = str(part.module.get("__name__"))  # what exec() made may have none
                if is_users(module) or module.startswith(_DRAWING):
                    bodies.append(part)
        inner = [part for part in body.code.co_consts if isinstance(part, types.CodeType)]
        bodies += [body._replace(code=part, known={**body.known}) for part in inner]


def _named_in(body: _Body) -> Iterator[NamedObject]:
    value, package, name, line, seen = UNKNOWN, UNKNOWN, "", body.code.co_firstlineno, set()
    steps = _instructions_of(body.code)
    for before, step, following in zip([steps[0], *steps], steps, steps[1:], strict=False):
        opcode, argument, line = step.opname, step.argval, step.starts_line or line
        is_attribute = opcode in ("LOAD_ATTR", "LOAD_METHOD")
        if is_attribute:
            name = argument if value is UNKNOWN else f"{name}.{argument}"
            value = attribute(value, argument)
        elif opcode in ("LOAD_GLOBAL", "LOAD_NAME"):
            default = body.module.get(argument, vars(builtins).get(argument, UNKNOWN))
            value, name = body.known.get(argument, default), argument
        elif opcode.startswith(("LOAD_FAST", "LOAD_DEREF")):
            value, name = body.known.get(argument, UNKNOWN), argument
        elif opcode == "IMPORT_NAME":  # without a list of names, which comes before it, it gives the outermost package
            dotted = argument if before.argval else argument.partition(".")[0]
            value = package = sys.modules.get(dotted, UNKNOWN)
        elif opcode == "IMPORT_FROM":
            value, name = attribute(package, argument), argument
        else:
            if opcode.startswith("STORE_"):
                body.known[argument] = value
            value = UNKNOWN
        is_called_bare = following.opname.startswith("CALL") and following.arg == 0
        key = (name if value is UNKNOWN else id(value), is_called_bare)
        if (value is not UNKNOWN or is_attribute) and key not in seen:
            seen.add(key)
            place = f"{body.code.co_name}() in {os.path.basename(body.code.co_filename)}:{line}"
            yield NamedObject(value, name, place, body.compiled, is_called_bare)


@functools.lru_cache(maxsize=2048)
def _instructions_of(code: types.CodeType) -> list[dis.Instruction]:
    return [step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "PRECALL")]


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


def _bodies(target: Any, compiled: bool, owner: tuple[Any, ...] = ()) -> Iterator[_Body]:
    kind = type(target)
    if kind is types.FrameType:
        yield _Body(target.f_code, target.f_globals, variables_of(target), compiled)
    elif kind is functools.partial:
        for part in (target.func, *target.args, *target.keywords.values()):
            yield from _bodies(part, compiled)
    elif kind is types.MethodType:
        yield from _bodies(target.__func__, compiled, (target.__self__,))
    elif is_compiled(target):
        yield from _bodies(target.__wrapped__, True, owner)
    elif kind is types.FunctionType:
        known = dict(zip(target.__code__.co_varnames, owner, strict=False))
        with contextlib.suppress(ValueError):  # a variable that is not set yet
            known |= inspect.getclosurevars(target).nonlocals
        yield _Body(target.__code__, target.__globals__, known, compiled)
    elif type(method := attribute(target, "__call__")) is types.MethodType and not issubclass(kind, type):
        yield from _bodies(method, compiled)
