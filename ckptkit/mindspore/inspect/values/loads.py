"""Tries ``load_state_dict()`` on a copy of an object, if it changes nothing else.

Guarantees: runs only code of which all calls are known: methods of what was copied, and functions that change nothing.
The object itself, and what it holds, is not changed. Main thread only.
"""

from __future__ import annotations

import ast
import builtins
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckptkit.mindspore.inspect.attributes import UNKNOWN, attributes_of, in_class, is_users
from ckptkit.mindspore.inspect.bytecode import functions_of
from ckptkit.mindspore.inspect.loops.source import body_of
from ckptkit.mindspore.inspect.values.copies import CODE, can_be_copied, twin_of, whole_copy
from ckptkit.mindspore.inspect.values.digest import is_plain

_BUILTINS = re.compile(
    r"abs|all|any|bool|bytes|bytearray|complex|dict|enumerate|filter|float|frozenset|getattr|hasattr|int|isinstance|iter"
    r"|len|list|map|max|min|next|object|range|repr|reversed|round|set|setattr|sorted|str|sum|super|tuple|type|vars|zip"
)
_MODULES = re.compile(
    r"numpy|math|copy|collections|pickle|json|base64|decimal|fractions|datetime|itertools|functools|types"
)
_GENERATORS = re.compile(r"default_rng|RandomState|Generator|SeedSequence|Random|PCG64(DXSM)?|MT19937|Philox|SFC64")
_NOT_HERE = (ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.With, ast.Await, ast.Yield, ast.YieldFrom)
_NAME = "load_state_dict"


class Loading:
    """Loads states into copies of an object.

    Args:
        one: The object.
    """

    def __init__(self, one: Any) -> None:
        self._one = one
        kinds = {type(one), *_kinds_in(one)}
        bodies = dict(_bodies(kinds, _NAME))
        self._named = {each.attr for body in bodies.values() for each in _walk(body) if isinstance(each, ast.Attribute)}
        self.is_known = bool(bodies) and all(_is_harmless(*each) for each in bodies.items())

    def copy(self) -> Any:
        """Return a copy that a state can be loaded into.

        Raises:
            NotCopiedError: If it would share something that loading may change.
        """
        memo: dict[int, Any] = {}
        own = {name: value for name, value in attributes_of(self._one) if name in self._named}
        return twin_of(self._one, {name: whole_copy(value, memo) for name, value in own.items()})

    def loaded(self, state: Any) -> Any:
        """Return a copy with a state; `UNKNOWN` if it cannot be loaded."""
        try:
            made = self.copy()
            made.load_state_dict(state)
        except Exception:  # noqa: BLE001 - code of the user's, with values that it may not take
            return UNKNOWN
        return made

    def rebinds(self, name: str, state: Any) -> bool:
        """Return whether loading gives an attribute another object instead of changing the present one."""
        try:
            made = self.copy()
            before = dict(attributes_of(made)).get(name)
            made.load_state_dict(state)
        except Exception:  # noqa: BLE001 - as in `loaded`
            return False
        return dict(attributes_of(made)).get(name) is not before


def _kinds_in(one: Any, depth: int = 4) -> set[type]:
    """Return the classes of the user's objects in an object."""
    found: set[type] = set()
    for _, value in attributes_of(one) if depth else ():
        items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        for each in list(items)[:64]:
            if can_be_copied(each):
                found |= {type(each), *_kinds_in(each, depth - 1)}
    return found


def _bodies(kinds: set[type], name: str) -> Iterator[tuple[types.FunctionType, Sequence[ast.stmt]]]:
    """Yield the methods of that name of the classes, and the methods that these name, with their statements."""
    names, done = {name}, set[str]()
    while names - done:
        done.add(name := (names - done).pop())
        for kind in kinds:
            for one in kind.__mro__:
                method = vars(one).get(name, UNKNOWN) if is_users(one.__module__) else UNKNOWN
                for function, _ in functions_of(method) if method is not UNKNOWN else ():
                    body = body_of(function.__code__, function.__globals__)
                    yield function, body
                    names |= {each.attr for each in _walk(body) if isinstance(each, ast.Attribute)}


def _walk(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    return (each for one in body for each in ast.walk(one))


def _is_harmless(function: types.FunctionType, body: Sequence[ast.stmt]) -> bool:
    """Return whether all that a method calls is known, and nothing changes but what it was given."""
    nodes = [*_walk(body)]
    given = {*function.__code__.co_varnames, *function.__code__.co_cellvars, "self"}
    given |= {each.arg for each in nodes if isinstance(each, ast.arg)}
    if not body or any(isinstance(each, _NOT_HERE) for each in nodes):
        return False
    if not all(_is_constant(each, given, function.__globals__) for each in nodes if isinstance(each, ast.Name)):
        return False
    stored = (each for each in nodes if isinstance(each, (ast.Attribute, ast.Subscript)) and not _is_read(each))
    calls = (each.func for each in nodes if isinstance(each, ast.Call))
    is_own = all(_root(each) in given for each in stored)
    return is_own and all(_is_known(each, given, function.__globals__) for each in calls)


def _is_constant(one: ast.Name, given: set[str], module: Mapping[str, Any]) -> bool:
    """Return whether a variable is the method's own, or leads to nothing that could be changed."""
    if one.id in given or one.id not in module:
        return True
    target = module[one.id]
    return isinstance(target, (type, types.ModuleType, str, int, float, types.NoneType, *CODE)) or (
        isinstance(target, tuple) and is_plain(target)
    )


def _is_read(one: ast.Attribute | ast.Subscript) -> bool:
    return isinstance(one.ctx, ast.Load)


def _root(one: ast.expr) -> str:
    """Return the variable that an expression begins with; of a call, that of its object or first argument."""
    while isinstance(one, (ast.Attribute, ast.Subscript, ast.Call)):
        if isinstance(one, ast.Call):
            one = one.func if isinstance(one.func, ast.Attribute) or not one.args else one.args[0]
        else:
            one = one.value
    return one.id if isinstance(one, ast.Name) else "" if isinstance(one, ast.Constant) else "?"


def _is_known(called: ast.expr, given: set[str], module: Mapping[str, Any]) -> bool:
    """Return whether a call changes nothing but what the method was given."""
    root = _root(called)
    if isinstance(called, ast.Name):
        if called.id in given:
            return False
        target = module.get(called.id, getattr(builtins, called.id, UNKNOWN))
        is_builtin = target is getattr(builtins, called.id, None) and _BUILTINS.fullmatch(called.id) is not None
        return is_builtin or _is_maker(target)
    if root in given or root in ("", "super"):
        return True
    target = module.get(root, UNKNOWN)
    if isinstance(target, types.ModuleType):
        names = ast.unparse(called).split(".")
        is_random = target.__name__ == "random" or "random" in names
        return (is_random and _GENERATORS.fullmatch(names[-1]) is not None) or (
            not is_random and _MODULES.fullmatch(target.__name__.partition(".")[0]) is not None
        )
    return isinstance(target, type) and _is_maker(target)


def _is_maker(target: Any) -> bool:
    """Return whether it is a class whose objects are values, or a function of a module of those."""
    home = str(getattr(target, "__module__", "")).partition(".")[0]
    known = _MODULES.fullmatch(home) is not None or (isinstance(target, type) and home == "random")
    is_plain_class = isinstance(target, type) and is_users(home) and in_class(target, "__init__") is UNKNOWN
    return (known and isinstance(target, (type, *CODE))) or is_plain_class
