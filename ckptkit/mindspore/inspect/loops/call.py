"""Defines `Call`, the parts of a call that were read, and tells what calls give whose result is known.

Pure values, any thread.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from mindspore import Tensor

from ckptkit.mindspore.inspect.attributes import UNKNOWN
from ckptkit.mindspore.inspect.loops.containers import FEW, VIEW_METHODS, item_of, items_of
from ckptkit.mindspore.inspect.loops.effects import SEEDS, asked_parameters
from ckptkit.mindspore.inspect.loops.flow import DATA, Scope, Sources, Value, together

DRAWN = "draw"  # by a random operator

_MOST_ITEMS = 1_000  # of a dict
_SAME_ITEMS = (list, tuple, sorted, reversed, iter, filter, copy.copy)  # these give the same items


class Call(NamedTuple):
    """Holds the parts of a call: what is called, of which owner, and with what."""

    node: ast.Call
    scope: Scope
    name: str
    owner: Value
    called: Value
    given: Sequence[Value]
    named: Mapping[str | None, Value]

    @property
    def arguments(self) -> list[Value]:
        """All arguments."""
        return [*self.given, *self.named.values()]

    @property
    def sources(self) -> Sources:
        """What the call is made of."""
        return self.called.sources | together(self.arguments)


def is_seeded(call: Call) -> bool:
    """Return whether the call gives a state to a generator that was made without a seed."""
    given = [*call.node.args, *(one.value for one in call.node.keywords)]
    gives = any(ast.unparse(one) != "None" for one in given)  # seed(None) asks the operating system
    return call.name in SEEDS and gives and any(one.name == DRAWN for one in call.owner.sources)


def item_given(over: Value) -> Value:
    """Return what a function gets that is called for each item."""
    target, also = item_of(over.target)
    return Value(target, over.sources | {DATA}, place=over.place, also=also)


def rearranged(call: Call, sources: Sources) -> Value | None:
    """Return what a call gives of the items of a container, in another container or order; None for others.

    Args:
        call: Of code that is not the user's.
        sources: What it is made of.
    """
    owner, called = call.owner.target, call.called.target
    if isinstance(owner, dict) and call.name in ("values", "items"):
        target, also = item_of(owner)
        item = Value(target, sources, place=call.owner.place, also=also)
        if call.name == "values":
            return item._replace(target=items_of(owner, _MOST_ITEMS), also=())
        return Value(UNKNOWN, sources, items=(Value(sources=sources, items=(Value(sources=sources), item)),))
    if call.given and any(called is one for one in _SAME_ITEMS):
        one = call.given[-1 if called is filter else 0]
        return Value(one.target, sources, items=one.items, also=one.also)
    if called is type and len(call.given) == 1:
        one = call.given[0]
        return Value(type(one.target) if one.target is not UNKNOWN else UNKNOWN, sources)
    if called is itertools.chain:
        return Value([each for one in call.given for each in items_of(one.target, FEW)], sources)
    parameters = asked_parameters(owner, call.name)
    return Value(parameters, sources) if parameters is not None else None


def item_or_view(call: Call, sources: Sources) -> Value:
    """Return the result of a call of which only its object and name are known, such as an item or a view."""
    owner = call.owner
    if call.name in ("get", "setdefault"):  # the item changes with its container
        target, also = item_of(owner.target)
        return Value(target, sources, place=owner.place, also=also)
    is_view = call.name in VIEW_METHODS and isinstance(owner.target, (np.ndarray, Tensor))
    return Value(owner.target, sources, place=owner.place) if is_view else Value(UNKNOWN, sources)
