"""Tells the functions of installed libraries from the user's, and what an import in a function assigns.

A package below ``site-packages`` or ``dist-packages`` is a library. The user's are packages that are installed as links
to a folder elsewhere, and those whose code is running, such as the package of the script and of its trainer.

Guarantees: reads names, paths and existing objects; calls no function of the user's. Any thread.
"""

from __future__ import annotations

import ast
import dis
import functools
import importlib.util
import os
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import nn

from ckptkit.mindspore.inspect.attributes import UNKNOWN, is_users
from ckptkit.mindspore.inspect.attributes import attribute as attribute_of
from ckptkit.mindspore.inspect.code.bytecode import closure_of
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.objects import Objects, place_in
from ckptkit.mindspore.inspect.loops.scope import Scope, Value

_FOLDERS = ("site-packages", "dist-packages")
# What a library function may train, change or call.
_OF_A_TRAINING = (nn.Cell, ms.Parameter, types.FunctionType, types.MethodType, functools.partial)


class Libraries:
    """Knows the packages whose code is running.

    Args:
        running: The global variables of the running functions.
    """

    def __init__(self, running: Iterable[Mapping[str, Any]]) -> None:
        self._own = {_package(one) for one in running}

    def keep(self, function: types.FunctionType, instance: Any, given: Iterable[Any]) -> bool:
        """Return whether a library's function cannot change what belongs to the user, so that it need not be read.

        It may change it if it is a method of an object that the user made, or gets or holds a cell, a parameter, a
        function or an object of the user's.

        Args:
            function: Of a library or of the user's.
            instance: What it is bound to, or `UNKNOWN`.
            given: Its arguments.
        """
        if not self._has(function.__globals__):
            return False
        if instance is not UNKNOWN and not _is_of_a_module(instance):
            return False
        return not any(self._is_users(one) for one in (*given, *closure_of(function).values()))

    def _has(self, module: Mapping[str, Any]) -> bool:
        return _package(module) not in self._own and is_installed(str(module.get("__file__") or ""))

    def _is_users(self, one: Any) -> bool:
        if one is UNKNOWN or isinstance(one, (type, types.ModuleType)):
            return False
        home = sys.modules.get(type(one).__module__)
        objects = is_users(type(one).__module__) and not (home is not None and self._has(vars(home)))
        return objects or isinstance(one, (*_OF_A_TRAINING, types.SimpleNamespace))


def _package(module: Mapping[str, Any]) -> str:
    return str(module.get("__package__") or module.get("__name__")).partition(".")[0]


def _is_of_a_module(instance: Any) -> bool:
    """Return whether it is a class, or an object that the module of its class made."""
    if isinstance(instance, type):
        return True
    home = sys.modules.get(type(instance).__module__)
    return home is not None and any(one is instance for one in [*vars(home).values()])


def is_library_class(kind: type) -> bool:
    """Return whether a class is one of an installed library."""
    home = sys.modules.get(str(kind.__module__))
    return home is not None and is_installed(str(vars(home).get("__file__") or ""))


@functools.lru_cache(maxsize=1024)
def is_installed(file: str) -> bool:
    """Return whether a file of code, if it is one, belongs to an installed library."""
    if not file:
        return False
    path = Path(os.path.realpath(file))  # the package may be a link to the user's folder
    roots = {os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return any(one in path.parts for one in _FOLDERS) or any(path.is_relative_to(root) for root in roots)


def imports(one: ast.Import | ast.ImportFrom, scope: Scope, flow: Flow, objects: Objects) -> None:
    """Let the variables that an import in a function assigns stand for the modules that are loaded, and what they hold.

    An import in a module assigns its global variables, which are known.
    """
    if scope.code.co_name == "<module>":
        return
    for alias in one.names:
        name = alias.asname or alias.name.partition(".")[0]
        if isinstance(one, ast.Import):
            scope.known[name] = Value(sys.modules.get(alias.name if alias.asname else name, UNKNOWN))
            continue
        home = sys.modules.get(_source_of(one, scope), UNKNOWN)
        value = Value()
        if isinstance(home, types.ModuleType):
            target, place = attribute_of(home, alias.name), place_in(home, alias.name)
            objects.note(f"{home.__name__}.{alias.name}", target, place)
            value = Value(target, flow.read(place, scope), place=place)
        scope.known[name] = value


def _source_of(one: ast.ImportFrom, scope: Scope) -> str:
    """Return the full name of the module that is imported from; of an import that leads nowhere, none."""
    name = "." * one.level + (one.module or "")
    try:
        return importlib.util.resolve_name(name, scope.value("__package__").target) if one.level else name
    except (ImportError, TypeError, ValueError):  # it leads out of the package, or there is none
        return ""


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
