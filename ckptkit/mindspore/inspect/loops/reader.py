"""Defines how the readers of calls and of iterations read the expressions in them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Protocol

from ckptkit.mindspore.inspect.loops.flow import Scope, Sources, Value

if TYPE_CHECKING:
    from ckptkit.mindspore.inspect.loops.calls import Calls


class Reader(Protocol):
    """Reads expressions; a protocol, since expressions have calls and comprehensions in them."""

    calls: Calls

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """Read an expression."""
        ...

    def change(self, node: ast.expr, sources: Sources, scope: Scope, *, whole: bool = False) -> None:
        """Record that an expression's object was changed in place, all of it (``whole``) or a part."""
        ...

    def store(self, node: ast.expr, value: Value, scope: Scope) -> None:
        """Read the assignment of ``value`` to the target ``node``."""
        ...
