"""Tells which variables a code object, and the functions in it, may look up, and which modules it imports.

Guarantees: reads code and names only. Any thread.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from typing import Any

from ckptkit.mindspore.inspect.users import is_users


def names_in(code: types.CodeType) -> set[str]:
    """Return every name that ``code`` and the functions in it may look up outside of themselves, also attributes."""
    inner = (names_in(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return {*code.co_names, *code.co_freevars}.union(*inner)


@functools.lru_cache(maxsize=4096)
def variables_in(code: types.CodeType) -> frozenset[str]:
    """Return the variables that ``code`` and the functions in it may look up outside of themselves."""
    inner = (variables_in(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return globals_in(code).union(code.co_freevars, *inner)


@functools.lru_cache(maxsize=4096)
def globals_in(code: types.CodeType) -> frozenset[str]:
    """Return the variables that ``code`` and the functions in it look up in their module."""
    own = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = (globals_in(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return frozenset(own.union(*inner))


def is_constant(function: Any) -> bool:
    """Return whether a function of the user's names nothing outside of itself but modules of libraries."""
    if type(function) is not types.FunctionType or function.__code__.co_freevars:
        return False
    named = [function.__globals__.get(name) for name in globals_in(function.__code__)]
    return all(isinstance(one, types.ModuleType) and not is_users(one.__name__) for one in named)


def imported_in(function: types.FunctionType) -> dict[str, types.ModuleType]:
    """Return the user's loaded modules that ``function`` and the functions in it import, by what it calls them."""
    package = function.__globals__.get("__package__") or ""
    found = {}
    for level, given, names in _imports_in(function.__code__):
        dotted = f"{package.rsplit('.', level - 1)[0]}.{given}".removesuffix(".") if level else given
        for name in (dotted, *(f"{dotted}.{one}" for one in names)):
            if is_users(name) and issubclass(type(sys.modules.get(name)), types.ModuleType):
                found[name] = sys.modules[name]
    return found


@functools.lru_cache(maxsize=4096)
def _imports_in(code: types.CodeType) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    found: list[tuple[int, str, tuple[str, ...]]] = []
    given: list[Any] = []  # the constants before an import: its level, and the names that it takes
    for one in dis.get_instructions(code):
        if one.opname == "IMPORT_NAME":
            found.append((given[-2], one.argval, given[-1] or ()))
        elif one.opname == "LOAD_CONST":
            given.append(one.argval)
    if not {"import_module", "__import__"}.isdisjoint(code.co_names):
        found += [(0, one, ()) for one in given if type(one) is str]
    inner = (_imports_in(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return (*found, *(each for some in inner for each in some))
