"""Defines how the readers of calls and of iterations read the expressions in them.

Any thread.
"""

from __future__ import annotations

import ast
from typing import Protocol

from ckptkit.mindspore.inspect.loops.draws import Draws
from ckptkit.mindspore.inspect.loops.flow import Scope, Sources, Value


class CallReader(Protocol):
    """Reads the calls that Python makes where code shows none."""

    @property
    def draws(self) -> Draws:
        """Records what calls draw from."""
        ...

    def special(self, owner: Value, name: str, scope: Scope, *given: Value) -> Value:
        """Follow a special method of an object of the user's."""
        ...


class Reader(Protocol):
    """Reads expressions; a protocol, since expressions have calls and comprehensions in them."""

    @property
    def calls(self) -> CallReader:
        """Reads calls."""
        ...

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """Read an expression."""
        ...

    def change(self, node: ast.expr, sources: Sources, scope: Scope, *, whole: bool = False) -> None:
        """Record that an expression's object was changed in place, all of it (``whole``) or a part."""
        ...

    def store(self, node: ast.expr, value: Value, scope: Scope) -> None:
        """Read the assignment of ``value`` to the target ``node``."""
        ...
