"""Reads the attributes of a user's object, without running user code.

Guarantees: calls no ``__getattr__``, ``__dict__`` property, descriptor, comparison or truth test of the user's; only a
``__divmod__``, of an object behind a weak proxy. What only such code creates is not found. Any thread.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from ckptkit.mindspore.inspect.users import is_users

UNKNOWN = object()
PROXIES = frozenset(weakref.ProxyTypes)
_WITHOUT_SLOTS: dict[int, weakref.ref[type]] = {}  # by id; a slot would keep its class alive
CACHED = type(functools.cache(lambda: None))  # the wrapper that functools.cache and lru_cache make

_DICT_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
# The attribute in which each keeps the function that it wraps.
_ACCESSORS = {staticmethod: "__func__", classmethod: "__func__", property: "fget", functools.cached_property: "func"}

_T = TypeVar("_T")
_P = ParamSpec("_P")
_LOOK: ContextVar[dict[Hashable, tuple[Any, Any]] | None] = ContextVar("look", default=None)


def looked_once(read: Callable[[], _T]) -> _T:
    """Call ``read``, which changes nothing but copies, and return its result; what it asks twice is read once."""
    before = _LOOK.set({})
    try:
        return read()
    finally:
        _LOOK.reset(before)


def once_per_look(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function of an object and texts: while `looked_once` runs, it keeps its results and the objects."""

    @functools.wraps(function)
    def looked(*given: _P.args, **named: _P.kwargs) -> _T:
        look = _LOOK.get()
        if look is None:
            return function(*given, **named)
        key = (function, id(given[0]), *given[1:], *named.items())
        held = look.get(key)
        if held is None:
            held = look[key] = given[0], function(*given, **named)
        result: _T = held[1]
        return result

    return looked


class OneOf:
    """Tells whether an object is one of a few, by identity, because objects of users are never compared.

    Args:
        ones: They live as long as this does.
    """

    def __init__(self, *ones: Any) -> None:
        self._ones = {id(one): one for one in ones}

    def __contains__(self, one: Any) -> bool:
        return id(one) in self._ones


class Symbol:
    """Stands for an object that does not exist yet, or of which only a part is known."""

    __slots__ = ()


def is_symbol(one: Any) -> bool:
    """Return whether nothing is known of an object, or something else stands for it."""
    return one is UNKNOWN or isinstance(one, Symbol)


class _Unwrapping:
    """Gives what a weak proxy stands for: of ``divmod``, a proxy passes on its object itself."""

    __array_ufunc__ = None  # arrays, too, leave the operation to this class

    def __rdivmod__(self, other: Any) -> Any:
        return other


def met(one: Any) -> Any:
    """Return ``one``, or the object that it stands for if it is a weak proxy; `UNKNOWN` if that object is gone."""
    if type(one) not in PROXIES:
        return one
    try:
        return divmod(one, _Unwrapping())
    except ReferenceError:
        return UNKNOWN


@once_per_look
def own_attributes(one: Any) -> Mapping[str, Any]:
    """Return what ``vars(one)`` gives, with each weak proxy replaced by the object that it stands for.

    Gives nothing for an object without ``__dict__``, such as one with slots.
    """
    found = _attributes_with_proxies(one)
    if not PROXIES.isdisjoint(map(type, found.values())):
        return {name: whole for name, value in found.items() if (whole := met(value)) is not UNKNOWN}
    return found


def _attributes_with_proxies(one: Any) -> Mapping[str, Any]:
    for kind in type(one).__mro__:
        descriptor = vars(kind).get("__dict__")
        if descriptor is not None:
            found = descriptor.__get__(one) if type(descriptor) in _DICT_DESCRIPTORS else None
            return found if found is not None else {}
    return {}


def attributes_of(one: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items of `own_attributes`, and what is in slots."""
    yield from [*own_attributes(one).items()]
    yield from in_slots(one)


def in_slots(one: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is in slots of an object."""
    found = ((name, _got(slot, one)) for name, slot in _slots_of(type(one)))
    yield from (pair for pair in found if pair[1] is not UNKNOWN)


def _slots_of(kind: type) -> list[tuple[str, Any]]:
    known = _WITHOUT_SLOTS.get(id(kind))
    if known is not None and known() is kind:
        return []
    found = (each for base in kind.__mro__ for each in vars(base).items())
    slots = [(name, one) for name, one in found if type(one) is types.MemberDescriptorType]
    slots = [each for each in slots if each[0] not in ("__dict__", "__weakref__")]
    if not slots:
        _WITHOUT_SLOTS[id(kind)] = weakref.ref(kind)
    return slots


def methods_of(kind: type) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield the functions of the user's that a class and its bases have, but those that make an object."""
    for name, found in members_of(kind):
        function = unwrapped(found)
        if type(function) is types.FunctionType and name not in ("__init__", "__new__"):  # these have run
            yield name, function


def members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield what a class and its bases define, as far as they are the user's."""
    for one in kind.__mro__:
        yield from [*vars(one).items()] if is_users(one.__module__) else ()


def unwrapped(member: Any) -> Any:
    """Return the function that a property, or a static or class method, keeps; of any other member, itself."""
    return getattr(member, _ACCESSORS[type(member)]) if type(member) in _ACCESSORS else member


def attribute(owner: Any, name: str) -> Any:
    """Return ``owner.name``, or the unique `UNKNOWN` where it cannot be determined."""
    return met(_attribute(owner, name))


def _attribute(owner: Any, name: str) -> Any:
    if type(owner) is super:
        return _in_parent(owner, name)
    own = _attributes_with_proxies(owner)  # to look at all that a module has takes long
    if issubclass(type(owner), types.ModuleType):
        return own.get(name, sys.modules.get(f"{own.get('__name__')}.{name}", UNKNOWN))
    found = static(owner, name, own)
    if found is UNKNOWN:
        # An nn.Cell keeps its cells and parameters in separate dicts.
        beside = [one for one in (met(own.get("_cells")), met(own.get("_params"))) if isinstance(one, dict)]
        if isinstance(owner, dict) and in_class(type(owner), "__getattr__") is not UNKNOWN:  # its items are attributes
            beside.append(owner)
        return next((dict.get(one, name) for one in beside if dict.__contains__(one, name)), UNKNOWN)
    if issubclass(type(owner), type):
        if isinstance(found, classmethod):
            return types.MethodType(found.__func__, owner)
        return found.__func__ if isinstance(found, staticmethod) else found
    # The object's own attributes are not bound to it. Compare by identity: an array has no truth value.
    return found if own.get(name) is found else _bound(found, owner)


def kept_in(owner: Any, name: str) -> Any:
    """Return `attribute`; `UNKNOWN` for a `functools.cached_property`, which keeps what is not there yet."""
    is_cache = isinstance(in_class(type(owner), name), functools.cached_property)
    return UNKNOWN if is_cache and name not in own_attributes(owner) else attribute(owner, name)


def _in_parent(parent: Any, name: str) -> Any:
    """Return the attribute of ``super()``."""
    kinds = parent.__self_class__.__mro__
    after = kinds[kinds.index(parent.__thisclass__) + 1 :]
    return _bound(in_classes(after, name), parent.__self__)


def static(owner: Any, name: str, own: Mapping[str, Any]) -> Any:
    """Return what `inspect.getattr_static` returns, in a fifth of its time; `UNKNOWN` without such an attribute.

    Args:
        owner: An object or a class.
        name: Name of the attribute.
        own: `own_attributes` of the object.
    """
    if issubclass(type(owner), type):
        return inspect.getattr_static(owner, name, UNKNOWN)
    found = in_class(type(owner), name)
    if name not in own:
        return found
    # As in Python, a data descriptor of the class comes before the object's own attribute.
    of_class = found is not UNKNOWN and any(
        in_class(type(found), one) is not UNKNOWN for one in ("__set__", "__delete__")
    )
    return found if of_class else own[name]


@once_per_look
def in_class(kind: type, name: str) -> Any:
    """Return the unbound attribute of a class or its bases; `UNKNOWN` if there is none."""
    return in_classes(kind.__mro__, name)


def in_classes(kinds: Iterable[type], name: str) -> Any:
    """Return the unbound attribute of the first of some classes that has it; `UNKNOWN` if none has."""
    return next((vars(one)[name] for one in kinds if name in vars(one)), UNKNOWN)


def _bound(found: Any, owner: Any) -> Any:
    kind = type(found)
    if issubclass(kind, staticmethod):
        return found.__func__
    if issubclass(kind, classmethod):
        return types.MethodType(found.__func__, type(owner))
    if issubclass(kind, functools.partialmethod) and type(found.func) is types.FunctionType:
        return functools.partial(types.MethodType(found.func, owner), *found.args, **found.keywords)
    # Of a property, a method stands for the function that it runs.
    run = next((getattr(found, name) for one, name in _ACCESSORS.items() if issubclass(kind, one)), found)
    if type(run) in (types.FunctionType, CACHED):
        return types.MethodType(run, owner)
    is_compiled = kind in (types.MemberDescriptorType, types.MethodDescriptorType) or _is_cython(found)
    return _got(found, owner) if is_compiled else found


def _got(descriptor: Any, owner: Any) -> Any:
    """Return the value of a slot, or a bound method of compiled NumPy or Python code."""
    try:
        return descriptor.__get__(owner, type(owner))
    except AttributeError:  # an empty slot
        return UNKNOWN


def owner_of(function: Any) -> Any:
    """Return the object that a bound method belongs to; None for anything else."""
    kind = type(function)
    if kind is types.MethodType:
        # A method may also wrap a user's callable, where even reading its name could run user code.
        return (
            function.__self__
            if type(function.__func__) is types.FunctionType or _is_cython(function.__func__)
            else None
        )
    if kind in (types.BuiltinMethodType, types.MethodWrapperType) or _is_cython(function):
        return getattr(function, "__self__", None)  # Cython's functions have it only if they are bound
    return None


def _is_cython(function: Any) -> bool:
    return type(function).__name__ == "cython_function_or_method"
