"""Finds plain state that code carries from one call to the next: `construct`, hooks of cells, callbacks.

Guarantees: as for `ckptkit.mindspore.inspect.loops`, except that it calls ``cells_and_names()`` of cells. Does not
report attributes of cells and callbacks themselves, which others do, nor what code fills only where it is missing and
can make again. Does not guarantee that training depends on what is reported: an argument that is assigned over its
default, a hook that returns early, a list that is emptied and filled, or a log method of a cell can be reported without
cause. Main thread only.
"""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import mindspore as ms
from mindspore import nn
from mindspore.train import LearningRateScheduler

from ckptkit.mindspore.inspect.alike import Alike
from ckptkit.mindspore.inspect.attributes import in_class, is_users, own_attributes
from ckptkit.mindspore.inspect.carried import BARE, GENERATORS, carried
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.loops.flow import Fills, Flow, Place, Scope
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.statements import Statements
from ckptkit.mindspore.inspect.sequential import cells_of

_HOOKS = re.compile(r"_(lazy_)?(forward|backward)_(pre_)?hook(_with_kwargs)?")
_OF_CALLBACKS = re.compile(r"on_(train|eval)_(step|epoch)?_?(begin|end)|(step|epoch)_(begin|end)|end")
_AT_BEGIN = ("begin", "on_train_begin")  # every start runs these alike
# What a call returns decides what is trained, and a checkpoint may follow it.
_RETURNS = ast.parse("while True:\n    set_data(call())\n    saved")
_ONLY_ACTS = ast.parse("while True:\n    call()\n    saved")
_CODE = compile(_RETURNS, "<calls>", "exec")


class _Saved:
    """Stands for a ckptkit object, after which a save may follow."""


def find_in_calls(cells: Iterable[nn.Cell], known: Iterable[Any]) -> Iterator[Finding]:
    """Yield what the code of cells carries; in GRAPH mode only their ``__call__``, since a graph runs no Python code.

    Args:
        cells: What is trained. Of alike cells in them, the code is read once.
        known: Objects that checkpoints hold by name.
    """
    objects, alike, read = Objects(known), Alike(), set[Hashable]()
    fix = (
        "Make it a Parameter that ops.assign changes, or keep it in an object that is given by name, with "
        "ckptkit.attributes()"
    )
    for name, cell, _ in (found for root in cells for found in cells_of(root)):
        path = f"{name or 'the train cell'} ({type(cell).__name__})"
        calls = list(_calls_of(cell))
        if calls and (len(calls) > 1 or alike.key(cell) not in read):
            read.add(alike.key(cell))
            statements = _read(calls, path, _RETURNS, objects.anew(cell), Fills.WHOLE)
            yield from _found(statements, _told_of(cell), fix)


def find_in_callbacks(callbacks: Iterable[Any], known: Iterable[Any]) -> Iterator[Finding]:
    """Yield what callbacks carry outside of themselves: in modules, classes and closures.

    Args:
        callbacks: The callbacks of the training; what they hold is reported elsewhere.
        known: Objects that checkpoints hold by name.
    """
    known = tuple(known)
    objects = Objects(known)
    for one in callbacks:
        tree = _RETURNS if isinstance(one, LearningRateScheduler) else _ONLY_ACTS
        calls = [] if any(one is each for each in known) else list(_called_in(one))
        fix = (
            "Keep it in an object with state_dict() and load_state_dict(), and give that by name: "
            f"stateful={{'{type(one).__name__.lower()}': it}}"
        )
        statements = _read(calls, type(one).__name__, tree, objects.anew(), Fills.ALL)
        yield from _found(statements, _held_by(one), fix)


_Told = Callable[[Place, Any], bool]
_NOWHERE = Place(0, "")


def _told_of(cell: nn.Cell) -> _Told:
    """Return a function that tells whether another finding names a place or generator, or a checkpoint holds it."""
    own = own_attributes(cell)
    names = {*BARE, *(own.get("_buffers") or ()), *(name for name, _ in carried(cell))}
    drawn = {id(one) for one in own.values() if isinstance(one, GENERATORS)}
    return lambda place, one: (place.within == id(cell) and place.name in names) or id(one) in drawn


def _held_by(callback: Any) -> _Told:
    """Return a function that tells whether the callback holds it: its attributes are named as a whole."""
    held = Objects([callback])
    return lambda place, one: held.has(place.within) or held.is_known(one)


def _read(
    calls: Iterable[Callable[..., Any]], path: str, tree: ast.Module, objects: Objects, caches: Fills
) -> Statements:
    """Read functions as a loop that calls each of them, twice: the second pass knows what is carried."""
    statements = Statements(Flow(caches), objects, caches=caches)
    for _ in range(2):
        for call in calls:
            statements.read(tree.body, Scope(_CODE, {}, {"call": call, "saved": _SAVED}, f"{path}: "))
    return statements


def _found(statements: Statements, is_told: _Told, fix: str) -> Iterator[Finding]:
    """Yield what was found, except for what is reported elsewhere."""
    for path, one in statements.taken.values():
        if not is_told(_NOWHERE, one):
            why = "training draws from it, and how far would be in no checkpoint"
            draw = "Draw from np.random, or give it by name"
            yield Finding("unseen", f"{path} ({type(one).__name__})", why, draw, certain=False)
    for (path, kind), names in statements.carried(lambda place: is_told(place, None)).items():
        why = f"training carries {', '.join(names)} from one call to the next, and no checkpoint would have it"
        yield Finding("unseen", f"{path} ({kind})" if kind else path, why, fix, certain=False)


def _calls_of(cell: nn.Cell) -> Iterator[Callable[..., Any]]:
    in_graph = ms.get_context("mode") == ms.GRAPH_MODE
    for name in ("__call__",) if in_graph else ("__call__", "construct"):
        function = in_class(type(cell), name)
        if type(function) is types.FunctionType and is_users(function.__module__):
            yield types.MethodType(function, cell)
    if in_graph:
        return
    for name, hooks in own_attributes(cell).items():
        if isinstance(hooks, dict) and _HOOKS.fullmatch(name):
            yield from dict.values(hooks)


def _called_in(callback: Any) -> Iterator[Callable[..., Any]]:
    for kind in type(callback).__mro__:
        for name, function in vars(kind).items() if is_users(kind.__module__) else ():
            if type(function) is types.FunctionType and _OF_CALLBACKS.fullmatch(name) and name not in _AT_BEGIN:
                yield types.MethodType(function, callback)
    if not is_users(type(callback).__module__):  # MindSpore's callbacks hold functions of the user's
        yield from (
            one
            for name, one in own_attributes(callback).items()
            if callable(one) and name not in _AT_BEGIN and not isinstance(one, (nn.Cell, type))
        )


_SAVED = _Saved()
