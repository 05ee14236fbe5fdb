"""Reads expressions: what their values are made of, and what the calls in them do.

Guarantees: as for `ckptkit.mindspore.inspect.loops`, which says what is found. Main thread only.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import random
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.mindspore.inspect.attributes import UNKNOWN, attribute, is_users, owner_of
from ckptkit.mindspore.inspect.bytecode import closure_of, functions_of
from ckptkit.mindspore.inspect.carried import GENERATORS
from ckptkit.mindspore.inspect.loops.effects import asks_a_clock, changes, computes, is_ours, loads, trains
from ckptkit.mindspore.inspect.loops.flow import RESTORED, TIMED, Flow, Place, Running, Scope, Sources, Value
from ckptkit.mindspore.inspect.loops.libraries import Libraries
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.source import body_of

NUMBER = "enumerate()"  # the name of its index
TAKEN = "the number of batches taken"  # by islice()

_MOST = 20_000  # expressions and statements read per frame
_DEEPEST = 8  # nesting of followed calls
_FEW = 8  # lists up to this length are read item by item
_GLOBALS = (random._inst, np.random.mtrand._rand)  # checkpoints hold their states
_CONTAINERS = (list, tuple, dict, deque)


class Expressions:
    """Reads expressions, and the user's functions that they call.

    Args:
        flow: Records what is read and written.
        objects: Knows the objects that code names.
        libraries: Knows which functions are not the user's.
        running: The functions that are running, whose variables are known where they are called.
        block: Reads the statements of a function and returns what they return.

    Attributes:
        taken: Generators and iterators that a loop draws from, by id, each with its expression.
    """

    def __init__(
        self,
        flow: Flow,
        objects: Objects,
        libraries: Libraries,
        running: Mapping[types.CodeType, Running],
        block: Callable[[Sequence[ast.stmt], Scope], list[Value]],
    ) -> None:
        self._flow = flow
        self._objects = objects
        self._libraries = libraries
        self._running = running
        self._block = block
        self._left = 0
        self._functions: list[types.CodeType] = []
        self.taken: dict[int, tuple[str, Any]] = {}

    @property
    def within_function(self) -> bool:
        """Whether the code being read is the body of a called function."""
        return bool(self._functions)

    def begin(self) -> None:
        """Start with the code of another frame."""
        self._left = _MOST

    def may_go_on(self) -> bool:
        """Count a statement or an expression; return whether it is still to be read."""
        self._left -= 1
        return self._left > 0

    def value(  # noqa: PLR0911 - one return per kind reads as the table that it is
        self, node: ast.expr | None, scope: Scope
    ) -> Value:
        """Read an expression."""
        if node is None or not self.may_go_on():
            return Value()
        match node:
            case ast.Name():
                value = scope.value(node.id)
                self._objects.note(f"{scope.path}{node.id}", value.target, scope.place(node.id))
                sources = self._flow.read(scope.place(node.id), scope)
                return value._replace(sources=sources | value.sources | self._marked(value.target))
            case ast.Attribute():
                return self._attribute(self.value(node.value, scope), node, scope)
            case ast.Call():
                return self._call(node, scope)
            case ast.NamedExpr():
                value = self.value(node.value, scope)
                self.store(node.target, value, scope)
                return value
            case ast.Subscript():
                owner, index = self.value(node.value, scope), self.value(node.slice, scope)
                return Value(_first(owner.target), owner.sources | index.sources)
            case ast.Tuple() | ast.List():
                items = tuple(self.value(one, scope) for one in node.elts)
                return Value(UNKNOWN, _together(items), items)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, scope)
            case ast.Lambda():
                return Value()
            case _:
                parts = [self.value(one, scope) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
                either = parts[1:] if isinstance(node, ast.IfExp) else parts
                is_either = isinstance(node, (ast.IfExp, ast.BoolOp, ast.Await, ast.Starred))
                known = (one.target for one in either if one.target is not UNKNOWN and one.target is not None)
                return Value(next(known, UNKNOWN) if is_either else UNKNOWN, _together(parts))

    def elements(self, one: ast.For | ast.AsyncFor, over: Value, scope: Scope) -> list[Value]:
        """Return what a loop takes: each object of a short list, otherwise one value for all items.

        The index of `enumerate`, and a count that is zipped with batches, start anew with every start of the script.
        """
        call = one.iter
        if isinstance(call, ast.Call) and self.value(call.func, scope).target is enumerate and call.args:
            begin = [*call.args[1:], *(each.value for each in call.keywords)]
            over = self.value(call.args[0], scope)
            place = Place(id(one), NUMBER)
            begins_anew = not begin or isinstance(begin[0], ast.Constant)
            if begins_anew and is_ours(over.target):
                self._objects.note(f"{scope.path}{NUMBER}", None, place)
                return [Value(items=(Value(sources=frozenset((place,))), Value()))]
            return [Value(items=(Value(), Value(_first(over.target), over.sources)))]
        zipped = call.args if isinstance(call, ast.Call) and self.value(call.func, scope).target is zip else []
        if any(is_ours(self.value(each, scope).target) for each in zipped):
            return [Value(items=tuple(self._zipped(each, one, scope) for each in zipped))]
        sources = over.sources - {RESTORED}
        if isinstance(over.target, (list, tuple)) and len(over.target) <= _FEW:
            each = [Value(value, sources) for value in over.target if self._objects.is_plain(value)]
            for number, value in enumerate(over.target) if isinstance(one.target, ast.Name) else ():
                if self._objects.is_plain(value):
                    self._objects.path_of(value, f"{scope.path}{ast.unparse(one.iter)}[{number}]")
            if each:
                return each
        return [Value(_first(over.target), sources)]

    def _zipped(self, node: ast.expr, loop: ast.stmt, scope: Scope) -> Value:
        """Return what one argument of `zip` gives to a loop; a count starts anew with every start of the script."""
        value = self.value(node, scope)
        call = node if isinstance(node, ast.Call) and all(isinstance(one, ast.Constant) for one in node.args) else None
        function = self.value(call.func, scope).target if call is not None else None
        if any(function is one for one in (itertools.count, range)):
            place = Place(id(loop), NUMBER)
            self._objects.note(f"{scope.path}{ast.unparse(node)}", None, place)
            return Value(sources=frozenset((place,)))
        self._draws(node, value.target, scope, takes=True)
        return Value(_first(value.target), value.sources)

    def store(self, node: ast.expr, value: Value, scope: Scope) -> None:
        """Read the assignment of ``value`` to the target ``node``."""
        match node:
            case ast.Name():
                place = scope.place(node.id)
                self._objects.note(f"{scope.path}{node.id}", scope.value(node.id).target, place)
                self._flow.write(place, value.sources, scope, whole=True)
                now = scope.assigned(node.id, value, node.lineno)
                scope.known[node.id] = value if is_ours(now.target) else now  # reading ours would count as a save
            case ast.Tuple() | ast.List():
                known = len(value.items) == len(node.elts)
                for number, each in enumerate(node.elts):
                    self.store(each, value.items[number] if known else Value(UNKNOWN, value.sources), scope)
            case ast.Starred():
                self.store(node.value, Value(UNKNOWN, value.sources), scope)
            case ast.Attribute():
                owner = self.value(node.value, scope).target
                if self._objects.is_plain(owner):
                    self._flow.write(self._place_in(owner, node, scope), value.sources, scope, whole=True)
                elif isinstance(owner, (nn.Cell, ms.Parameter)) or self._objects.is_known(owner):
                    self._flow.steer(value.sources | self._flow.control)
            case ast.Subscript():
                index = self.value(node.slice, scope)
                self._changes(node.value, value.sources | index.sources, scope)

    def _changes(self, node: ast.expr, sources: Sources, scope: Scope) -> None:
        """Record that an expression's object was changed in place."""
        value = self.value(node, scope)
        if isinstance(value.target, ms.Parameter):
            self._flow.steer(sources | self._flow.control)
        elif isinstance(node, ast.Name):
            self._flow.write(scope.place(node.id), sources, scope, whole=False)
        elif isinstance(node, ast.Attribute):
            owner = self.value(node.value, scope).target
            if self._objects.is_plain(owner):
                self._flow.write(self._place_in(owner, node, scope), sources, scope, whole=False)
        elif isinstance(node, ast.Subscript):
            self._changes(node.value, sources, scope)

    def _attribute(self, owner: Value, node: ast.Attribute, scope: Scope) -> Value:
        if owner.target is UNKNOWN:
            return Value(UNKNOWN, owner.sources)
        target = attribute(owner.target, node.attr)
        sources = owner.sources | self._marked(target)
        if self._objects.is_plain(owner.target):
            sources |= self._flow.read(self._place_in(owner.target, node, scope), scope)
            if isinstance(inspect.getattr_static(type(owner.target), node.attr, None), property):
                found = self._follow(target, [], {}, scope)
                sources |= found.sources if found is not None else frozenset()
                target = UNKNOWN
        return Value(target, sources)

    def _place_in(self, owner: Any, node: ast.Attribute, scope: Scope) -> Place:
        return self._objects.attribute_of(owner, f"{scope.path}{ast.unparse(node.value)}", node.attr)

    def _marked(self, target: Any) -> Sources:
        """Return the mark of a value that checkpoints hold; after a ckptkit object, a save may follow."""
        ours = is_ours(target) and not isinstance(target, nn.Cell)
        if ours:
            self._flow.may_save()
        stored = ours or isinstance(target, (nn.Cell, ms.Parameter)) or self._objects.is_known(target)
        return frozenset((RESTORED,)) if stored else frozenset()

    def _comprehension(self, node: Any, scope: Scope) -> Value:
        for one in node.generators:
            over = self.value(one.iter, scope)
            self.store(one.target, Value(_first(over.target), over.sources), scope)
            for test in one.ifs:
                self.value(test, scope)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        return Value(UNKNOWN, _together([self.value(one, scope) for one in parts]))

    def _call(self, node: ast.Call, scope: Scope) -> Value:
        owner = self.value(node.func.value, scope) if isinstance(node.func, ast.Attribute) else Value()
        called = self.value(node.func, scope)
        given = [self.value(one, scope) for one in node.args]
        named = {one.arg: self.value(one.value, scope) for one in node.keywords}
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        sources = called.sources | _together([*given, *named.values()])
        found = self._follow(called.target, given, named, scope)
        if trains(called.target, name) or self._objects.is_known(owner.target):
            self._flow.steer(sources | self._flow.control)
        elif computes(called.target, owner.target, name):
            self._flow.steer(sources)
        marks = {RESTORED} if loads(name) else set()
        if found is not None:
            return found._replace(sources=found.sources | marks)
        drawn = [(node.func.value, owner)] if isinstance(node.func, ast.Attribute) else []
        takes = called.target is next or name in ("send", "__next__")
        by_name = [(one.value, named[one.arg]) for one in node.keywords]
        for one, value in [*drawn, *zip(node.args, given, strict=True), *by_name]:
            self._draws(one, value.target, scope, takes=takes)
        function = called.target.func if isinstance(called.target, functools.partial) else called.target
        if not drawn:  # a method in a variable, such as draw = rng.random
            self._draws(node.func, owner_of(function), scope, takes=takes)
        if name == "values" and isinstance(owner.target, dict):
            return Value([*dict.values(owner.target)], sources)
        if name.startswith("heap") and node.args:
            self._changes(node.args[0], sources, scope)
        if isinstance(node.func, ast.Attribute) and changes(name, owner.target):
            self._changes(node.func.value, sources, scope)
        if asks_a_clock(called.target, owner.target):
            marks.add(TIMED)
        return Value(UNKNOWN, sources | marks | self._counted(node, called.target, given, scope))

    def _counted(self, node: ast.Call, target: Any, given: Sequence[Value], scope: Scope) -> Sources:
        """Return the count of an `itertools.islice` of our batches, which starts anew with every start."""
        if target is not itertools.islice or not given or not is_ours(given[0].target):
            return frozenset()
        stop = given[1:3][-1:]  # islice(batches, stop) or islice(batches, start, stop, ...)
        unlimited = any(isinstance(one, ast.Constant) and one.value is None for one in node.args[1:3][-1:])
        if not stop or unlimited or RESTORED in stop[0].sources:
            return frozenset()
        place = Place(id(node), TAKEN)
        self._objects.note(f"{scope.path}{ast.unparse(node.func)}()", None, place)
        return frozenset((place,))

    def _draws(self, node: ast.expr, target: Any, scope: Scope, *, takes: bool) -> None:
        """Record that a call advances a generator, or takes from an iterator."""
        takes = takes and isinstance(target, Iterator)
        draws = isinstance(target, GENERATORS) and not any(target is one for one in _GLOBALS)
        if (takes or draws) and not self._objects.is_known(target) and self._flow.saves():
            path = self._objects.path_of(target, f"{scope.path}{ast.unparse(node)}")
            self.taken.setdefault(id(target), (path, target))

    def _follow(
        self, target: Any, given: Sequence[Value], named: Mapping[str | None, Value], scope: Scope
    ) -> Value | None:
        """Read the called function of the user's; None if it is not the user's or has no source."""
        if target is UNKNOWN or isinstance(target, (type, nn.Cell)) or len(self._functions) >= _DEEPEST:
            return None
        returned: list[Value] = []
        found = False
        arguments = [one.target for one in (*given, *named.values())]
        for function, instance in functions_of(target):
            if self._libraries.keep(function, instance, arguments):
                continue
            code = function.__code__
            body = body_of(code, function.__globals__) if is_users(function.__globals__.get("__name__")) else ()
            if not body or code in self._functions:
                continue
            found = True
            running = self._running.get(code)
            inside = Scope(code, function.__globals__, scope.path, closure_of(function), running)
            self._give(inside, function, [*([] if instance is UNKNOWN else [Value(instance)]), *given], named)
            self._functions.append(code)
            returned += self._block(body, inside)
            self._functions.pop()
        if not found:
            return None
        only = returned[0] if len(returned) == 1 else Value()
        return only._replace(sources=_together(returned))

    def _give(
        self,
        inside: Scope,
        function: types.FunctionType,
        given: Sequence[Value],
        named: Mapping[str | None, Value],
    ) -> None:
        """Bind the arguments of a call to the parameters of the function."""
        code, defaults = function.__code__, function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for name, default in zip(names[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True):
            inside.known[name] = Value(default)
            inside.lasting[name] = function
        for given_name, value in [*zip(names[: code.co_argcount], given, strict=False), *named.items()]:
            if given_name is not None and given_name in names:
                inside.lasting.pop(given_name, None)
                inside.known[given_name] = inside.assigned(given_name, value, 0)
                self._flow.give(inside.place(given_name), value.sources)


def _together(values: Iterable[Value]) -> Sources:
    return frozenset().union(*(one.sources for one in values))


def _first(target: Any) -> Any:
    """Return one item that stands for all items of a container."""
    if not isinstance(target, _CONTAINERS):
        return UNKNOWN
    return next(iter(dict.values(target) if isinstance(target, dict) else list(target)), UNKNOWN)
