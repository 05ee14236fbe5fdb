"""Reads expressions: what their values are made of, and what the calls in them do.

Guarantees: as for `ckptkit.mindspore.inspect.loops`, which says what is found. Main thread only.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.mindspore.inspect.attributes import UNKNOWN, attribute, in_class
from ckptkit.mindspore.inspect.loops.calling.call import kept, parts_of
from ckptkit.mindspore.inspect.loops.calling.calls import Calls
from ckptkit.mindspore.inspect.loops.containers import VIEWS, choices, is_taken, is_whole, item_at
from ckptkit.mindspore.inspect.loops.effects import CALLED_BY, NO_DATA, is_ours
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.iteration import Iteration
from ckptkit.mindspore.inspect.loops.objects import Objects, decides, is_arguments, of_owner, place_in
from ckptkit.mindspore.inspect.loops.outside.texts import computed, part_of, put_together
from ckptkit.mindspore.inspect.loops.scope import (
    DATA,
    RESTORED,
    WEIGHTS,
    CachePlace,
    Place,
    Running,
    Scope,
    Sources,
    Value,
    inlined,
    of_cached,
    together,
)
from ckptkit.mindspore.inspect.loops.source import text_of
from ckptkit.mindspore.inspect.loops.unread.libraries import Libraries

_MOST = 20_000  # expressions and statements read per frame
_ITEMS = ("get", "setdefault", "values", "items", "find", "getroot")  # methods that return what is in an object


class Expressions:
    """Reads expressions.

    Args:
        flow: Records what is read and written.
        objects: Knows the objects that code names.
        libraries: Knows which functions are not the user's.
        running: The running functions with what they have now; None for those that are read by themselves.
        block: Reads the statements of a function and returns what they return.

    Attributes:
        calls: Reads the calls in them.
        iteration: Reads what loops take.
        left: How many expressions and statements will still be read.
    """

    def __init__(
        self,
        flow: Flow,
        objects: Objects,
        libraries: Libraries,
        running: Mapping[types.CodeType, Running | None],
        block: Callable[[Sequence[ast.stmt], Scope], list[Value]],
    ) -> None:
        self._flow = flow
        self._objects = objects
        self.left = 0
        self.iteration = Iteration(flow, objects, self, running)
        self.calls = Calls(flow, objects, self, block, libraries=libraries, running=running)

    def begin(self, most: int = _MOST) -> None:
        """Start with other code, of which ``most`` expressions and statements are read."""
        self.left = most

    def may_go_on(self) -> bool:
        """Count a statement or an expression; return whether it is still to be read."""
        self.left -= 1
        return self.left > 0

    def value(  # noqa: PLR0911, PLR0912 - one return per kind reads as the table that it is
        self, node: ast.expr | None, scope: Scope
    ) -> Value:
        """Read an expression."""
        if node is None or not self.may_go_on():
            return Value()
        match node:
            case ast.Name():
                value = scope.value(node.id)
                self._objects.note(f"{scope.path}{node.id}", value.target, scope.place(node.id))
                place = value.place or scope.place(node.id)
                sources = self._flow.read(scope.place(node.id), scope)
                sources |= value.sources | self._marked(value.target)
                sources |= self._contents(value.target, f"{scope.path}{node.id}", scope, place)
                items = tuple(one._replace(sources=one.sources | (sources - value.sources)) for one in value.items)
                value = value._replace(sources=sources, place=place, items=items)
                return self._objects.stand_ins.with_held(value, is_variable=True)
            case ast.Yield() | ast.YieldFrom():
                self.calls.yielded(self.value(node.value, scope))
                return Value()
            case ast.Attribute():
                return self.attribute(self.value(node.value, scope), node, scope)
            case ast.Await():
                value = self.value(node.value, scope)
                return value._replace(place=None, sources=value.sources | self.calls.beside.told)
            case ast.Call():
                return self.calls.value(node, scope)
            case ast.NamedExpr():
                value = self.value(node.value, scope)
                self.store(node.target, value, scope)
                return value
            case ast.Subscript():
                item = self._item(node, scope)
                is_written = item is not None and self._flow.is_written(item)
                with self._flow.quiet() if is_written else contextlib.nullcontext():
                    owner = self.value(node.value, scope)
                index = self.value(node.slice, scope)
                if is_arguments(owner.target) and isinstance(index.target, str):
                    return self.attribute(owner, _as_attribute(node, index.target), scope)
                return self._subscript(owner, index, node, scope)
            case ast.Constant(str(text)):
                return Value(text)
            case ast.UnaryOp(op=ast.Not()):
                return Value(UNKNOWN, self.test(node.operand, scope).sources)
            case ast.Compare() | ast.BinOp() | ast.UnaryOp():
                return self._operator(node, scope)
            case ast.IfExp():
                test = self.test(node.test, scope)
                return self._either([test._replace(target=UNKNOWN)], [node.body, node.orelse], scope)
            case ast.BoolOp():
                *first, last = node.values
                return self._either([self.test(one, scope) for one in first], [last], scope)
            case ast.Tuple() | ast.List():
                items = tuple(self.value(one, scope) for one in node.elts)
                return Value(UNKNOWN, together(items), items)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self.iteration.comprehension(node, scope)
            case ast.JoinedStr():
                parts = [self.value(one, scope) for one in node.values]
                return Value(put_together(parts, node.values), together(parts))
            case ast.FormattedValue(conversion=-1, format_spec=None):
                return self.value(node.value, scope)
            case ast.Lambda():
                return inlined(node, scope, self.value)
            case _:
                parts = [self.value(one, scope) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
                is_one = isinstance(node, ast.Starred) and parts
                return parts[0]._replace(place=None) if is_one else Value(UNKNOWN, together(parts))

    def _subscript(self, owner: Value, index: Value, node: ast.Subscript, scope: Scope) -> Value:
        found, missing = self.calls.special(owner, "__getitem__", scope, index), self.calls.missing(owner, node, scope)
        asked = self._flow.asked(self._item(node, scope), owner.place)
        sources = together((owner, index, found)) | missing | asked
        if found.target is not UNKNOWN:
            return found._replace(sources=sources)
        at = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if owner.target is UNKNOWN and type(at) is int and -len(owner.items) <= at < len(owner.items):
            return owner.items[at]
        if isinstance(node.value, ast.Dict):  # a table of functions
            target, also = choices(self.value(one, scope).target for one in node.value.values)
            return Value(target, sources, also=also)
        is_filled = self._objects.stand_ins.is_filled(owner.place)  # so that one item does not stand for others
        target, also = item_at(owner.target, scope.constant(node.slice) if is_filled else node.slice)
        place = None if isinstance(node.slice, ast.Slice) and isinstance(owner.target, (list, tuple)) else owner.place
        return self._objects.stand_ins.with_held(Value(target, sources, place=place, also=also))

    def _contents(self, target: Any, path: str, scope: Scope, by: Place) -> Sources:
        """Read what is in an object of the user's that is itself a list or the like, or that other names change."""
        place = self._objects.contents(target, path)
        places = [*([place] if place is not None else []), *self._objects.changed_elsewhere(target, by)]
        return frozenset().union(*(self._flow.read(one, scope) for one in places))

    def test(self, node: ast.expr, scope: Scope) -> Value:
        """Read an expression that is asked whether it is true."""
        value = self.value(node, scope)
        name = "__len__" if in_class(type(value.target), "__bool__") is UNKNOWN else "__bool__"
        return value._replace(sources=value.sources | self.calls.special(value, name, scope).sources)

    def _either(self, parts: Sequence[Value], rest: Sequence[ast.expr], scope: Scope) -> Value:
        """Return what may be any of several values."""
        parts = [*parts, *(self.value(one, scope) for one in rest)]
        target, also = choices(one.target for one in parts if one.target is not UNKNOWN)
        return Value(UNKNOWN if target is None else target, together(parts), also=also)

    def store(self, node: ast.expr, value: Value, scope: Scope) -> None:
        """Read the assignment of ``value`` to the target ``node``."""
        match node:
            case ast.Name():
                scope.lasting.pop(node.id, None)  # the default stays as it is
                place = scope.place(node.id)
                self._objects.note(f"{scope.path}{node.id}", scope.value(node.id).target, place)
                self._objects.rebind(place, value)
                self._flow.write(place, decides(value), scope, whole=True)
                is_made = self._objects.stand_ins.has(value.target)
                now = scope.assigned(node.id, value, node.lineno, is_made=is_made)
                self.calls.draws.outside.meet(value.target, now.target)
                if value.is_new and now.target is UNKNOWN:
                    now = now._replace(target=scope.value(node.id).target)  # does the same as the one before
                if DATA in value.sources and is_taken(now.target):
                    self._flow.take(place)
                scope.known[node.id] = value if is_ours(now.target) else now  # reading ours would count as a save
            case ast.Tuple() | ast.List():
                for each, part in zip(node.elts, parts_of(value, len(node.elts)), strict=True):
                    self.store(each, part, scope)
            case ast.Starred():
                self.store(node.value, Value(UNKNOWN, value.sources), scope)
            case ast.Attribute():
                self._set(node, value, scope)
            case ast.Subscript():
                index = self.value(node.slice, scope)
                with self._flow.quiet():
                    owner = self.value(node.value, scope)
                if is_arguments(owner.target):
                    self._set(_as_attribute(node, str(index.target)), value, scope)
                    return
                self._set_layer(node, value, scope)
                self.calls.draws.outside.set_item(owner, index, value.sources, scope)
                self.change(node.value, value.sources | index.sources, scope, whole=is_whole(node.slice))
                if (item := self._item(node, scope)) is not None:
                    self._flow.write(item, value.sources, scope, whole=True)

    def _set(self, node: ast.Attribute, value: Value, scope: Scope) -> None:
        owner = self.value(node.value, scope)
        match node:
            case ast.Attribute(ast.Attribute(ast.Name() as generator, "bit_generator"), "state"):
                self.store(generator, Value(UNKNOWN, value.sources), scope)  # its first seed no longer matters
        for one in (owner.target, *owner.also):
            self._set_of(owner._replace(target=one, also=()), node, value, scope)

    def _set_of(self, owner: Value, node: ast.Attribute, value: Value, scope: Scope) -> None:
        """Read the assignment of ``value`` to the attribute of one object."""
        self.calls.special(owner, "__setattr__", scope, Value(node.attr), value)
        setter = in_class(type(owner.target), node.attr)
        if isinstance(setter, property) and setter.fset is not None and self._objects.is_plain(owner.target):
            self.calls.follow(types.MethodType(setter.fset, owner.target), [value], {}, scope)
        elif self._objects.has(owner.target, node.attr):
            self._objects.stand_ins.give(owner.target, node.attr, value.target)
            self.calls.draws.outside.meet(value.target, attribute(owner.target, node.attr))
            self._objects.rebind(self._place_in(owner.target, node, scope), value)
            self._write(owner.target, node, value.sources, scope, whole=True)
        elif owner.target is UNKNOWN or self._objects.is_of_library(owner.target):
            self.change(node.value, value.sources, scope)
        if isinstance(owner.target, (nn.Cell, ms.Parameter)) or self._objects.stores(owner.target, node.attr):
            self._flow.steer((value.sources | self._flow.control) - {place_in(owner.target, node.attr)})
            self.calls.late(node, scope)

    def _set_layer(self, node: ast.Subscript, value: Value, scope: Scope) -> None:
        """Read ``cells[1] = other``, which other cells call."""
        with self._flow.quiet():
            owner = self.value(node.value, scope).target
        if isinstance(owner, nn.Cell) and (value.is_new or isinstance(value.target, nn.Cell)):
            place = self._objects.reworks(owner, f"{scope.path}{text_of(node.value)}")
            self._flow.write(place, value.sources, scope, whole=False)

    def change(self, node: ast.expr, sources: Sources, scope: Scope, *, whole: bool = False) -> None:
        """Record that an expression's object was changed in place, all of it (``whole``) or a part."""
        with self._flow.quiet():
            value = self.value(node, scope)
        items = self._objects.change(value, f"{scope.path}{text_of(node)}") if self._flow.is_looping() else None
        if items is not None:
            self._flow.write(items, sources, scope, whole=whole)
        if isinstance(value.target, ms.Parameter):
            self._flow.steer(sources | self._flow.control)
        elif isinstance(node, ast.Name):
            contents = self._objects.contents(value.target, f"{scope.path}{node.id}")
            if contents is not None:
                self._flow.write(contents, sources, scope, whole=whole)
            for place in {scope.place(node.id), value.place or scope.place(node.id)}:  # the same object by two names
                self._flow.write(place, sources, scope, whole=whole)
        elif isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr in VIEWS):
            self.change(node.value, sources, scope)
        elif isinstance(node, ast.Attribute):
            with self._flow.quiet():
                owner = self.value(node.value, scope).target
            if self._objects.has(owner, node.attr):
                self._write(owner, node, sources, scope, whole=whole)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ITEMS:
            self.change(node.func.value, sources, scope)
        elif isinstance(node, ast.Call) and value.place is not None:
            self._flow.write(value.place, sources, scope, whole=whole)

    def attribute(self, owner: Value, node: ast.Attribute, scope: Scope) -> Value:
        """Read an attribute of what ``owner`` was read to be."""
        if node.attr in NO_DATA:
            owner = owner._replace(sources=owner.sources - {DATA})
        if owner.target is UNKNOWN:
            return of_cached(owner, owner.sources)
        if owner.also:
            first, *others = [
                self.attribute(Value(one, owner.sources), node, scope) for one in (owner.target, *owner.also)
            ]
            also = tuple(one.target for one in others if one.target is not UNKNOWN)
            return first._replace(sources=together([first, *others]), also=also)
        target = part_of(owner.target, node.attr)
        if node.attr in VIEWS and isinstance(owner.target, np.ndarray):
            return owner
        counted = self.calls.draws.outside.count(owner.target, node.attr, scope)
        sources = of_owner(owner) | self._marked(target) | counted
        if self._objects.stores(owner.target, node.attr):
            sources |= {RESTORED}
        place = self._place_in(owner.target, node, scope) if self._objects.has(owner.target, node.attr) else None
        if place is not None:
            sources |= self._flow.read(place, scope) | self._contents(target, text_of(node), scope, place)
            kind = self._objects.class_with(owner.target, node.attr)
            if kind is not None:
                of_class = self._objects.attribute_of(kind, f"{scope.path}{kind.__name__}", node.attr)
                sources |= self._flow.read(of_class, scope)
            maker = in_class(type(owner.target), node.attr)
            if isinstance(maker, (property, functools.cached_property)) and type(target) is types.MethodType:
                with self._flow.once(not isinstance(maker, property)):
                    found = self.calls.follow(target, [], {}, scope) or Value()
                sources |= found.sources | kept(self._flow, self._objects, maker, place, found, scope=scope)
                target = found.target
                if isinstance(found.place, CachePlace):
                    place = found.place
                elif not isinstance(maker, property):
                    place = CachePlace(*place)
            elif target is UNKNOWN:
                found = self.calls.special(owner, "__getattr__", scope, Value(node.attr))
                target, sources = found.target, sources | found.sources
        if isinstance(owner.place, CachePlace) and (place is None or isinstance(target, (nn.Cell, ms.Parameter))):
            place = owner.place
        return self._objects.stand_ins.with_held(Value(target, sources, place=place))

    def places(  # noqa: PLR0911 - one return per kind reads as the table that it is
        self, node: ast.AST, scope: Scope
    ) -> set[Place]:
        """Return the variables and attributes whose value, size or items an expression gives, without reading them."""
        match node:
            case ast.Name():
                return {scope.place(node.id), scope.value(node.id).place or scope.place(node.id)}
            case ast.NamedExpr():
                return self.places(node.target, scope)
            case ast.Attribute() if node.attr not in NO_DATA:
                with self._flow.quiet():
                    return {place_in(self.value(node.value, scope).target, node.attr)}
            case ast.Attribute() | ast.Subscript():
                return self.places(node.value, scope)
            case ast.Call(func=ast.Name(id="len"), args=[one]):
                return self.places(one, scope)
            case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(name)]):
                with self._flow.quiet():
                    return {place_in(self.value(owner, scope).target, str(name))}
            case ast.Tuple():
                return set().union(*(self.places(one, scope) for one in node.elts))
        return set()

    def _item(self, node: ast.Subscript, scope: Scope) -> Place | None:
        """Return the place of an item with a constant index; None for any other."""
        if not isinstance(node.slice, ast.Constant):
            return None
        place = self._item(node.value, scope) if isinstance(node.value, ast.Subscript) else None
        if isinstance(node.value, ast.Name):
            place = scope.place(node.value.id)
        elif isinstance(node.value, ast.Attribute):
            with self._flow.quiet():
                place = place_in(self.value(node.value.value, scope).target, node.value.attr)
        return None if place is None else Place(place.within, f"{place.name}[{node.slice.value!r}]")

    def _write(self, owner: Any, node: ast.Attribute, sources: Sources, scope: Scope, *, whole: bool) -> None:
        place = self._place_in(owner, node, scope)
        self._objects.changed(owner, place)
        self._flow.write(place, sources, scope, whole=whole)

    def _place_in(self, owner: Any, node: ast.Attribute, scope: Scope) -> Place:
        return self._objects.attribute_of(owner, f"{scope.path}{text_of(node.value)}", node.attr)

    def _marked(self, target: Any) -> Sources:
        """Return the mark of a value that checkpoints hold; after a ckptkit object, a save may follow."""
        ours = is_ours(target) and not isinstance(target, nn.Cell)
        if ours:
            self._flow.may_save()
        if isinstance(target, ms.Parameter):
            return frozenset((RESTORED, DATA, *((WEIGHTS,) if target.size > 1 else ())))
        stored = ours or isinstance(target, nn.Cell) or self._objects.is_known(target)
        return frozenset((RESTORED,)) if stored else frozenset()

    def _operator(self, node: ast.Compare | ast.BinOp | ast.UnaryOp, scope: Scope) -> Value:
        kind = type(node.ops[0] if isinstance(node, ast.Compare) else node.op)
        parts = [self.value(one, scope) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
        name = CALLED_BY.get(kind)
        if name is None:
            return Value(UNKNOWN, together(parts))
        owner, *others = reversed(parts) if name == "__contains__" else parts
        called = self.calls.special(owner, name, scope, *others).sources
        if isinstance(node, ast.BinOp):
            called |= self.calls.special(parts[1], f"__r{name[2:]}", scope, parts[0]).sources
        return Value(computed(node, parts), together(parts) | called)


def _as_attribute(node: ast.Subscript, name: str) -> ast.Attribute:
    """Return the attribute that an item is of what stands for the arguments of callbacks."""
    return ast.copy_location(ast.Attribute(node.value, name, ast.Load()), node)
