"""Records what calls depend on besides their arguments: generators, iterators, counts and caches.

Guarantees: calls nothing. Main thread only.
"""

from __future__ import annotations

import ast
import functools
import io
import itertools
import os
import random
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator
from typing import Any

import numpy as np
from mindspore import nn

from ckptkit.mindspore.inspect.attributes import OneOf, owner_of
from ckptkit.mindspore.inspect.carried_attributes import GENERATORS
from ckptkit.mindspore.inspect.cells import Operators
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.loops.calling.call import DRAWN, HASHED, Call, counts_anew, kept
from ckptkit.mindspore.inspect.loops.containers import choices, results_in
from ckptkit.mindspore.inspect.loops.effects import draws_out_of_reach, is_ours
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.outside import Outside
from ckptkit.mindspore.inspect.loops.scope import DATA, RESTORED, CachePlace, Place, Scope, Sources, Value
from ckptkit.mindspore.inspect.loops.source import text_of

CACHE = "what it keeps"
TAKEN = "the number of batches taken"  # by islice()
BEFORE = "the batches before"
# These keep what they were given: a batch, all of them, or whether one of them was the last to be dropped.
_KEEPS = OneOf(itertools.pairwise, itertools.tee, itertools.cycle, itertools.dropwhile, itertools.compress)
_TAKES = ("send", "__next__", "spawn", "asend", "__anext__")  # methods that advance their object
_ADVANCE = ("read", "readline", "readlines", "readinto")  # a file that stays open
_POSITION = "position"  # of a file
_FROM_THE_START = ("0", "os.SEEK_SET", "io.SEEK_SET")
_TAKEN_FROM = (Iterator, AsyncIterator, Coroutine, np.random.SeedSequence)
_GLOBALS = OneOf(random._inst, np.random.mtrand._rand)  # checkpoints hold their states


class Draws:
    """Records what calls draw from.

    Args:
        flow: Records what is read and written.
        objects: Knows the objects that code names.

    Attributes:
        outside: Records what is read and written outside of the process.
        operators: Examines cells that the code calls and that nobody trains.
        read_again: ``id`` of the data that a checkpoint positions by reading them again, and of their contents.
        trained_by: The compiled functions that change parameters, in order.
        taken: Generators and iterators that a loop draws from, by id, each with its expression.
    """

    def __init__(self, flow: Flow, objects: Objects) -> None:
        self._flow = flow
        self._objects = objects
        self.outside = Outside(flow, objects)
        self.operators = Operators()
        self.read_again: Collection[int] = ()
        self._inside: dict[int, tuple[Finding, ...]] = {}  # by the cell
        self.trained_by: dict[str, None] = {}
        self._compiled: dict[int, tuple[list[Finding], bool]] = {}  # by the function
        self.taken: dict[int, tuple[str, Any]] = {}

    def of(self, call: Call) -> None:
        """Record the generators and iterators that a call advances."""
        node, target = call.node, call.called.target
        position = _position_of(call)
        names = (*_TAKES, *(_ADVANCE if position is not None else ()))
        takes = target is next or target is anext or (isinstance(node.func, ast.Attribute) and call.name in names)
        if position is not None and _is_sought(call):
            self._flow.write(position, call.sources, call.scope, whole=True)
        takes = takes and (position is None or not self._flow.is_written(position))
        if isinstance(node.func, ast.Attribute):
            self.draw(node.func.value, call.owner, call.scope, takes=takes)
        else:  # a method in a variable, such as draw = rng.random
            function = target.func if isinstance(target, functools.partial) else target
            self.draw(node.func, Value(owner_of(function), call.called.sources), call.scope, takes=takes)
        by_name = [(one.value, call.named[one.arg]) for one in node.keywords]  # f(**a, **b) has one value for two
        for one, value in [*zip(call.nodes, call.given, strict=True), *by_name]:
            self.draw(one, value, call.scope, takes=takes)

    def draw(self, node: ast.expr, value: Value, scope: Scope, *, takes: bool) -> None:
        """Record that a call advances a generator, or takes from an iterator that was not made of our batches."""
        target = value.target
        if value.is_new and self._flow.is_once:
            return  # what a cache computes with a generator of its own is the same each time
        takes = takes and isinstance(target, _TAKEN_FROM) and RESTORED not in value.sources
        in_reach = not isinstance(target, random.SystemRandom) and target not in _GLOBALS
        draws = isinstance(target, GENERATORS) and in_reach
        if draws and self._flow.is_looping():
            self._objects.in_place.setdefault(id(target), f"{scope.path}{text_of(node)}")
        if self._flow.is_beside and id(target) in self.read_again:
            return  # the thread belongs to the data, and reading them again repeats what it draws
        if (takes or draws) and not self._objects.is_known(target) and self._flow.saves_between():
            path = self._objects.path_of(target, f"{scope.path}{text_of(node)}")
            self.taken.setdefault(id(target), (path, target))

    def sources_of(self, call: Call) -> Sources:
        """Return what the result of a call of a library is made of besides its arguments."""
        counted = self._noted(call, TAKEN, "") if counts_anew(call) else frozenset()  # starts anew with every start
        name = draws_out_of_reach(call.called.target, empty=not call.node.args and not call.node.keywords)
        drawn = self._noted(call, DRAWN, f" ({name})") if name else frozenset()
        drawn |= self._in_cell(call) if not name else frozenset()
        drawn |= self._noted(call, HASHED, " (of texts)") if _hashes_texts(call) else frozenset()
        is_kept = call.called.target in _KEEPS and any(map(_is_of_batches, call.arguments))
        kept = self._noted(call, BEFORE, "") if is_kept else frozenset()
        return counted | drawn | kept | self._sought(call)

    def _sought(self, call: Call) -> Sources:
        """Return what decides from which place of a file a call reads, if that was sought in this iteration."""
        position = _position_of(call)
        is_sought = position is not None and call.name in _ADVANCE and self._flow.is_written(position)
        return self._flow.read(position, call.scope) if position is not None and is_sought else frozenset()

    def _in_cell(self, call: Call) -> Sources:
        """Return the draws in a called cell that is not trained, such as a teacher or an augmentation."""
        cell = call.called.target
        if not isinstance(cell, nn.Cell):
            return frozenset()
        path = f"{call.scope.path}{text_of(call.node.func)}"
        if id(cell) not in self._inside:
            self._inside[id(cell)] = tuple(self.operators.inside(cell, path))
        if not self._inside[id(cell)]:
            return frozenset()
        place = Place(id(cell), DRAWN)
        self._objects.note(path, self._inside[id(cell)], place)
        return frozenset((place,))

    def in_graph(self, call: Call, function: Any) -> Sources:
        """Return the draws that a compiled function, or one of a gradient, makes, and that are inexact only there."""
        path = f"{call.scope.path}{text_of(call.node.func)}()"
        if id(function) not in self._compiled:
            self._compiled[id(function)] = self.operators.in_graph(function, path)
        found, trains = self._compiled[id(function)]
        if trains or function is not call.called.target:
            self.trained_by[path] = None
        if not found:
            return frozenset()
        place = Place(id(function), DRAWN)
        self._objects.note(path, found, place)
        if trains:
            self._flow.steer(frozenset((place,)))
        return frozenset((place,))

    def bound(self, target: Any, name: str, one: Any, scope: Scope) -> Value:
        """Read an argument that a `functools.partial` holds from one call to the next."""
        place = Place(id(target), name)
        self._objects.note(f"{scope.path}{name} of functools.partial()", one, place)
        return Value(one, self._flow.read(place, scope), place=place)

    def kept(self, call: Call, found: Value) -> Value:
        """Return the result ``found`` of a call with what `functools.cache` keeps from one call to the next."""
        cache = call.cache
        if cache is None:
            return found
        place = CachePlace(id(cache), CACHE)
        self._objects.note(f"{call.scope.path}{text_of(call.node.func)}()", cache, place)
        self._objects.rebind(place, Value(is_new=True))  # what is in it is changed
        sources = self._flow.read(place, call.scope)
        sources |= kept(self._flow, self._objects, cache, place, found, scope=call.scope)
        if made := results_in(cache):
            target, also = choices(made)
            return Value(target, found.sources | sources, place=place, also=also)
        is_new = found.is_new and not isinstance(found.target, GENERATORS)  # it lasts
        items = tuple(one._replace(place=one.place or place) for one in found.items)
        sources |= found.sources
        return found._replace(sources=sources, items=items, place=found.place or place, is_new=is_new)

    def _noted(self, call: Call, kind: str, more: str) -> Sources:
        place = Place(id(call.node), kind)
        self._objects.note(f"{call.scope.path}{text_of(call.node.func)}(){more}", None, place)
        return frozenset((place,))


def _hashes_texts(call: Call) -> bool:
    """Return whether it hashes texts, such as those of a batch, for which each process has a seed of its own."""
    if call.called.target is not hash or os.environ.get("PYTHONHASHSEED", "random") not in ("", "random"):
        return False
    if all(isinstance(node, ast.Call) and text_of(node.func) == "int" for node in call.nodes):
        return False
    held = [one.value for node in call.nodes for one in ast.walk(node) if isinstance(one, ast.Constant)]
    held += [value.target for value in call.given]
    return any(isinstance(one, (str, bytes)) for one in held) or any(map(_is_of_batches, call.given))


def _is_sought(call: Call) -> bool:
    """Return whether it sets the position of a file, wherever the file was before."""
    whence = [text_of(one) for one in (*call.node.args[1:], *(one.value for one in call.node.keywords))]
    return call.name == "seek" and len(call.node.args) > 0 and all(one in _FROM_THE_START for one in whence)


def _position_of(call: Call) -> Place | None:
    """Return the place of the position of the file whose method is called; None if it is no file's."""
    return Place(id(call.owner.target), _POSITION) if isinstance(call.owner.target, io.IOBase) else None


def _is_of_batches(value: Value) -> bool:
    """Return whether it gives our batches, or what was made of them."""
    return is_ours(value.target) or DATA in value.sources
