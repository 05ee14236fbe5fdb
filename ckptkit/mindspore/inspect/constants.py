"""Finds attributes that callbacks and loops set while training goes on, and that a compiled graph has as constants.

Guarantees: reads code and attributes; runs no code of the user's. An object that code does not show (what a call
returned, the items of a list) counts as any cell that has an attribute of that name. Any thread.
"""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import mindspore as ms
from mindspore import nn
from mindspore.ops import Primitive

from ckptkit.mindspore.inspect.attributes import UNKNOWN, is_users, names_in, own_attributes
from ckptkit.mindspore.inspect.bytecode import Use, assignments, assignments_in_loops
from ckptkit.mindspore.inspect.carried import BARE
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.frames import locals_of, loops_ahead, running_frames

_AT_BEGIN = ("__init__", "__new__", "begin", "on_train_begin")  # each start sets the same


def constants_in_callbacks(callbacks: Iterable[Any], cells: Iterable[nn.Cell]) -> Iterator[Finding]:
    """Findings of each attribute once; for GRAPH mode only, since PYNATIVE follows what is set.

    Args:
        callbacks: Of the training.
        cells: That it trains.
    """
    sets = (
        (type(one).__name__, use) for one in callbacks for hook in _hooks(one) for use in assignments(hook, is_users)
    )
    return _constants(sets, cells)


def constants_in_loops(cells: Iterable[nn.Cell]) -> Iterator[Finding]:
    """As `constants_in_callbacks`, of the loops that are running or come next in the code that is running."""
    sets = (
        ("the loop", use)
        for _, frame in running_frames()
        for use in assignments_in_loops(frame.f_code, loops_ahead(frame), (locals_of(frame), frame.f_globals), is_users)
    )
    return _constants(sets, cells)


def _constants(sets: Iterable[tuple[str, Use]], cells: Iterable[nn.Cell]) -> Iterator[Finding]:
    assigned = list(sets)
    names = {use.sets for _, use in assigned} - BARE
    having: defaultdict[str, list[tuple[str, nn.Cell]]] = defaultdict(list)
    every: dict[int, tuple[str, nn.Cell]] = {}
    for path, cell in (found for root in cells for found in root.cells_and_names()):
        every.setdefault(id(cell), (path, cell))
    for path, cell in every.values() if names else ():
        for name in names & own_attributes(cell).keys():
            having[name].append((path or "the train cell", cell))
    reported = set()
    for who, use in assigned:
        for path, cell in having.get(use.sets, ()):
            is_set = use.target is UNKNOWN or use.target is cell
            if is_set and (path, use.sets) not in reported and _is_constant(cell, use.sets):
                reported.add((path, use.sets))
                yield _finding(f"{who}: {use.where}", f"{path}.{use.sets}")


def _hooks(callback: Any) -> Iterator[Any]:
    for kind in type(callback).__mro__:
        for name, function in vars(kind).items() if is_users(kind.__module__) else ():
            if type(function) is types.FunctionType and name not in _AT_BEGIN:
                yield types.MethodType(function, callback)
    for name, function in own_attributes(callback).items():  # of a LambdaCallback
        if type(function) is types.FunctionType and name not in _AT_BEGIN and is_users(function.__module__):
            yield function


def _is_constant(cell: nn.Cell, name: str) -> bool:
    """Whether it is a plain attribute that the code of the cell reads."""
    own = own_attributes(cell)
    if isinstance(own[name], (nn.Cell, ms.Parameter, Primitive)):
        return False
    functions = (one for kind in type(cell).__mro__ if kind is not nn.Cell for one in vars(kind).items())
    return any(
        type(one) is types.FunctionType and called not in _AT_BEGIN and name in names_in(one.__code__)
        for called, one in functions
    )


def _finding(where: str, attribute: str) -> Finding:
    return Finding(
        "unseen",
        where,
        f"sets {attribute}, which a compiled graph has as it was at its first call: a resumed run compiles again, with "
        "what it is by then",
        "Make it a Parameter with requires_grad=False that is set by ops.assign, or train in PYNATIVE mode",
        certain=False,
    )
