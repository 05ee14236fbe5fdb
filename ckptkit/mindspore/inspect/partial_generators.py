"""Finds generators of which checkpoints would have only a part.

These are generators of NumPy in an object whose ``state_dict`` takes single keys of their state, and generators given
by name whose class adds attributes to those of Python's or NumPy's. Guarantees: reads code and runs none. Of a
``state_dict``, it looks at subscripts of ``bit_generator.state``; a method that uses it in any other way is taken for
one that stores all of it. Main thread only.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ckptkit.mindspore.inspect.attributes import UNKNOWN, attributes_of, in_class, own_attributes
from ckptkit.mindspore.inspect.carried_attributes import GENERATORS
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.loops.source import body_of, text_of
from ckptkit.mindspore.inspect.loops.stored_attributes import assigned_in_methods
from ckptkit.mindspore.inspect.users import is_users

_HALF = "uinteger"  # the half of 64 random bits that the next draw of 32 bits takes, if "has_uint32" is 1


def find_partial_generators(objects: Iterable[tuple[str, Any]]) -> Iterator[Finding]:
    """Yield what checkpoints of each object leave out; ``objects`` are given with their names."""
    for name, one in objects:
        added = _added(one)
        if added:
            why = (
                f"{type(one).__name__} adds {', '.join(added)} to the state of a generator, and no checkpoint has that"
            )
            yield Finding(
                "unseen", name, why, "Give it state_dict() and load_state_dict() that hold both", certain=False
            )
        method = in_class(type(one), "state_dict")
        if isinstance(method, types.FunctionType) and is_users(method.__module__) and _has_halves(one):
            whole = ast.Module([*body_of(method.__code__, method.__globals__)], [])
            for state in _read_in_part(whole):
                why = f"it stores a part of {state}, without has_uint32 and {_HALF}: the numbers may go on differently"
                yield Finding("unseen", f"{name}.state_dict()", why, f"Store {state} as it is", certain=False)


def _added(one: Any) -> list[str]:
    """Return the attributes that a class of the user's sets on a generator, beside its state."""
    kind = type(one)
    if not isinstance(one, GENERATORS) or not is_users(kind.__module__):
        return []
    of_own = [
        method for name in ("state_dict", "getstate", "get_state") if (method := in_class(kind, name)) is not UNKNOWN
    ]
    if any(is_users(getattr(each, "__module__", "builtins")) for each in of_own):
        return []
    return sorted({*own_attributes(one), *(assigned_in_methods(kind) or ())} - {"gauss_next"})


def _has_halves(one: Any) -> bool:
    """Return whether a generator that the object holds draws 64 bits at a time; that of Mersenne does not."""
    held = [value.bit_generator for _, value in attributes_of(one) if isinstance(value, np.random.Generator)]
    return any(_HALF in each.state for each in held)


def _read_in_part(whole: ast.Module) -> list[str]:
    """Return the expressions of states that the code reads by single keys only, and not by that of the half."""
    texts = {one.value for one in ast.walk(whole) if isinstance(one, ast.Constant)}
    subscripts = [one for one in ast.walk(whole) if isinstance(one, ast.Subscript)]
    parts = {id(one.value) for one in subscripts}
    keys = {one.slice.value for one in subscripts if isinstance(one.slice, ast.Constant)}
    named = {
        one.targets[0].id: one.value
        for one in ast.walk(whole)
        if isinstance(one, ast.Assign) and _is_state(one.value) and isinstance(one.targets[0], ast.Name)
    }
    loads = [one for one in ast.walk(whole) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)]
    states = [one for one in ast.walk(whole) if _is_state(one)]
    used = [one for one in states if all(one is not each for each in named.values())]
    used += [one for one in loads if one.id in named]
    if _HALF in texts or "state" not in keys or not used or not all(id(one) in parts for one in used):
        return []
    return sorted({text_of(one) for one in states})


def _is_state(one: ast.AST) -> bool:
    return isinstance(one, ast.Attribute) and one.attr == "state" and text_of(one.value).endswith("bit_generator")
