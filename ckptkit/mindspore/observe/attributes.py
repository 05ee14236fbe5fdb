"""Reads and writes attributes of a user's object without running the user's code.

Guarantees: calls no ``__getattr__``, ``__setattr__``, ``__dict__`` property, descriptor, comparison or truth test of
the user's; only a ``__divmod__``, of an object behind a weak proxy. Any thread.
"""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

PROXIES = frozenset(weakref.ProxyTypes)
CACHED = type(functools.cache(lambda: None))  # the wrapper that functools.cache and lru_cache make
GONE = object()
_NONE: Mapping[str, Any] = types.MappingProxyType({})  # no dict that could be written to

_DICT_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
# The attribute in which each keeps the function that it wraps.
_ACCESSORS = {staticmethod: "__func__", classmethod: "__func__", property: "fget", functools.cached_property: "func"}


class _Unwrapping:
    """Gives what a weak proxy stands for: of ``divmod``, a proxy passes on its object itself."""

    __array_ufunc__ = None  # arrays, too, leave the operation to this class

    def __rdivmod__(self, other: Any) -> Any:
        return other


def behind_proxy(value: Any) -> Any:
    """Return ``value``, or the object that it stands for if it is a weak proxy; `GONE` if that object is gone."""
    if type(value) not in PROXIES:
        return value
    try:
        return divmod(value, _Unwrapping())
    except ReferenceError:
        return GONE


def own_attributes(owner: Any) -> Mapping[str, Any]:
    """Return what ``vars(owner)`` gives; nothing for an object without ``__dict__``, such as one with slots."""
    if type(owner) is threading.local:  # which has no descriptor for it
        of_thread: Mapping[str, Any] = threading.local.__getattribute__(owner, "__dict__")
        return of_thread
    for kind in type(owner).__mro__:
        descriptor = kind.__dict__.get("__dict__")
        if descriptor is not None:
            attributes = descriptor.__get__(owner) if type(descriptor) in _DICT_DESCRIPTORS else None
            return attributes if attributes is not None else _NONE
    return _NONE


def attributes_of(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items of `own_attributes`, and what is in slots."""
    yield from [*own_attributes(owner).items()]
    kind: Any = type(owner)
    for name, slot in _slots_of(kind):
        try:
            yield name, slot.__get__(owner, type(owner))
        except AttributeError:  # an empty slot
            continue


def items_of_dict(value: Any) -> list[tuple[Any, Any]]:
    """Return the items of a dict in its order, whatever its class does; that of an OrderedDict is its own."""
    return [*(OrderedDict if issubclass(type(value), OrderedDict) else dict).items(value)]


def set_attribute(owner: Any, name: str, value: Any) -> None:
    """Set an attribute of an object or a class; AttributeError if it has no place for it."""
    if isinstance(owner, type):
        holder = next((base for base in owner.__mro__ if name in vars(base)), owner)
        type.__setattr__(holder, name, value)
        return
    kind: Any = type(owner)
    slot = next((slot for known, slot in _slots_of(kind) if known == name), None)
    if slot is not None:
        slot.__set__(owner, value)
        return
    attributes = own_attributes(owner)
    if type(attributes) is not dict:
        raise AttributeError(f"a {type(owner).__name__} has no place for an attribute {name}")
    attributes[name] = value


@functools.lru_cache(maxsize=4096)
def _slots_of(kind: Any) -> tuple[tuple[str, Any], ...]:
    members = (item for base in kind.__mro__ for item in vars(base).items())
    return tuple(
        (name, member)
        for name, member in members
        if type(member) is types.MemberDescriptorType and name not in ("__dict__", "__weakref__")
    )


def unwrapped(member: Any) -> Any:
    """Return the function that a property, or a static or class method, keeps; of any other member, itself."""
    return getattr(member, _ACCESSORS[type(member)]) if type(member) in _ACCESSORS else member
