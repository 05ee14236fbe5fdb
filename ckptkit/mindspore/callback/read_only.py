"""Proves of a callback that it only looks: at the step, the loss and the clock, and at what it keeps itself.

Guarantees: yes means that none of its hooks writes a parameter, as far as the assumptions of
`ckptkit.mindspore.callback.harmless_values` hold and nobody changes its class, or gives it other objects, later; no
means that this is not known. Reads source and objects, and runs nothing of the user's. Main thread only.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import mindspore as ms
from mindspore.train import Callback

from ckptkit.mindspore.callback.code_reader import Call
from ckptkit.mindspore.callback.harmless_values import (
    CONTEXT,
    OUTPUT,
    PLAIN,
    READ,
    SELF,
    NotProvenError,
    Value,
    kinds_of,
    named,
    of,
    require,
)
from ckptkit.mindspore.inspect.attributes import UNKNOWN, in_classes
from ckptkit.mindspore.inspect.loops.source import compiled_body_of
from ckptkit.mindspore.inspect.users import is_mindspores, is_users

_DEEPEST = 6  # nesting of followed calls
_MOST = 20_000  # expressions and statements that are read
# Errors of what is examined, which may be anything: what cannot be read proves nothing.
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)
_NOT_READ = 0x04 | 0x08 | 0x20 | 0x80 | 0x200  # flags of code: *args, **kwargs, generators, coroutines


def only_looks(callback: Callback, optimizer: object = None) -> bool:
    """Return whether the hooks of ``callback`` are proven to write no parameter of a training with ``optimizer``."""
    try:
        _Proof(callback, optimizer).read()
    except (NotProvenError, *_UNREADABLE):
        return False
    return True


def is_idle(callback: Callback) -> bool:
    """Return whether ``callback`` is proven to have no effect on training: it only looks, and never ends it."""
    try:
        proof = _Proof(callback, None)
        proof.read()
    except (NotProvenError, *_UNREADABLE):
        return False
    return not proof.may_end


class _Proof:
    """Reads all hooks of one callback, again until the kinds of its attributes stay."""

    def __init__(self, callback: Callback, optimizer: object) -> None:
        is_known = is_mindspores(optimizer)
        self.knows_optimizer = is_known and isinstance(getattr(optimizer, "learning_rate", None), ms.Parameter)
        self._classes = type(callback).__mro__
        self._own = _own_attributes(callback)
        self._bodies: dict[types.CodeType, Sequence[ast.stmt]] = {}
        self._kinds: dict[str, frozenset[str]] = {}  # of the attributes that are read or written
        self._functions: list[types.CodeType] = []
        self.may_end = False
        self._left = _MOST

    def read(self) -> None:
        """Read the hooks; NotProvenError if one of them is not known to write nothing."""
        require(all(type(one) is type for one in self._classes))
        users = [one for one in self._classes if one is not Callback and one is not object]
        require(all(is_users(one.__module__) and "__slots__" not in vars(one) for one in users))
        special = ("__setattr__", "__getattribute__", "__getattr__", "__enter__", "__exit__")
        require(not any(name in vars(one) for name in special for one in users))
        hooks = [name for name, one in vars(Callback).items() if type(one) is types.FunctionType and name[0] != "_"]
        methods = [self._method(self._classes, name) for name in hooks]
        before: dict[str, frozenset[str]] | None = None
        while before != self._kinds:
            before = dict(self._kinds)
            for method in methods:
                self.call(method, [of(SELF), of(CONTEXT)], {})
        require(all(self._kinds.values()))  # one that no hook assigns, and that is not there, gets its value elsewhere

    def _method(self, classes: Sequence[type], name: str) -> types.FunctionType:
        require(name not in self._own)
        found = in_classes(classes, name)
        if type(found) is not types.FunctionType:
            raise NotProvenError
        return found

    def spend(self) -> None:
        """Count an expression or a statement."""
        self._left -= 1
        require(self._left > 0)

    def attribute(self, name: str) -> Value:
        """Return what an attribute of the callback may be."""
        in_class = in_classes(self._classes, name)
        require(in_class is UNKNOWN or not _has_any(in_class, "__set__", "__delete__"))
        if name not in self._own and name not in self._kinds and in_class is not UNKNOWN:
            if type(in_class) is types.FunctionType:
                return Value(one=in_class, owner=of(SELF))
            if type(in_class) is staticmethod:
                return named(in_class.__func__)
        self._begin(name)
        return Value(self._kinds[name])

    def set(self, name: str, value: Value) -> None:
        """Join what an attribute of the callback may be with what it gets."""
        found = in_classes(self._classes, name)
        require(found is UNKNOWN or not _has_any(found, "__get__", "__set__", "__delete__"))
        require(value.one is None and value.kinds <= READ | OUTPUT.keys())
        self._begin(name)
        self._kinds[name] |= value.kinds

    def _begin(self, name: str) -> None:
        if name not in self._kinds:
            now = self._own.get(name, in_classes(self._classes, name))
            self._kinds[name] = frozenset() if now is UNKNOWN else kinds_of(now)

    def parent(self, within: Any, name: str) -> Value:
        """Return the method that ``super()`` gives in a method of the class ``within``."""
        place = next((at for at, one in enumerate(self._classes) if one is within), None)
        if place is None:
            raise NotProvenError
        return Value(one=self._method(self._classes[place + 1 :], name), owner=of(SELF))

    def call(self, function: types.FunctionType, given: Sequence[Value], by_name: Mapping[str, Value]) -> Value:
        """Read a function of the user's; return what it returns."""
        own = vars(sys.modules[Callback.__module__])
        if vars(Callback).get(function.__name__) is function and function.__globals__ is own:
            require([one.kinds for one in given] == [{SELF}, {CONTEXT}] and not by_name)
            return of(PLAIN)  # does nothing, or calls another hook
        code = function.__code__
        require(code.co_flags & _NOT_READ == 0 and is_users(function.__globals__.get("__name__")))
        require(code not in self._functions and len(self._functions) < _DEEPEST)
        if code not in self._bodies:
            self._bodies[code] = compiled_body_of(function)
        body = self._bodies[code]
        require(bool(body))
        self._functions.append(code)
        returned = Call(self, function, body).run(given, by_name)
        self._functions.pop()
        return returned


def _has_any(one: Any, *names: str) -> bool:
    """Return whether the class of ``one`` has one of these methods."""
    return any(in_classes(type(one).__mro__, name) is not UNKNOWN for name in names)


def _own_attributes(callback: Callback) -> Mapping[str, Any]:
    """Return what ``vars(callback)`` gives, also weak proxies."""
    descriptor = in_classes(type(callback).__mro__, "__dict__")
    require(type(descriptor) is types.GetSetDescriptorType)
    found: dict[str, Any] = descriptor.__get__(callback)
    require(all(type(name) is str for name in found))
    return found
