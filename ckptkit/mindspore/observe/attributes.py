"""Reads and writes attributes of a user's object without running the user's code.

Guarantees: calls no ``__getattr__``, ``__setattr__``, ``__dict__`` property, descriptor, comparison or truth test of
the user's. Any thread.
"""

from __future__ import annotations

import functools
import threading
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

CACHED = type(functools.cache(lambda: None))  # the wrapper that functools.cache and lru_cache make
NO_ATTRIBUTES: Mapping[str, Any] = types.MappingProxyType({})  # no dict that could be written to
_DICT_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
# The attribute in which each keeps the function that it wraps.
_ACCESSORS = {staticmethod: "__func__", classmethod: "__func__", property: "fget", functools.cached_property: "func"}


def own_attributes(owner: Any) -> Mapping[str, Any]:
    """Return what ``vars(owner)`` gives; nothing for an object without ``__dict__``, such as one with slots."""
    if type(owner) is threading.local:  # which has no descriptor for it
        of_thread: Mapping[str, Any] = threading.local.__getattribute__(owner, "__dict__")
        return of_thread
    for kind in type(owner).__mro__:
        descriptor = kind.__dict__.get("__dict__")
        if descriptor is not None:
            attributes = descriptor.__get__(owner) if type(descriptor) in _DICT_DESCRIPTORS else None
            return attributes if attributes is not None else NO_ATTRIBUTES
    return NO_ATTRIBUTES


def attributes_of(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items of `own_attributes`, and what is in slots."""
    yield from [*own_attributes(owner).items()]
    kind: Any = type(owner)
    for name, slot in _slots_of(kind).items():
        try:
            yield name, slot.__get__(owner, kind)
        except AttributeError:  # an empty slot
            continue


def items_of_dict(value: Any) -> list[tuple[Any, Any]]:
    """Return the items of a dict in its order, whatever its class does; that of an OrderedDict is its own."""
    return [*(OrderedDict if issubclass(type(value), OrderedDict) else dict).items(value)]


def set_attribute(owner: Any, name: str, value: Any) -> None:
    """Set an attribute of an object or a class; AttributeError if it has no place for it."""
    kind: Any = type(owner)
    if issubclass(kind, type):
        holder = next((base for base in owner.__mro__ if name in vars(base)), owner)
        type.__setattr__(holder, name, value)
    elif name in _slots_of(kind):
        _slots_of(kind)[name].__set__(owner, value)
    else:
        attributes = own_attributes(owner)
        if type(attributes) is not dict:
            raise AttributeError(f"a {kind.__name__} has no place for an attribute {name}")
        attributes[name] = value


@functools.lru_cache(maxsize=4096)
def _slots_of(kind: Any) -> Mapping[str, Any]:
    members = [item for base in reversed(kind.__mro__) for item in vars(base).items()]
    slots = {name: member for name, member in members if type(member) is types.MemberDescriptorType}
    return {name: slot for name, slot in slots.items() if name not in ("__dict__", "__weakref__")}


def unwrapped(member: Any) -> Any:
    """Return the function that a property, or a static or class method, keeps; of any other member, itself."""
    return getattr(member, _ACCESSORS[type(member)]) if type(member) in _ACCESSORS else member
