"""Reads statements in the order in which they run, the body of each loop twice.

Guarantees: as for `ckptkit.mindspore.inspect.loops`, which says what is found. Main thread only.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

from ckptkit.mindspore.inspect.loops.expressions import Expressions
from ckptkit.mindspore.inspect.loops.flow import MARKS, Fills, Flow, Place, Scope, Sources, Value
from ckptkit.mindspore.inspect.loops.objects import Objects


class Statements:
    """Reads functions and modules, and tells ``flow`` what they read and write.

    Args:
        flow: Records it.
        objects: Knows the objects that code names.
        caches: What is only filled where it is missing is a cache, which code can make again, if this is not NONE. With
            WHOLE, so is whatever is assigned under any condition; code may ask for a size.

    Attributes:
        taken: Generators and iterators that a loop draws from, by id, each with its expression.
    """

    def __init__(self, flow: Flow, objects: Objects, *, caches: Fills = Fills.NONE) -> None:
        self._flow = flow
        self._objects = objects
        self._caches = caches
        self._expressions = Expressions(flow, objects, self._block)
        self.taken: dict[int, tuple[str, Any]] = self._expressions.taken

    def read(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Read the body of a function or module that is running."""
        self._expressions.begin()
        self._block(body, scope)

    def carried(self, is_told: Callable[[Place], bool] = lambda _: False) -> dict[tuple[str, str], list[str]]:
        """Return the names of what steers training, by the expression and type name of the object that holds them.

        Args:
            is_told: Whether a place is reported elsewhere; it is left out.
        """
        found: dict[tuple[str, str], list[str]] = {}
        for place in self._flow.steering:
            holder = self._objects.holder(place)
            if holder is not None and id(self._objects.at(place)) not in self.taken and not is_told(place):
                found.setdefault(holder, []).append(place.name)
        return found

    def _block(self, body: Iterable[ast.stmt], scope: Scope) -> list[Value]:
        """Read the statements; return what they return."""
        before, fills, returned = self._flow.control, self._flow.fills, []
        for one in body:
            if self._expressions.may_go_on():
                returned += self._statement(one, scope)
                if self._is_missing(one) and isinstance(one.body[-1], ast.Return):
                    self._flow.fills = Fills.ALL
        self._flow.control, self._flow.fills = before, fills
        return returned

    def _filling(self, body: Iterable[ast.stmt], scope: Scope, fills: Fills) -> list[Value]:
        """Read statements that run under a condition."""
        before, self._flow.fills = self._flow.fills, max(fills, self._flow.fills)
        returned = self._block(body, scope)
        self._flow.fills = before
        return returned

    def _is_missing(self, one: ast.stmt) -> TypeGuard[ast.If]:
        """Return whether the statement asks if something is there: ``is None``, ``not in``, ``not``."""
        if self._caches is Fills.NONE or not isinstance(one, ast.If):
            return False
        parts = one.test.values if isinstance(one.test, ast.BoolOp) else [one.test]
        return any(
            (isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not))
            or (isinstance(part, ast.Compare) and isinstance(part.ops[0], (ast.In, ast.NotIn, ast.Is, ast.IsNot)))
            for part in parts
        )

    def _statement(self, one: ast.stmt, scope: Scope) -> list[Value]:
        match one:
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(one, scope)
            case ast.If():
                return self._branches(one, scope)
            case ast.With() | ast.AsyncWith():
                for item in one.items:
                    self._expressions.value(item.context_expr, scope)
                return self._block(one.body, scope)
            case ast.Try():
                handled = [each for handler in one.handlers for each in handler.body]
                returned = self._block(one.body, scope) + self._filling(
                    handled, scope, Fills.ALL if self._caches is not Fills.NONE else Fills.NONE
                )
                return returned + self._block([*one.orelse, *one.finalbody], scope)
            case ast.Return() | ast.Break() | ast.Raise():
                return self._leaves(one, scope)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._assigns(one, scope)
            case ast.Expr():
                self._expressions.value(one.value, scope)
        return []

    def _leaves(self, one: ast.Return | ast.Break | ast.Raise, scope: Scope) -> list[Value]:
        """Record that what ends a loop that may save steers training."""
        ends = self._flow.innermost_saves() if isinstance(one, ast.Break) else not self._expressions.within_function
        if isinstance(one, ast.Raise) or ends:
            self._flow.steer(self._flow.control)
        if not isinstance(one, ast.Return):
            return []
        value = self._expressions.value(one.value, scope)
        return [value._replace(sources=value.sources | self._flow.control)]

    def _assigns(self, one: ast.Assign | ast.AnnAssign | ast.AugAssign, scope: Scope) -> None:
        if one.value is None:
            return
        before = self._expressions.value(one.target, scope) if isinstance(one, ast.AugAssign) else Value()
        value = self._expressions.value(one.value, scope)
        if isinstance(one, ast.AugAssign):
            value = Value(sources=before.sources | value.sources)
        for target in one.targets if isinstance(one, ast.Assign) else [one.target]:
            self._expressions.store(target, value, scope)

    def _branches(self, one: ast.If, scope: Scope) -> list[Value]:
        returned: list[Value] = []
        test = self._expressions.value(one.test, scope).sources - MARKS
        weaker = self._caches if self._caches is Fills.WHOLE else Fills.NONE
        fills = Fills.ALL if self._is_missing(one) else weaker
        leaves = any(isinstance(each, (ast.Return, ast.Continue)) for part in (one.body, one.orelse) for each in part)
        self._flow.either(
            test,
            lambda: returned.extend(self._filling(one.body, scope, fills)),
            lambda: returned.extend(self._filling(one.orelse, scope, weaker)),
            leaves=leaves,
        )
        return returned

    def _loop(self, one: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> list[Value]:
        returned: list[Value] = []
        decides: Sources = frozenset()
        self._flow.enter(one, scope)
        for over, element in self._iterations(one, scope):
            decides = over.sources - MARKS
            self._flow.control |= decides
            if isinstance(one, ast.While):
                if self._flow.innermost_saves():
                    self._flow.steer(self._flow.control)
            else:
                self._expressions.store(one.target, element, scope)
            returned += self._block(one.body, scope)
        self._flow.leave(decides)
        return returned + self._block(one.orelse, scope)

    def _iterations(self, one: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> Iterator[tuple[Value, Value]]:
        """Start each iteration; yield what it depends on, and what the loop takes."""
        if isinstance(one, ast.While):
            self._flow.ready()
            for _ in range(2):
                self._flow.iterate()
                yield self._expressions.value(one.test, scope), Value()
            return
        over = self._expressions.value(one.iter, scope)
        self._flow.ready()
        for element in 2 * self._expressions.elements(one, over, scope):
            self._flow.iterate()
            yield over, element
