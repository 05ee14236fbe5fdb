"""Reads statements in the order in which they run, the body of each loop twice.

Guarantees: as for `ckptkit.mindspore.inspect.loops`, which says what is found. Main thread only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ckptkit.mindspore.inspect.loops.expressions import Expressions
from ckptkit.mindspore.inspect.loops.flow import MARKS, Flow, Scope, Sources, Value
from ckptkit.mindspore.inspect.loops.objects import Objects


class Statements:
    """Reads functions and modules, and tells ``flow`` what they read and write.

    Args:
        flow: Records it.
        objects: Knows the objects that code names.

    Attributes:
        taken: Generators and iterators that a loop draws from, by id, each with its expression.
    """

    def __init__(self, flow: Flow, objects: Objects) -> None:
        self._flow = flow
        self._expressions = Expressions(flow, objects, self._block)
        self.taken: dict[int, tuple[str, Any]] = self._expressions.taken

    def read(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Read the body of a function or module that is running."""
        self._expressions.begin()
        self._block(body, scope)

    def _block(self, body: Iterable[ast.stmt], scope: Scope) -> list[Value]:
        """Read the statements; return what they return."""
        before, returned = self._flow.control, []
        for one in body:
            if self._expressions.may_go_on():
                returned += self._statement(one, scope)
        self._flow.control = before
        return returned

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
                return self._block([*one.body, *handled, *one.orelse, *one.finalbody], scope)
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
        leaves = any(isinstance(each, (ast.Return, ast.Continue)) for part in (one.body, one.orelse) for each in part)
        self._flow.either(
            test,
            lambda: returned.extend(self._block(one.body, scope)),
            lambda: returned.extend(self._block(one.orelse, scope)),
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
