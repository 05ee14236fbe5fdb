"""What lies in an object of the user's, read without running code of the user's.

Guarantees: no ``__getattr__``, ``__dict__`` property, descriptor, comparison or truth of the user's is asked. What
only such code makes up is not there. Any thread.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Mapping
from typing import Any

UNKNOWN = object()
CACHED = type(functools.cache(lambda: None))  # what functools.cache and lru_cache put around a function

_DICT_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)


def own_attributes(one: Any) -> Mapping[str, Any]:
    """What ``vars(one)`` gives; nothing for an object without ``__dict__``, such as one with slots."""
    for kind in type(one).__mro__:
        descriptor = vars(kind).get("__dict__")
        if descriptor is not None:
            found = descriptor.__get__(one) if type(descriptor) in _DICT_DESCRIPTORS else None
            return found if found is not None else {}
    return {}


def attribute(owner: Any, name: str) -> Any:
    """``owner.name``; `UNKNOWN`, which nothing else is, where it cannot be told."""
    own = own_attributes(owner)
    if issubclass(type(owner), types.ModuleType):
        return own.get(name, sys.modules.get(f"{own.get('__name__')}.{name}", UNKNOWN))
    found = inspect.getattr_static(owner, name, UNKNOWN)
    if found is UNKNOWN:
        # An nn.Cell keeps its cells beside its attributes.
        cells = own.get("_cells")
        return dict.get(cells, name, UNKNOWN) if isinstance(cells, dict) else UNKNOWN
    if issubclass(type(owner), type):
        return found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
    # What lies in the object itself is not bound to it. By identity: an array has no truth.
    return found if own.get(name) is found else _bound(found, owner)


def _bound(found: Any, owner: Any) -> Any:
    kind = type(found)
    if issubclass(kind, staticmethod):
        return found.__func__
    if issubclass(kind, classmethod):
        return types.MethodType(found.__func__, type(owner))
    if issubclass(kind, property) and type(found.fget) is types.FunctionType:
        return types.MethodType(found.fget, owner)  # stands for what it runs
    if kind in (types.FunctionType, CACHED):
        return types.MethodType(found, owner)
    compiled = kind in (types.MemberDescriptorType, types.MethodDescriptorType) or _is_cython(found)
    return _got(found, owner) if compiled else found


def _got(descriptor: Any, owner: Any) -> Any:
    """What a slot holds, or a method in compiled code of NumPy or Python."""
    try:
        return descriptor.__get__(owner, type(owner))
    except AttributeError:  # an empty slot
        return UNKNOWN


def owner_of(function: Any) -> Any:
    """The object that a bound method belongs to; None of anything else."""
    kind = type(function)
    if kind is types.MethodType:
        # Around a callable of the user's it could not even be asked for its name.
        return (
            function.__self__
            if type(function.__func__) is types.FunctionType or _is_cython(function.__func__)
            else None
        )
    if kind in (types.BuiltinMethodType, types.MethodWrapperType) or _is_cython(function):
        return function.__self__
    return None


def _is_cython(function: Any) -> bool:
    return type(function).__name__ == "cython_function_or_method"
