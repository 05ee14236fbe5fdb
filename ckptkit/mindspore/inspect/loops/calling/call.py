"""Defines `Call`, the parts of a call that were read, and tells what a call gives if that is known.

Guarantees: all functions are pure, but for `kept`, which tells ``flow`` what a cache keeps. Main thread only.
"""

from __future__ import annotations

import ast
import collections
import copy
import functools
import heapq
import itertools
import random
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor, nn

from ckptkit.mindspore.inspect.attributes import CACHED, UNKNOWN, OneOf, met
from ckptkit.mindspore.inspect.carried_attributes import GENERATORS
from ckptkit.mindspore.inspect.code.bytecode import functions_of
from ckptkit.mindspore.inspect.contents import below
from ckptkit.mindspore.inspect.loops.containers import FEW, VIEW_METHODS, choices, item_of, items_of
from ckptkit.mindspore.inspect.loops.effects import (
    SEEDS,
    asked_cells,
    asked_parameters,
    asks_a_clock,
    changes,
    gives_contents,
    is_draw,
    is_ours,
    loads,
    makes_new,
    makes_optimizer,
    writes_state,
)
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.objects import Objects, is_arguments, is_trained
from ckptkit.mindspore.inspect.loops.scope import (
    DATA,
    FUNCTIONS,
    MARKS,
    RESTORED,
    TIMED,
    Bound,
    CachePlace,
    Made,
    Place,
    Scope,
    Sources,
    Trains,
    Value,
    of_cached,
    together,
)
from ckptkit.mindspore.inspect.loops.source import text_of

DRAWN = "draw"  # by a random operator
HASHED = "hash"  # of texts
PASSED_ON = "what it passes on"  # from one call of its function to the next
_FOLDS = OneOf(functools.reduce, itertools.accumulate)
MAPS = OneOf(map, itertools.starmap, functools.reduce, itertools.accumulate)

MOST_ARGUMENTS = 8  # of a function whose arguments are not known
_MOST_ITEMS = 1_000  # of a dict
_FUNCTIONS = (*FUNCTIONS, types.MethodType, functools.partial, nn.Cell)
# These give the same items, or some of them; so do the methods of generators.
_SAME_ITEMS = OneOf(list, tuple, sorted, reversed, iter, filter, copy.copy, set, frozenset, collections.deque)
_SOME_ITEMS = ("choices", "sample", "permutation", "permuted")
_ONE_ITEM = OneOf(min, max, next, heapq.heappop, heapq.heapreplace, heapq.heappushpop)
_GIVES_ITSELF = ("set_train", "set_grad", "to_float", "recompute", "add_flags")  # methods of cells
_OWN_ITEM = ("get", "setdefault", "get_nowait", "pop", "popleft")  # methods that give an item of their container


class Call(NamedTuple):
    """Holds the parts of a call: what is called, of which owner, and with what.

    Attributes:
        nodes: The expressions of ``given``; several of them may come from one that is starred.
    """

    node: ast.Call
    scope: Scope
    name: str
    owner: Value
    called: Value
    nodes: Sequence[ast.expr]
    given: Sequence[Value]
    named: Mapping[str | None, Value]

    @property
    def arguments(self) -> list[Value]:
        """All arguments."""
        return [*self.given, *self.named.values()]

    @property
    def cache(self) -> Any:
        """The function with `functools.cache` that is called, also as a method; None for others."""
        target = self.called.target
        inner = target.__func__ if type(target) is types.MethodType else target
        return inner if type(inner) is CACHED else None

    @property
    def sources(self) -> Sources:
        """What the call is made of."""
        return self.called.sources | together(self.arguments)


class Mapped(NamedTuple):
    """Says how a call runs a function for each item.

    Attributes:
        function: What runs.
        over: The expressions for the items.
        begin: What it gets the first time instead of its own last result.
        folds: Whether it gets its own last result, before the item.
        spreads: Whether each item is all of its arguments.
    """

    function: Any
    over: Sequence[ast.expr]
    begin: Value
    folds: bool
    spreads: bool


def mapping_of(call: Call) -> Mapped:
    """Return how one of `MAPS` runs its function."""
    called, given, over = call.called.target, [*call.given], [*call.nodes]
    at = 1 if called is itertools.accumulate else 0
    function = given.pop(at).target if len(given) > at else call.named.get("func", Value()).target
    over = [one for number, one in enumerate(over) if number != at]
    folds = called in _FOLDS
    begin = call.named.get("initial") or (given[1] if folds and len(given) > 1 else Value())
    return Mapped(function, over[:1] if folds else over, begin, folds, called is itertools.starmap)


def name_asked(call: Call) -> str | None:
    """Return the name of the attribute that a call asks for, if it is known."""
    by_name = len(call.given) > 1 and (call.called.target is getattr or call.called.target is setattr)
    of_arguments = call.name == "get" and bool(call.given) and is_arguments(call.owner.target)
    asked = call.given[1].target if by_name else call.given[0].target if of_arguments else None
    return asked if type(asked) is str else None


def is_generator(owner: Value) -> bool:
    """Return whether a method belongs to a random generator, or is a function of a module of them."""
    return isinstance(owner.target, GENERATORS) or any(owner.target is one for one in (random, np.random))


def marks_of(call: Call, *, computes: bool) -> Sources:
    """Return how the result of a call is marked; ``computes`` says that the call computes for the training."""
    called, owner = call.called.target, call.owner.target
    marks = {
        RESTORED: loads(call.name),
        TIMED: asks_a_clock(called, owner),
        DATA: computes or (is_draw(called) and not call.owner.is_new),  # made with it, it gives the same each time
    }
    return frozenset(mark for mark, holds in marks.items() if holds)


def is_seeded(call: Call) -> bool:
    """Return whether the call gives a state to a generator that was made without a seed."""
    given = [*call.node.args, *(one.value for one in call.node.keywords)]
    gives = any(text_of(one) != "None" for one in given)  # seed(None) asks the operating system
    return call.name in SEEDS and gives and any(one.name == DRAWN for one in call.owner.sources)


def counts_anew(call: Call) -> bool:
    """Return whether it is an `itertools.islice` of our batches, whose count no checkpoint has."""
    if call.called.target is not itertools.islice or not call.given or not is_ours(call.given[0].target):
        return False
    stop = call.given[1:3][-1:]  # islice(batches, stop) or islice(batches, start, stop, ...)
    unlimited = any(isinstance(one, ast.Constant) and one.value is None for one in call.node.args[1:3][-1:])
    return bool(stop) and not unlimited and RESTORED not in stop[0].sources


def one_of(over: Value) -> tuple[Any, tuple[Any, ...]]:
    """Return an item of ``over`` that stands for all of them, and the other items that may have state."""
    if over.target is UNKNOWN and over.items:
        return choices(each for one in over.items for each in (one.target, *one.also))
    if over.also:
        found = [item_of(one) for one in (over.target, *over.also)]
        return choices(each for first, others in found for each in (first, *others))
    return item_of(over.target)


def item_given(over: Value) -> Value:
    """Return what a function gets that is called for each item."""
    target, also = one_of(over)
    return Value(target, over.sources | {DATA}, place=over.place, also=also)


def changes_stored(call: Call, is_named: bool) -> bool:
    """Return whether the call changes what checkpoints hold; ``is_named`` says that they hold its object."""
    return writes_state(call.called.target, call.name) or (
        is_named and (call.name == "step" or changes(call.name, call.owner.target))
    )


def given_to(call: Call, at: int) -> list[Value]:
    """Return what a function gets that is the argument ``at`` of a call: items of the further ones, or each cell.

    What is compared by a ``key`` are the items of the first argument, or of the list that is sorted.
    """
    if call.arguments[at] is call.named.get("key"):
        return [item_given(call.given[0] if call.given else call.owner)]
    cells = asked_cells(call.owner.target, call.name) if call.name == "apply" else None
    if cells is None:
        return [item_given(one) for one in call.given[at + 1 :]]
    target, also = choices(cells)
    return [Value(target, also=also)]


def rearranged(  # noqa: PLR0911 - one return per kind reads as the table that it is
    call: Call, sources: Sources
) -> Value | None:
    """Return what a call gives of the items of a container, in another container or order; None for others.

    Args:
        call: Of code that is not the user's.
        sources: What it is made of.
    """
    owner, called = call.owner.target, call.called.target
    if call.name == "original_args" and isinstance(owner, types.SimpleNamespace):  # stands for a `RunContext`
        return Value(owner.original_args, sources)
    if isinstance(owner, dict) and call.name in ("values", "items"):
        return _of_dict(call, sources)
    if len(call.given) > 1 and any(called is one for one in (min, max)):
        target, also = choices(each for one in call.given for each in (one.target, *one.also))
        return Value(target, sources, also=also)
    some = call.name in _SOME_ITEMS and is_generator(call.owner)
    if call.given and (some or called in _SAME_ITEMS):
        one = call.given[-1 if called is filter else 0]
        return Value(one.target, sources, items=one.items, also=one.also)
    if called is type and len(call.given) == 1:
        one = call.given[0]
        return Value(type(one.target) if one.target is not UNKNOWN else UNKNOWN, sources)
    if called is itertools.chain:
        data = frozenset((DATA,)) if any(is_ours(one.target) for one in call.given) else frozenset()
        return Value([each for one in call.given for each in items_of(one.target, FEW)], sources | data)
    if type(called) is weakref.ref:
        return Value(met(called()), sources)
    asked = asked_parameters(owner, call.name)
    asked = asked if asked is not None or call.name == "apply" else asked_cells(owner, call.name)
    return of_cached(call.owner, sources)._replace(target=asked) if asked is not None else None


def _of_dict(call: Call, sources: Sources) -> Value:
    target, also = item_of(call.owner.target)
    item = Value(target, sources, place=call.owner.place, also=also)
    if call.name == "values":
        return item._replace(target=items_of(call.owner.target, _MOST_ITEMS), also=())
    return Value(UNKNOWN, sources, items=(Value(sources=sources, items=(Value(sources=sources), item)),))


def item_or_view(call: Call, sources: Sources) -> Value:
    """Return the result of a call of which only its object and name are known, such as an item or a view."""
    owner, called = call.owner, call.called.target
    is_one = called in _ONE_ITEM or (call.name == "choice" and is_generator(owner))
    if call.name in _OWN_ITEM or (is_one and call.given):  # the item changes with its container
        over = owner if call.name in _OWN_ITEM else call.given[0]
        target, also = one_of(over)
        place = over.place
        if target is UNKNOWN and call.name == "setdefault" and place is not None and len(call.given) > 1:
            target, place = call.given[1].target, CachePlace(*place)  # it stays there
        return Value(target, sources, place=place, also=also)
    if called is functools.partial and call.given:
        function, *given = call.given
        return Value(Bound(function.target, given, call.named), sources)
    if owner.is_new and call.name in _GIVES_ITSELF:
        return Value(owner.target, sources, is_new=True)
    if makes_new(called, call.name):
        given = [one.target for one in call.arguments]
        functions = () if isinstance(called, type) else (one for one in given if isinstance(one, _FUNCTIONS))
        of = Trains() if makes_optimizer(called, given) else next(map(Made, functions), UNKNOWN)
        # Which parameters it is the gradient of is no value of theirs.
        return Value(of, sources - MARKS if isinstance(of, Made) else sources, is_new=True)
    if call.name in VIEW_METHODS and isinstance(owner.target, (np.ndarray, Tensor)):
        return Value(owner.target, sources, place=owner.place)
    return of_cached(owner, sources) if gives_contents(call.name) else Value(UNKNOWN, sources)


def kept(flow: Flow, objects: Objects, cache: Any, place: Place, found: Value, *, scope: Scope) -> Sources:
    """Return what a cache keeps from one call to the next of what training changes.

    Args:
        flow: Records what is read and written.
        objects: Knows the objects that code names.
        cache: What was called: what `functools.cache` makes, or a `functools.cached_property`; others keep nothing.
        place: Where it keeps its values.
        found: What the call gave.
        scope: Of the call.
    """
    is_cache = type(cache) is CACHED or isinstance(cache, functools.cached_property)
    if DATA not in found.sources or not is_cache or not _uses_trained(cache):
        return frozenset()
    sources = flow.read(place, scope)
    flow.write(place, found.sources, scope, whole=False)
    objects.rebind(place, Value(is_new=True))
    return sources


def _uses_trained(cache: Any) -> bool:
    """Return whether a function names a cell that is trained, or none with parameters, so that it may reach one."""
    function = cache.func if isinstance(cache, functools.cached_property) else cache
    cells = [cell for one, _ in functions_of(function) for _, cell in below(one) if isinstance(cell, nn.Cell)]
    cells = [one for one in cells if nn.Cell.parameters_dict(one)]  # a loss function says nothing of the others
    return not cells or any(map(is_trained, cells))


def makes_cells(one: ast.If, test: Value, scope: Scope, read: Callable[[ast.expr, Scope], Value]) -> bool:
    """Return whether a condition on the progress of training decides whether a cell is made."""
    if RESTORED not in test.sources:
        return False
    calls = [each.func for part in one.body for each in ast.walk(part) if isinstance(each, ast.Call)]
    named = (each for each in calls if isinstance(each, ast.Name) or isinstance(getattr(each, "value", None), ast.Name))
    made = [read(each, scope).target for each in named]
    return any(isinstance(each, type) and issubclass(each, nn.Cell) for each in made)


def parts_of(value: Value, count: int) -> list[Value]:
    """Return the parts of a tuple that is taken apart."""
    if len(value.items) == count:
        return [*value.items]
    tuples = [one for one in (value.target, *value.also) if type(one) in (tuple, list) and len(one) == count]
    if not tuples:
        return [of_cached(value, value.sources)] * count
    found = [choices([one[number] for one in tuples]) for number in range(count)]
    return [Value(target, value.sources, place=value.place, also=also) for target, also in found]
