"""Reads expressions: what their values are made of, and what the calls in them do.

Guarantees: as for `ckptkit.mindspore.inspect.loops`, which says what is found. Main thread only.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
from mindspore import nn

from ckptkit.mindspore.inspect.attributes import UNKNOWN, attribute, in_class
from ckptkit.mindspore.inspect.loops.calls import Calls
from ckptkit.mindspore.inspect.loops.effects import CALLED_BY, NO_DATA, is_ours
from ckptkit.mindspore.inspect.loops.flow import DATA, RESTORED, Flow, Place, Running, Scope, Sources, Value, together
from ckptkit.mindspore.inspect.loops.libraries import Libraries
from ckptkit.mindspore.inspect.loops.objects import Objects, item_of, items_of

NUMBER = "enumerate()"  # the name of its index

_MOST = 20_000  # expressions and statements read per frame
_ITEMS = ("get", "setdefault", "values", "items")  # methods that return what is in an object
_FEW = 8  # lists up to this length are read item by item


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
                sources = self._flow.read(scope.place(node.id), scope)
                sources |= value.sources | self._marked(value.target)
                return value._replace(sources=sources, place=value.place or scope.place(node.id))
            case ast.Yield():
                self.calls.yielded(self.value(node.value, scope))
                return Value()
            case ast.Attribute():
                return self._attribute(self.value(node.value, scope), node, scope)
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
                sources = owner.sources | index.sources | self.calls.special(owner, "__getitem__", scope, index).sources
                return Value(item_of(owner.target), sources)
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
                return self._comprehension(node, scope)
            case ast.Lambda():
                return Value()
            case _:
                parts = [self.value(one, scope) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
                is_one = isinstance(node, (ast.Await, ast.Starred)) and parts
                return Value(parts[0].target if is_one else UNKNOWN, together(parts))

    def test(self, node: ast.expr, scope: Scope) -> Value:
        """Read an expression that is asked whether it is true."""
        value = self.value(node, scope)
        name = "__len__" if in_class(type(value.target), "__bool__") is UNKNOWN else "__bool__"
        return value._replace(sources=value.sources | self.calls.special(value, name, scope).sources)

    def _either(self, parts: Sequence[Value], rest: Sequence[ast.expr], scope: Scope) -> Value:
        """Return what may be any of several values."""
        parts = [*parts, *(self.value(one, scope) for one in rest)]
        known = (one.target for one in parts if one.target is not UNKNOWN and one.target is not None)
        return Value(next(known, UNKNOWN), together(parts))

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
                return [Value(items=(Value(sources=frozenset((place,))), Value(sources=frozenset((DATA,)))))]
            return [Value(items=(Value(), Value(item_of(over.target), over.sources | _data_of(over.target))))]
        zipped = call.args if isinstance(call, ast.Call) and self.value(call.func, scope).target is zip else []
        if any(is_ours(self.value(each, scope).target) for each in zipped):
            return [Value(items=tuple(self._zipped(each, one, scope) for each in zipped))]
        sources = (over.sources - {RESTORED}) | _data_of(over.target) | self._iterated(over, scope)
        values = items_of(over.target, _FEW + 1) if isinstance(over.target, (list, tuple)) else []
        if len(values) <= _FEW:
            each = [Value(value, sources) for value in values if self._objects.is_plain(value)]
            for number, value in enumerate(values) if isinstance(one.target, ast.Name) else ():
                if self._objects.is_plain(value):
                    self._objects.path_of(value, f"{scope.path}{ast.unparse(one.iter)}[{number}]")
            if each:
                return each
        return [Value(item_of(over.target), sources)]

    def _iterated(self, over: Value, scope: Scope) -> Sources:
        """Follow the iteration over an object of the user's; return what its elements are made of."""
        return together([self.calls.special(over, name, scope) for name in ("__iter__", "__next__")])

    def _zipped(self, node: ast.expr, loop: ast.stmt, scope: Scope) -> Value:
        """Return what one argument of `zip` gives to a loop; a count starts anew with every start of the script."""
        value = self.value(node, scope)
        call = node if isinstance(node, ast.Call) and all(isinstance(one, ast.Constant) for one in node.args) else None
        function = self.value(call.func, scope).target if call is not None else None
        if any(function is one for one in (itertools.count, range)):
            place = Place(id(loop), NUMBER)
            self._objects.note(f"{scope.path}{ast.unparse(node)}", None, place)
            return Value(sources=frozenset((place,)))
        self.calls.draw(node, value, scope, takes=True)
        return Value(item_of(value.target), value.sources | _data_of(value.target))

    def store(self, node: ast.expr, value: Value, scope: Scope) -> None:
        """Read the assignment of ``value`` to the target ``node``."""
        match node:
            case ast.Name():
                scope.lasting.pop(node.id, None)  # the default stays as it is
                place = scope.place(node.id)
                self._objects.note(f"{scope.path}{node.id}", scope.value(node.id).target, place)
                self._objects.rebind(place, value.target)
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
                self._set(node, value, scope)
            case ast.Subscript():
                index = self.value(node.slice, scope)
                self.change(node.value, value.sources | index.sources, scope, whole=_is_whole(node.slice))
                item = self._item(node, scope)
                if item is not None:
                    self._flow.write(item, value.sources, scope, whole=True)

    def _set(self, node: ast.Attribute, value: Value, scope: Scope) -> None:
        owner = self.value(node.value, scope)
        match node:
            case ast.Attribute(ast.Attribute(ast.Name() as generator, "bit_generator"), "state"):
                self.store(generator, Value(UNKNOWN, value.sources), scope)  # its first seed no longer matters
        self.calls.special(owner, "__setattr__", scope, Value(node.attr), value)
        setter = in_class(type(owner.target), node.attr)
        if isinstance(setter, property) and setter.fset is not None and self._objects.is_plain(owner.target):
            self.calls.follow(types.MethodType(setter.fset, owner.target), [value], {}, scope)
        elif self._objects.has(owner.target, node.attr):
            self._objects.rebind(self._place_in(owner.target, node, scope), value.target)
            self._write(owner.target, node, value.sources, scope, whole=True)
        elif self._objects.is_of_library(owner.target):
            self.change(node.value, value.sources, scope)
        if isinstance(owner.target, (nn.Cell, ms.Parameter)) or self._objects.is_known(owner.target):
            self._flow.steer((value.sources | self._flow.control) - {Place(id(owner.target), node.attr)})

    def change(self, node: ast.expr, sources: Sources, scope: Scope, *, whole: bool = False) -> None:
        """Record that an expression's object was changed in place, all of it (``whole``) or a part."""
        with self._flow.quiet():
            value = self.value(node, scope)
        if isinstance(value.target, ms.Parameter):
            self._flow.steer(sources | self._flow.control)
        elif isinstance(node, ast.Name):
            for place in {scope.place(node.id), value.place or scope.place(node.id)}:  # the same object by two names
                self._flow.write(place, sources, scope, whole=whole)
        elif isinstance(node, ast.Attribute):
            with self._flow.quiet():
                owner = self.value(node.value, scope).target
            if self._objects.has(owner, node.attr):
                self._write(owner, node, sources, scope, whole=whole)
        elif isinstance(node, ast.Subscript):
            self.change(node.value, sources, scope)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ITEMS:
            self.change(node.func.value, sources, scope)

    def _attribute(self, owner: Value, node: ast.Attribute, scope: Scope) -> Value:
        if node.attr in NO_DATA:
            owner = owner._replace(sources=owner.sources - {DATA})
        if owner.target is UNKNOWN:
            return Value(UNKNOWN, owner.sources)
        target = attribute(owner.target, node.attr)
        sources = owner.sources | self._marked(target)
        if self._objects.has(owner.target, node.attr):
            sources |= self._flow.read(self._place_in(owner.target, node, scope), scope)
            if isinstance(inspect.getattr_static(type(owner.target), node.attr, None), property):
                found = self.calls.follow(target, [], {}, scope)
                sources |= found.sources if found is not None else frozenset()
                target = UNKNOWN
            elif target is UNKNOWN:
                sources |= self.calls.special(owner, "__getattr__", scope, Value(node.attr)).sources
        has = self._objects.has(owner.target, node.attr)
        return Value(target, sources, place=Place(id(owner.target), node.attr) if has else None)

    def aliases(self, node: ast.AST, scope: Scope) -> set[Place]:
        """Return the places that variables of an expression were taken from."""
        names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
        own = {scope.place(name) for name in names}
        return {place for name in names if (place := scope.value(name).place) is not None} - own

    def places(  # noqa: PLR0911 - one return per kind reads as the table that it is
        self, node: ast.AST, scope: Scope
    ) -> set[Place]:
        """Return the variables and attributes whose value, size or items an expression is; reads none of them."""
        match node:
            case ast.Name():
                return {scope.place(node.id), scope.value(node.id).place or scope.place(node.id)}
            case ast.NamedExpr():
                return self.places(node.target, scope)
            case ast.Attribute() if node.attr not in NO_DATA:
                with self._flow.quiet():
                    return {Place(id(self.value(node.value, scope).target), node.attr)}
            case ast.Attribute() | ast.Subscript():
                return self.places(node.value, scope)
            case ast.Call(func=ast.Name(id="len"), args=[one]):
                return self.places(one, scope)
            case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(name)]):
                with self._flow.quiet():
                    return {Place(id(self.value(owner, scope).target), str(name))}
            case ast.Tuple():
                return set().union(*(self.places(one, scope) for one in node.elts))
        return set()

    def _item(self, node: ast.Subscript, scope: Scope) -> Place | None:
        """Return the place of an item with a constant index; None for any other."""
        if not isinstance(node.slice, ast.Constant):
            return None
        if isinstance(node.value, ast.Name):
            place = scope.place(node.value.id)
        elif isinstance(node.value, ast.Attribute):
            with self._flow.quiet():
                place = Place(id(self.value(node.value.value, scope).target), node.value.attr)
        else:
            return None
        return Place(place.within, f"{place.name}[{node.slice.value!r}]")

    def _write(self, owner: Any, node: ast.Attribute, sources: Sources, scope: Scope, *, whole: bool) -> None:
        place = self._place_in(owner, node, scope)
        self._objects.changed(owner, place)
        self._flow.write(place, sources, scope, whole=whole)

    def _place_in(self, owner: Any, node: ast.Attribute, scope: Scope) -> Place:
        return self._objects.attribute_of(owner, f"{scope.path}{ast.unparse(node.value)}", node.attr)

    def _marked(self, target: Any) -> Sources:
        """Return the mark of a value that checkpoints hold; after a ckptkit object, a save may follow."""
        ours = is_ours(target) and not isinstance(target, nn.Cell)
        if ours:
            self._flow.may_save()
        if isinstance(target, ms.Parameter):
            return frozenset((RESTORED, DATA))
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
        return Value(UNKNOWN, together(parts) | called)

    def _comprehension(self, node: Any, scope: Scope) -> Value:
        """Read it as the loop that it is."""
        found: Sources = frozenset()
        overs = [self.value(one.iter, scope) for one in node.generators[:1]]
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for _ in self._flow.rounds(node, together(overs), scope):
            for one in node.generators:
                over = self.value(one.iter, scope)
                sources = over.sources | self._iterated(over, scope)
                self.store(one.target, Value(item_of(over.target), sources), scope)
                for test in one.ifs:
                    self.test(test, scope)
            found |= together([self.value(one, scope) for one in parts])
        return Value(UNKNOWN, found)


def _is_whole(index: ast.expr) -> bool:
    """Return whether it is ``[:]`` or ``[...]``."""
    if isinstance(index, ast.Slice):
        return index.lower is None and index.upper is None and index.step is None
    return isinstance(index, ast.Constant) and index.value is ...


def _data_of(over: Any) -> Sources:
    """Return the mark of what our batches give."""
    return frozenset((DATA,)) if is_ours(over) and not isinstance(over, nn.Cell) else frozenset()
