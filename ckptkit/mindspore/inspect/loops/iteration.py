"""Reads what loops and comprehensions take from what they run over.

Guarantees: as for `ckptkit.mindspore.inspect.loops`, which says what is found. Main thread only.
"""

from __future__ import annotations

import ast
import functools
import gc
import itertools
import types
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import mindspore as ms
from mindspore import nn

from ckptkit.manager.batches import NumberedBatches
from ckptkit.mindspore.inspect.attributes import UNKNOWN
from ckptkit.mindspore.inspect.loops.calling.call import MOST_ARGUMENTS, PASSED_ON, Call, item_given, mapping_of, one_of
from ckptkit.mindspore.inspect.loops.containers import FEW, item_of, items_of
from ckptkit.mindspore.inspect.loops.draws import Draws
from ckptkit.mindspore.inspect.loops.effects import is_ours
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.scope import DATA, RESTORED, Place, Running, Scope, Sources, Value, together
from ckptkit.mindspore.inspect.loops.source import text_of

NUMBER = "enumerate()"  # the name of its index
_NOT_RUNNING = Running({}, 0)
BESIDE = "zip()"  # the name of what is zipped with batches
LOOP: NumberedBatches[Any] = NumberedBatches(iter(()))  # stands for what a call of `CheckpointManager.loop` will give


class CallReader(Protocol):
    """Reads the calls that Python makes where code shows none."""

    @property
    def draws(self) -> Draws:
        """Records what calls draw from."""
        ...

    def special(self, owner: Value, name: str, scope: Scope, *given: Value) -> Value:
        """Follow a special method of an object of the user's."""
        ...

    def run(self, body: Sequence[ast.stmt], inside: Scope) -> list[Value]:
        """Read statements of a function that is not the one being read; return what they return or yield."""
        ...

    def follow(
        self, target: Any, given: Sequence[Value], named: Mapping[str | None, Value], scope: Scope
    ) -> Value | None:
        """Read the called function of the user's; None if it is not the user's or has no source."""
        ...

    def change_by(self, method: Any, sources: Sources, scope: Scope) -> None:
        """Record what a call of a method that is not the user's changes, such as that of a list."""
        ...


class Reader(Protocol):
    """Reads expressions; a protocol, since expressions have calls and comprehensions in them."""

    @property
    def calls(self) -> CallReader:
        """Reads calls."""
        ...

    @property
    def iteration(self) -> Iteration:
        """Reads what loops take."""
        ...

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """Read an expression."""
        ...

    def test(self, node: ast.expr, scope: Scope) -> Value:
        """Read an expression that is asked whether it is true."""
        ...

    def attribute(self, owner: Value, node: ast.Attribute, scope: Scope) -> Value:
        """Read an attribute of what ``owner`` was read to be."""
        ...

    def change(self, node: ast.expr, sources: Sources, scope: Scope, *, whole: bool = False) -> None:
        """Record that an expression's object was changed in place, all of it (``whole``) or a part."""
        ...

    def store(self, node: ast.expr, value: Value, scope: Scope) -> None:
        """Read the assignment of ``value`` to the target ``node``."""
        ...


class Iteration:
    """Reads what a loop takes.

    Args:
        flow: Records what is read and written.
        objects: Knows the objects that code names.
        reader: Reads the expression that the loop runs over.
        running: The running functions with what they have now; None for those that are read by themselves.
    """

    def __init__(
        self, flow: Flow, objects: Objects, reader: Reader, running: Mapping[types.CodeType, Running | None]
    ) -> None:
        self._flow = flow
        self._running = running
        self._objects = objects
        self._reader = reader
        self.own_numbers: set[Place] = set()  # of batches that ckptkit does not position

    def elements(self, one: ast.For | ast.AsyncFor, over: Value, scope: Scope) -> Sequence[Value]:
        """Return what a loop takes: each object of a short list, otherwise one value for all items.

        In a loop that saves, the index of `enumerate`, and what is zipped with batches, start anew with every start of
        the script.
        """
        call = one.iter
        counted = self._counted(call, scope)
        if counted is not None or type(over.target) is enumerate:
            return [self._numbered(counted, one, scope)]
        zipped = self._zipped(call, one, scope) or self._mapped(call, scope)
        if zipped is not None:
            return [zipped]
        if over.target is UNKNOWN and 0 < len(over.items) <= FEW:
            return [*{_same(each): each for each in over.items}.values()]
        return self._plain(one, over, scope) or [self.element(over, scope)]

    def is_of_running(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether a loop runs over what a running function yields, which is read by itself and may save."""
        while isinstance(node, ast.Call):
            with self._flow.quiet():
                called = self._reader.value(node.func, scope).target
            function = called.__func__ if type(called) is types.MethodType else called
            if type(function) is types.FunctionType and self._running.get(function.__code__, _NOT_RUNNING) is None:
                return True
            node = node.args[0] if node.args else node.func
        return False

    def element(self, over: Value, scope: Scope) -> Value:
        """Return one value for all that an iteration gives."""
        if isinstance(over.target, NumberedBatches):  # their numbers go on where the checkpoint says
            return Value(items=(Value(), Value(sources=frozenset((DATA,)))))
        if over.target is UNKNOWN and len(over.items) == 1:  # what items() of a dict gives
            return over.items[0]
        called = self._reader.calls.follow(_called_by(over.target), (), {}, scope)
        if called is not None:
            return called
        made = self._reader.calls.special(over, "__iter__", scope)
        iterator = over if made.target is UNKNOWN else made
        sources = over.sources | made.sources | self._reader.calls.special(iterator, "__next__", scope).sources
        target, also = one_of(iterator)
        return Value(target, (sources - {RESTORED}) | data_of(over.target), place=over.place, also=also)

    def _plain(self, one: ast.For | ast.AsyncFor, over: Value, scope: Scope) -> list[Value]:
        """Return each object of a short list of objects of the user's."""
        values = items_of(over.target, FEW + 1) if isinstance(over.target, (list, tuple)) and not over.also else []
        sources = (over.sources - {RESTORED}) | data_of(over.target)
        each = [Value(value, sources, place=over.place) for value in values if self._objects.is_plain(value)]
        if len(values) > FEW:
            return []
        for number, value in enumerate(values) if isinstance(one.target, ast.Name) else ():
            if self._objects.is_plain(value):
                self._objects.path_of(value, f"{scope.path}{text_of(one.iter)}[{number}]")
        return each

    def _counted(self, node: ast.expr, scope: Scope) -> ast.Call | None:
        """Return the call of `enumerate`, also where another call, such as a progress bar, is around it."""
        while isinstance(node, ast.Call) and node.args:
            if self._reader.value(node.func, scope).target is enumerate:
                return node
            node = node.args[0]
        return None

    def _numbered(self, counted: ast.Call | None, one: ast.For | ast.AsyncFor, scope: Scope) -> Value:
        """Return the index and the element that `enumerate` gives; ``counted`` is None if it was called elsewhere."""
        over, begin = Value(), Value()
        if counted is not None:
            over = self._reader.value(counted.args[0], scope)
            given = [*counted.args[1:], *(each.value for each in counted.keywords)]
            begin = self._reader.value(given[0], scope) if given else begin
        zipped = self._zipped(counted.args[0], one, scope) if counted is not None else None
        element = zipped if zipped is not None else self.element(over, scope)
        saves = is_ours(over.target) or self._flow.is_saving(one)
        if not saves:
            return Value(items=(Value(), element))
        element = element._replace(sources=element.sources | {DATA})
        if RESTORED in begin.sources:
            return Value(items=(Value(), element))
        place = Place(id(one), NUMBER)
        if counted is not None and not is_ours(over.target):
            self.own_numbers.add(place)
        self._objects.note(f"{scope.path}{NUMBER}", None, place)
        return Value(items=(Value(sources=frozenset((place,))), element))

    def _zipped(self, call: ast.expr, one: ast.For | ast.AsyncFor, scope: Scope) -> Value | None:
        """Return what a call of `zip` gives; None for another expression."""
        if not isinstance(call, ast.Call) or self._reader.value(call.func, scope).target is not zip or not call.args:
            return None
        values = [self._reader.value(each, scope) for each in call.args]
        saves = any(is_ours(each.target) for each in values) or self._flow.is_saving(one)
        if not saves:
            return Value(items=tuple(self.element(value, scope) for value in values))
        return Value(items=tuple(self._beside(*each, scope) for each in zip(call.args, values, strict=True)))

    def _mapped(self, call: ast.expr, scope: Scope) -> Value | None:
        """Return what a call of `map` gives, whose function each iteration calls; None for another expression."""
        if not isinstance(call, ast.Call) or self._reader.value(call.func, scope).target is not map or not call.args:
            return None
        function, *values = [self._reader.value(each, scope) for each in call.args]
        given = [self.element(value, scope) for value in values]
        returned = self._reader.calls.follow(function.target, given, {}, scope)
        return None if returned is None else returned._replace(sources=returned.sources | together(given))

    def _beside(self, node: ast.expr, value: Value, scope: Scope) -> Value:
        """Return what one argument of `zip` gives to a loop that saves."""
        self._reader.calls.draws.draw(node, value, scope, takes=True)
        element = self.element(value, scope)
        target = value.target
        function = self._reader.value(node.func, scope).target if isinstance(node, ast.Call) else None
        is_count = any(function is one for one in (itertools.count, range))
        if is_count and isinstance(node, ast.Call) and all(isinstance(each, ast.Constant) for each in node.args):
            return element._replace(sources=element.sources | self._noted(node, NUMBER, scope))
        begins_anew = RESTORED not in value.sources and not is_ours(target) and not self._objects.is_known(target)
        if is_count or not begins_anew or isinstance(target, nn.Cell) or id(target) in self._reader.calls.draws.taken:
            return element
        return element._replace(sources=element.sources | self._noted(node, BESIDE, scope))

    def comprehension(self, node: Any, scope: Scope) -> Value:
        """Read a comprehension as the loop that it is."""
        found: Sources = frozenset()
        overs = [self._reader.value(one.iter, scope) for one in node.generators[:1]]
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for _ in self._flow.rounds(node, together(overs), scope):
            for one in node.generators:
                self._reader.store(one.target, self.element(self._reader.value(one.iter, scope), scope), scope)
                found |= together([self._reader.test(test, scope) for test in one.ifs])
            found |= together([self._reader.value(one, scope) for one in parts])
        same = len(node.generators) == 1 and text_of(parts[0]) == text_of(node.generators[0].target)
        if same and isinstance(item_of(overs[0].target)[0], ms.Parameter):
            found -= {DATA}  # parameters themselves, and nothing that was made of them
        return overs[0]._replace(sources=found, place=None) if same else Value(UNKNOWN, found)

    def _noted(self, node: ast.expr, name: str, scope: Scope) -> Sources:
        place = Place(id(node), name)
        self._objects.note(f"{scope.path}{text_of(node)}", None, place)
        return frozenset((place,))

    def mapped(self, call: Call) -> Sources:
        """Read a loop that is a call, such as `map` or `functools.reduce`."""
        how, scope, found = mapping_of(call), call.scope, frozenset[Place]()
        passed_on = Place(id(call.node), PASSED_ON)
        self._objects.note(f"{scope.path}{text_of(call.node.func)}", None, passed_on)
        self._flow.write(passed_on, how.begin.sources, scope, whole=True)
        for _ in self._flow.rounds(call.node, together(call.arguments), scope):
            elements = [item_given(self._reader.value(one, scope)) for one in how.over]
            if how.spreads:
                elements = [each for one in elements for each in one.items] or elements * MOST_ARGUMENTS
            if how.folds:
                elements = [Value(sources=self._flow.read(passed_on, scope), place=passed_on), *elements]
            returned = self._reader.calls.follow(how.function, elements, {}, scope) or Value()
            found |= returned.sources
            self._flow.write(passed_on, returned.sources, scope, whole=how.folds)
            self._reader.calls.change_by(how.function, call.sources, scope)
        return found


def _called_by(iterated: Any) -> Any:
    """Return the function that ``iter(function, sentinel)`` calls; the call itself is read as that function."""
    if type(iterated) is type(iter(int, 1)):
        return next((one for one in gc.get_referents(iterated) if callable(one)), None)
    return iterated if type(iterated) in (types.FunctionType, types.MethodType, functools.partial) else None


def _same(one: Value) -> tuple[Any, ...]:
    """Return a key that is the same for values of which the same is known; compares no objects of the user's."""
    inner = tuple(_same(each) for each in one.items)
    return id(one.target), one.sources, inner, one.place, tuple(map(id, one.also)), one.is_new


def data_of(over: Any) -> Sources:
    """Return the mark of what our batches give."""
    return frozenset((DATA,)) if is_ours(over) and not isinstance(over, nn.Cell) else frozenset()
