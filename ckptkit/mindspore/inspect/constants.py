"""Finds attributes that callbacks and loops set during training although a compiled graph or a save depends on them.

A compiled graph treats plain attributes as constants, and a cell whose optimizer is another one cannot be saved.

Guarantees: reads code and attributes; runs no user code. Where code does not show which object is assigned to (the
result of a call, an item of a list), any cell with an attribute of that name counts. Any thread.
"""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import mindspore as ms
from mindspore import nn
from mindspore.ops import Primitive

from ckptkit.mindspore.inspect.attributes import UNKNOWN, own_attributes
from ckptkit.mindspore.inspect.carried_attributes import BARE
from ckptkit.mindspore.inspect.code.bytecode import Use, assignments, assignments_in_loops, has_compiled_method
from ckptkit.mindspore.inspect.code.names import names_in
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.frames import locals_of, loops_ahead, running_frames
from ckptkit.mindspore.inspect.sequential import registered_in
from ckptkit.mindspore.inspect.users import is_users
from ckptkit.mindspore.parameters.roles import optimizers_of

_AT_BEGIN = ("__init__", "__new__", "begin", "on_train_begin")  # every start sets these alike


def constants_in_callbacks(callbacks: Iterable[Any], cells: Iterable[nn.Cell], *, in_graph: bool) -> Iterator[Finding]:
    """Yield one finding per attribute.

    Args:
        callbacks: The callbacks of the training.
        cells: The cells that it trains.
        in_graph: Whether that is in GRAPH mode. In PYNATIVE, only cells with compiled methods, such as optimizers, do
            not see the new values.
    """
    sets = (
        (type(one).__name__, use) for one in callbacks for hook in _hooks(one) for use in assignments(hook, is_users)
    )
    return _constants(sets, cells, in_graph=in_graph)


def constants_in_loops(cells: Iterable[nn.Cell], *, in_graph: bool) -> Iterator[Finding]:
    """Do as `constants_in_callbacks` for loops that are running, or come next in the running code."""
    sets = (
        ("the loop", use)
        for _, frame in running_frames()
        for use in assignments_in_loops(frame.f_code, loops_ahead(frame), (locals_of(frame), frame.f_globals), is_users)
    )
    return _constants(sets, cells, in_graph=in_graph)


def _constants(sets: Iterable[tuple[str, Use]], cells: Iterable[nn.Cell], *, in_graph: bool) -> Iterator[Finding]:
    assigned = list(sets)
    names = {use.sets for _, use in assigned} - BARE
    if not names:
        return
    cells = [*cells]
    yield from _exchanged(assigned, cells)
    having: defaultdict[str, list[tuple[str, nn.Cell]]] = defaultdict(list)
    every: dict[int, tuple[str, nn.Cell]] = {}
    is_compiled: dict[type, bool] = {}
    for path, cell in (found for root in cells for found in root.cells_and_names()):
        kind = type(cell)
        if kind not in is_compiled:
            is_compiled[kind] = in_graph or has_compiled_method(cell)
        if is_compiled[kind]:
            every.setdefault(id(cell), (path, cell))
    for path, cell in every.values():
        for name in names & own_attributes(cell).keys():
            having[name].append((path or "the train cell", cell))
    reported = set()
    for who, use in assigned:
        for path, cell in having.get(use.sets, ()):
            is_set = use.target is UNKNOWN or use.target is cell
            if is_set and (path, use.sets) not in reported and _is_constant(cell, use.sets):
                reported.add((path, use.sets))
                yield _finding(f"{who}: {use.where}", f"{path}.{use.sets}", in_graph=in_graph)


def _exchanged(assigned: Iterable[tuple[str, Use]], cells: Sequence[nn.Cell]) -> Iterator[Finding]:
    """Report assignments to the attribute in which a train cell keeps its optimizer.

    Where the optimizers are given beside the train cell, checkpoints may hold both.
    """
    if any(root is one for root in cells for one in optimizers_of([root])):
        return
    held = [
        (type(cell).__name__, cell, name)
        for cell in cells
        for name, one in registered_in(cell).items()
        if any(one is each for each in optimizers_of([one]))
    ]
    reported = set()
    for who, use in assigned:
        for kind, cell, name in held:
            # An unknown `self` is most likely an object of a library.
            is_set = use.target is cell or (use.target is UNKNOWN and use.name != "self")
            if use.sets == name and is_set and id(cell) not in reported:
                reported.add(id(cell))
                yield _other_optimizer(f"{who}: {use.where}", f"{kind}.{name}")


def _hooks(callback: Any) -> Iterator[Any]:
    for kind in type(callback).__mro__:
        for name, function in vars(kind).items() if is_users(kind.__module__) else ():
            if type(function) is types.FunctionType and name not in _AT_BEGIN:
                yield types.MethodType(function, callback)
    for name, function in own_attributes(callback).items():  # a LambdaCallback holds functions as attributes
        if type(function) is types.FunctionType and name not in _AT_BEGIN and is_users(function.__module__):
            yield function


def _is_constant(cell: nn.Cell, name: str) -> bool:
    """Return whether ``name`` is a plain attribute that the code of the cell reads."""
    own = own_attributes(cell)
    if isinstance(own[name], (nn.Cell, ms.Parameter, Primitive)):
        return False
    functions = (one for kind in type(cell).__mro__ if kind is not nn.Cell for one in vars(kind).items())
    return any(
        type(one) is types.FunctionType and called not in _AT_BEGIN and name in names_in(one.__code__)
        for called, one in functions
    )


def _finding(where: str, attribute: str, *, in_graph: bool) -> Finding:
    return Finding(
        "unseen",
        where,
        f"sets {attribute}, but a compiled graph keeps the value of its first call, and a resumed run compiles again "
        "with the value of that moment",
        "Make it a Parameter with requires_grad=False that is set by ops.assign"
        + (", or train in PYNATIVE mode" if in_graph else ""),
        certain=False,
    )


def _other_optimizer(where: str, attribute: str) -> Finding:
    return Finding(
        "unseen",
        where,
        f"sets {attribute}, the optimizer that checkpoints hold: from then on each save is refused, because a new "
        "start does not have the other one",
        "Train with each optimizer in a run of its own: another train cell and another root, which begins with the "
        "weights of the run before",
        certain=False,
    )
