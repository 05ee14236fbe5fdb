"""Tells which attributes of an object its methods assign, and which its ``state_dict`` stores, by reading their code.

Guarantees: as `source`. Any thread.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ckptkit.mindspore.inspect.attributes import in_class, members_of, own_attributes
from ckptkit.mindspore.inspect.code.bytecode import functions_of
from ckptkit.mindspore.inspect.loops.source import BY_NAME, body_of
from ckptkit.mindspore.inspect.users import is_users

_ASKING = ("hasattr", "getattr", "isinstance", "type")  # functions that do not change their first argument


def assigned_in_methods(kind: type) -> Mapping[str, Collection[str]] | None:
    """Return the attributes that methods of the user's assign to their object, each with the names of the methods.

    ``__init__`` is left out. Returns None if that cannot be told: a method has no source, or gives its object to other
    code.
    """
    found: dict[str, set[str]] = {}
    for name, method in members_of(kind):
        for function, _ in functions_of(method) if name != "__init__" and not isinstance(method, type) else ():
            body = body_of(function.__code__, function.__globals__)
            names = _assigned_to(function.__code__.co_varnames[:1], body)
            if not body or names is None:
                return None
            for each in names:
                found.setdefault(each, set()).add(name)
    return found


def stored_by(owner: Any) -> frozenset[str] | None:
    """Return the attributes that ``state_dict`` reads and ``load_state_dict`` assigns; None if that cannot be told."""
    kind, found = type(owner), set[str]()
    for name in ("state_dict", "load_state_dict"):
        method = in_class(kind, name)
        if not isinstance(method, types.FunctionType) or not is_users(method.__module__):
            return None
        body = body_of(method.__code__, method.__globals__)
        names = _used_of(method.__code__.co_varnames[:1], body)
        if not body or names is None:
            return None
        of_class = {each for each in names if hasattr(kind, each)}
        lists = {each: in_class(kind, each) for each in of_class}
        if any(each.startswith("__") for each in names) or not all(map(_is_list, lists.values())):
            return None
        if not of_class.isdisjoint(own_attributes(owner)) or not _goes_by(of_class, body, may_load=bool(found)):
            return None
        found |= (names - of_class).union(*lists.values())
    return frozenset(found)


def _is_list(one: Any) -> bool:
    """Return whether it is a list of names of attributes, such as ``fields = ("step", "factor")`` in a class."""
    return type(one) in (tuple, list) and all(type(each) is str for each in one)


def _goes_by(lists: Collection[str], body: Sequence[ast.stmt], *, may_load: bool) -> bool:
    """Return whether code takes attributes by computed names only from ``lists``, each as it is.

    ``may_load`` says that it may also set what it was given.
    """
    whole = [one for each in body for one in ast.walk(each)]
    loops = [(one.target, one.iter) for one in whole if isinstance(one, (ast.For, ast.comprehension))]
    over = {
        target.id
        for target, iterated in loops
        if isinstance(target, ast.Name) and isinstance(iterated, ast.Attribute) and iterated.attr in lists
    }
    asked = [one.args[1:2] for one in whole if _asks(one)]  # type: ignore[attr-defined]
    by_list = all(len(one) == 1 and isinstance(one[0], ast.Name) and one[0].id in over for one in asked)
    calls_parent = any(isinstance(one, ast.Name) and one.id == "super" for one in whole)
    return not calls_parent and (by_list or (may_load and not lists))


def _asks(one: ast.AST) -> bool:
    """Return whether it takes or sets an attribute whose name is computed."""
    return isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id in BY_NAME


def _used_of(names: Collection[str], body: Sequence[ast.stmt]) -> set[str] | None:
    """Return the attributes of variables that code names; None if it gives one of the variables to other code."""
    whole = ast.Module([*body], [])
    used = [one for one in ast.walk(whole) if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name)]
    owners = {one.value for one in used if one.value.id in names}  # type: ignore[attr-defined]
    asked = {each for one in ast.walk(whole) if _asks(one) for each in one.args[:1]}  # type: ignore[attr-defined]
    escapes = any(
        isinstance(one, ast.Name) and one.id in names and one not in owners | asked for one in ast.walk(whole)
    )
    return None if escapes else {one.attr for one in used if one.value in owners}


def _assigned_to(names: Collection[str], body: Sequence[ast.stmt]) -> set[str] | None:
    found: set[str] = set()
    owners: set[ast.AST] = set()
    whole = ast.Module([*body], [])
    for one in ast.walk(whole):
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id in names:
            owners.add(one.value)
            if not isinstance(one.ctx, ast.Load):
                found.add(one.attr)
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id in _ASKING:
            owners.update(one.args[:1])
    escapes = any(isinstance(one, ast.Name) and one.id in names and one not in owners for one in ast.walk(whole))
    return None if escapes else found
