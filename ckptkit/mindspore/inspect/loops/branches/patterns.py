"""Reads the patterns of ``match`` statements.

Guarantees: as for `ckptkit.mindspore.inspect.loops`, which says what is found. Main thread only.
"""

from __future__ import annotations

import ast

from ckptkit.mindspore.inspect.loops.iteration import Reader
from ckptkit.mindspore.inspect.loops.scope import Scope, Sources, Value


def matches(pattern: ast.pattern, subject: Value, scope: Scope, reader: Reader) -> Sources:
    """Bind the names of a pattern; return what its values are made of."""
    names = [getattr(pattern, name, None) for name in ("name", "rest")]
    inner = [each for each in ast.iter_child_nodes(pattern) if isinstance(each, ast.pattern)]
    values = [each for each in ast.iter_child_nodes(pattern) if isinstance(each, ast.expr)]
    sources: Sources = frozenset().union(*(reader.value(each, scope).sources for each in values))
    part = Value(sources=subject.sources)
    by_item = isinstance(pattern, ast.MatchSequence) and len(subject.items) == len(inner)
    whole = isinstance(pattern, (ast.MatchAs, ast.MatchOr))
    for number, each in enumerate(inner):
        sources |= matches(each, subject.items[number] if by_item else subject if whole else part, scope, reader)
    for name in names:
        if name is not None:
            target = ast.copy_location(ast.Name(name, ast.Store()), pattern)
            reader.store(target, subject if whole else part, scope)
    return sources
