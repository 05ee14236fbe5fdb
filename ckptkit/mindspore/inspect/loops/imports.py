"""Reads the imports in functions: which variables they assign, and what these stand for.

Guarantees: reads names and existing objects; calls no function of the user's. Any thread.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import types

from ckptkit.mindspore.inspect.attributes import UNKNOWN
from ckptkit.mindspore.inspect.attributes import attribute as attribute_of
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.objects import Objects, place_in
from ckptkit.mindspore.inspect.loops.scope import Scope, Value


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
