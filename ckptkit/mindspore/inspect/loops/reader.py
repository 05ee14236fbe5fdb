"""Defines how the readers of calls and of iterations read the expressions in them.

Any thread.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Protocol

from ckptkit.mindspore.inspect.loops.flow import Scope, Sources, Value


class CallReader(Protocol):
    """Reads the calls that Python makes where code shows none."""

    @property
    def taken(self) -> Mapping[int, tuple[str, Any]]:
        """Generators and iterators that a loop draws from, by id, each with its expression."""
        ...

    def special(self, owner: Value, name: str, scope: Scope, *given: Value) -> Value:
        """Follow a special method of an object of the user's."""
        ...

    def draw(self, node: ast.expr, value: Value, scope: Scope, *, takes: bool) -> None:
        """Record that a call advances a generator, or takes from an iterator."""
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
