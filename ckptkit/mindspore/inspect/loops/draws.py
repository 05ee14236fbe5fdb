"""Records the generators and iterators that a loop draws from.

Guarantees: calls nothing. Main thread only.
"""

from __future__ import annotations

import ast
import functools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from ckptkit.mindspore.inspect.attributes import owner_of
from ckptkit.mindspore.inspect.carried import GENERATORS
from ckptkit.mindspore.inspect.loops.call import Call
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.scope import RESTORED, Scope, Value

_TAKES = ("send", "__next__", "spawn")  # methods that advance their object
_GLOBALS = (random._inst, np.random.mtrand._rand)  # checkpoints hold their states


class Draws:
    """Records what is drawn from.

    Args:
        flow: Records what is read and written.
        objects: Knows the objects that code names.

    Attributes:
        taken: Generators and iterators that a loop draws from, by id, each with its expression.
    """

    def __init__(self, flow: Flow, objects: Objects) -> None:
        self._flow = flow
        self._objects = objects
        self.taken: dict[int, tuple[str, Any]] = {}

    def of(self, call: Call) -> None:
        """Record the generators and iterators that a call advances."""
        node, target = call.node, call.called.target
        takes = target is next or (isinstance(node.func, ast.Attribute) and call.name in _TAKES)
        if isinstance(node.func, ast.Attribute):
            self.draw(node.func.value, call.owner, call.scope, takes=takes)
        else:  # a method in a variable, such as draw = rng.random
            function = target.func if isinstance(target, functools.partial) else target
            self.draw(node.func, Value(owner_of(function), call.called.sources), call.scope, takes=takes)
        by_name = [(one.value, call.named[one.arg]) for one in node.keywords]  # f(**a, **b) has one value for two
        for one, value in [*zip(node.args, call.given, strict=True), *by_name]:
            self.draw(one, value, call.scope, takes=takes)

    def draw(self, node: ast.expr, value: Value, scope: Scope, *, takes: bool) -> None:
        """Record that a call advances a generator, or takes from an iterator that was not made of our batches."""
        target = value.target
        takes = takes and isinstance(target, (Iterator, np.random.SeedSequence)) and RESTORED not in value.sources
        in_reach = not isinstance(target, random.SystemRandom) and not any(target is one for one in _GLOBALS)
        draws = isinstance(target, GENERATORS) and in_reach
        if draws and self._flow.is_looping():
            self._objects.in_place.setdefault(id(target), f"{scope.path}{ast.unparse(node)}")
        if (takes or draws) and not self._objects.is_known(target) and self._flow.saves():
            path = self._objects.path_of(target, f"{scope.path}{ast.unparse(node)}")
            self.taken.setdefault(id(target), (path, target))
