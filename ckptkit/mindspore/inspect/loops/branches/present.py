"""Tells whether a condition asks for something that exists and that checkpoints hold.

Guarantees: as for `ckptkit.mindspore.inspect.loops`, which says what is found. Main thread only.
"""

from __future__ import annotations

import ast
from typing import Any

from mindspore import nn

from ckptkit.mindspore.inspect.attributes import in_class
from ckptkit.mindspore.inspect.loops.containers import item_at
from ckptkit.mindspore.inspect.loops.expressions import Expressions
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.scope import Scope, Value


class Present:
    """Knows what is there already, so that the code that would make it does not run.

    Args:
        flow: Knows what the code writes.
        objects: Knows what checkpoints hold.
        expressions: Reads what conditions ask for.
    """

    def __init__(self, flow: Flow, objects: Objects, expressions: Expressions) -> None:
        self._flow = flow
        self._objects = objects
        self._expressions = expressions

    def holds(  # noqa: PLR0911 - one return per kind reads as the table that it is
        self, test: ast.expr, scope: Scope
    ) -> bool | None:
        """Return whether a condition holds in each iteration; None if that is not known.

        It is known of an object that checkpoints hold, where no code that was read puts another one in its place.
        """
        match test:
            case ast.BoolOp():
                found = [self.holds(one, scope) for one in test.values]
                decides = isinstance(test.op, ast.Or)
                return decides if decides in found else None if None in found else not decides
            case ast.UnaryOp(op=ast.Not(), operand=one):
                holds = self.holds(one, scope)
                return None if holds is None else not holds
            case ast.Compare(left=one, ops=[ast.Is() | ast.IsNot() as asks], comparators=[ast.Constant(None)]):
                return isinstance(asks, ast.IsNot) if self._is_there(one, scope) else None
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn() as asks], comparators=[one]):
                return isinstance(asks, ast.In) if self._has_item(one, key, scope) else None
            case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(str(name))]):
                asked = ast.copy_location(ast.Attribute(owner, name, ast.Load()), test)
                return True if self._is_there(asked, scope) else None
            case ast.Name() | ast.Attribute():
                return True if self._is_there(test, scope, is_true=True) else None
        return None

    def _is_there(self, asked: ast.expr, scope: Scope, *, is_true: bool = False) -> bool:
        """Return whether a variable or an attribute is known to be a stored object; ``is_true``, a true one."""
        is_alias = isinstance(asked, ast.Name) and scope.value(asked.id).place is not None  # of any item of a dict
        if is_alias or not isinstance(asked, (ast.Name, ast.Attribute)):
            return False
        value = self._now(asked, scope)
        one = value.target
        is_cell = isinstance(one, nn.Cell) and in_class(type(one), "__bool__") is in_class(nn.Cell, "__bool__")
        return (is_cell or not is_true) and not value.also and self._stays(asked, one, scope)

    def _has_item(self, asked: ast.expr, key: ast.expr, scope: Scope) -> bool:
        """Return whether a dict is known to have a stored object as the item of a constant key."""
        owner, key = self._now(asked, scope), scope.constant(key)
        is_one = isinstance(key, ast.Constant) and type(owner.target) is dict and not owner.also
        return is_one and self._stays(asked, item_at(owner.target, key)[0], scope)

    def _now(self, asked: ast.expr, scope: Scope) -> Value:
        with self._flow.quiet():
            return self._expressions.value(asked, scope)

    def _stays(self, asked: ast.expr, one: Any, scope: Scope) -> bool:
        """Return whether checkpoints hold an object, and nothing is put in its place."""
        is_stored = self._objects.is_named(one) or self._objects.is_in_cells(one)
        places = self._expressions.places(asked, scope)
        return is_stored and not any(each in self._flow.writes or self._objects.is_rebound(each) for each in places)
