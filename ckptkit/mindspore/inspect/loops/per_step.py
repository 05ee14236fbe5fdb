"""Finds what code that is called once per step keeps outside of checkpoints, if training depends on it.

Such code is a hook, `construct` and what it calls, a function that a cell of MindSpore holds, such as a loss function,
and a callback. Guarantees: as for `ckptkit.mindspore.inspect.loops`. Code that is called by several cells is read once.
Main thread only.
"""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mindspore as ms
from mindspore import nn

from ckptkit.mindspore.inspect.attributes import UNKNOWN, in_class, own_attributes
from ckptkit.mindspore.inspect.carried_attributes import GENERATORS, beside_bare, carried
from ckptkit.mindspore.inspect.cells import Operators, place_of
from ckptkit.mindspore.inspect.code.bytecode import closure_of, functions_of
from ckptkit.mindspore.inspect.code.names import names_in
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.objects import ITEMS, Objects, Stored, arguments_of_callbacks, place_in
from ckptkit.mindspore.inspect.loops.report import passes, reported
from ckptkit.mindspore.inspect.loops.scope import DATA, WEIGHTS, Place, Running, Scope, Value
from ckptkit.mindspore.inspect.loops.statements import Statements
from ckptkit.mindspore.inspect.loops.unread.libraries import Libraries
from ckptkit.mindspore.inspect.same_code import Alike
from ckptkit.mindspore.inspect.sequential import cells_of
from ckptkit.mindspore.inspect.users import is_of_users, is_users

# Where MindSpore keeps the hooks of a cell; `test_every_hook_of_a_cell_is_read` fails if they move.
_HOOKS = ("_forward_pre_hook", "_forward_hook", "_backward_pre_hook", "_backward_hook")  # properties of the same names
_MOST_ARGUMENTS = 16
# Expressions and statements that are read in a pass: of all functions, half a second, and of one with what it calls.
_MOST, _MOST_OF_ONE = 20_000, 4_000


@dataclass(frozen=True)
class _Step:
    """Holds a function that is called once per step.

    Attributes:
        function: It, bound.
        where: What findings in it begin with.
        steers: Whether training depends on what it returns.
        given: What its first arguments are; the others are data.
        is_before: Whether it is called before training computes in each step, and not after.
        is_of_epoch: Whether it is called in the first or last step of an epoch only.
        first: What is called before it in each step, with data.
        loop: Stands for the training loop around it.
    """

    function: Any
    where: str
    steers: bool = True
    given: tuple[Value, ...] = ()
    is_before: bool = False
    is_of_epoch: bool = False
    first: tuple[Any, ...] = ()
    loop: ast.AST = field(default_factory=ast.Pass)


def find_in_steps_of_cells(
    cells: Iterable[nn.Cell],
    known: Iterable[Any],
    written: set[Place] | None = None,
    *,
    by_name: Iterable[tuple[str, nn.Cell]] = (),
) -> Iterator[Finding]:
    """Yield the findings of the code that cells call.

    Args:
        cells: What is trained: one cell, or network and optimizer.
        known: Objects that checkpoints hold by name. Nothing below them is reported.
        written: Gets the places that the code writes.
        by_name: Cells among the known objects that are trained, too, each with its name.
    """
    roots = [*(("", one) for one in cells), *by_name]
    found: dict[int, tuple[str, nn.Cell]] = {}
    for name, one in ((name, one) for name, root in roots for one in cells_of(root)):
        found.setdefault(id(one.cell), (place_of(one, name), one.cell))
    told = {
        Place(id(cell), name): value
        for _, cell in found.values()
        for method in ("construct", "__call__")
        for name, value in carried(cell, method)
    }
    steps = steps_of_cells(found.values())
    objects = Objects([*known, *(one for one in told.values() if isinstance(one, GENERATORS))])
    yield from _found(steps, objects, told=told, written=written)


def find_in_steps_of_callbacks(
    callbacks: Sequence[object],
    known: Iterable[Any],
    data: Sequence[Any] = (),
    cells: Sequence[nn.Cell] = (),
    *,
    metrics: Iterable[object] = (),
    written: set[Place] | None = None,
) -> Iterator[Finding]:
    """Yield the findings of the code that callbacks and metrics call.

    Args:
        callbacks: Those that ``Model`` calls. What they hold themselves is not reported, unless some of it is stored.
        known: Objects that checkpoints hold by name. Nothing below them is reported.
        data: What `read_here` returns of the data.
        cells: What is trained, the train network first.
        metrics: Those that ``Model.fit`` clears, updates and evaluates after an epoch.
        written: Gets the places that the code writes.
    """
    known = [*known]
    partly = {id(one.owner) for one in known if isinstance(one, Stored)}
    told = [one for one in callbacks if id(one) not in partly and is_of_users(one)]
    objects = Objects(known, told, read_by_cells(cells))
    context = types.SimpleNamespace(original_args=arguments_of_callbacks(cells))
    steps = [*_of_metrics(metrics), *_of_callbacks(callbacks, context)]
    yield from _found(steps, objects, draws=True, data=data, cells=cells, written=written)


def ids_in(cells: Iterable[nn.Cell]) -> frozenset[int]:
    """Return the ``id`` of the cells and of all cells in them."""
    return frozenset(id(one.cell) for root in cells for one in cells_of(root))


def read_by_cells(cells: Iterable[nn.Cell]) -> frozenset[Place]:
    """Return the variables, and the attributes of objects and modules, that the code of cells may read."""
    found: set[Place] = set()
    seen = set[types.CodeType]()
    for one in {id(each.cell): each.cell for root in cells for each in cells_of(root)}.values():
        construct = in_class(type(one), "construct")
        if type(construct) is types.FunctionType and is_users(construct.__module__):
            held = beside_bare(one).values()
            _add_places(construct, held, found, seen)
    return frozenset(found)


def _add_places(
    function: types.FunctionType, held: Iterable[Any], found: set[Place], seen: set[types.CodeType]
) -> None:
    """Add the objects that a function names, and the attributes that it may read of them and of ``held``."""
    code, module, names = function.__code__, function.__globals__, names_in(function.__code__)
    closure = closure_of(function)
    named = {name: closure.get(name, module.get(name)) for name in names if name in closure or name in module}
    found.update(Place(code.co_filename if name in closure else id(module), name) for name in named)
    objects = [one for one in (*held, *named.values()) if _has_plain_attributes(one)]
    found.update(place_in(one, name) for one in objects for name in names)
    found.update(Place(id(one), ITEMS) for one in (*held, *named.values()) if isinstance(one, (list, dict)))
    if code in seen or not is_users(module.get("__name__")):
        return
    seen.add(code)
    for one in named.values():
        if type(one) is types.FunctionType:
            _add_places(one, (), found, seen)


def _has_plain_attributes(one: Any) -> bool:
    if isinstance(one, types.ModuleType):
        return is_users(vars(one).get("__name__"))
    is_plain = is_of_users(one) or isinstance(one, types.SimpleNamespace)
    return is_plain and not isinstance(one, (nn.Cell, ms.Tensor))


def _found(
    steps: Iterable[_Step],
    objects: Objects,
    *,
    draws: bool = False,
    told: Collection[Place] = (),
    data: Sequence[Any] = (),
    cells: Iterable[nn.Cell] = (),
    written: set[Place] | None = None,
) -> Iterator[Finding]:
    flow = Flow()
    statements = Statements(flow, objects, Libraries([]), {})
    statements.draws.operators = Operators(ids_in(cells))
    steps = [*steps]
    for _ in passes(flow):
        left = _MOST
        for step in steps:
            left -= _read(step, flow, objects, statements, min(left, _MOST_OF_ONE))
    fed = read_data(data, flow, statements)
    if written is not None:
        written |= {*told, *objects.written(flow.writes, statements.taken)}
    yield from reported(flow, objects, statements, per_step=True, draws=draws, without=told, fed=fed)


def read_data(data: Sequence[Any], flow: Flow, statements: Statements) -> list[Any]:
    """Read the functions in ``data``, which are called for each batch, and tell ``flow``; return the other objects."""
    scope = Scope(read_data.__code__, {}, "the data: ", Running({}, 0))
    given = [Value()] * _MOST_ARGUMENTS
    with flow.feeding():
        for one in data:
            if callable(one):
                statements.call(one, given, scope, _MOST_OF_ONE)
    return [one for one in data if not callable(one)]


def _read(step: _Step, flow: Flow, objects: Objects, statements: Statements, most: int) -> int:
    """Read a function as the body of a loop that may save after each call; return how much was read."""
    scope = Scope(_read.__code__, {}, step.where, Running({}, 0))
    data = [Value(sources=frozenset((DATA,)))] * _MOST_ARGUMENTS
    flow.forget()
    read = 0
    for _ in flow.rounds(step.loop, frozenset(), scope):
        flow.may_save()
        if not step.steers and (not step.is_before or step.is_of_epoch):
            _compute(flow, objects, scope, made_of=WEIGHTS if step.is_before else None)
        for one in step.first:
            read += statements.call(one, data, scope, most // 4)[1]
        returned, count = statements.call(step.function, [*step.given, *data], scope, most // 2)
        read += count
        if step.steers and returned is not None:
            flow.steer(returned.sources)
        if not step.steers and step.is_before:
            _compute(flow, objects, scope)
    return read


def _compute(flow: Flow, objects: Objects, scope: Scope, made_of: Place | None = None) -> None:
    """Read what training computes between two calls: the attributes of cells that callbacks change.

    A start in mid-epoch calls again what runs before an epoch. It finds other weights there, ``made_of``, and the same
    number of the epoch.
    """
    for place in objects.read_by(None, flow.changed):
        with flow.quiet():
            is_other = made_of is None or made_of in flow.read(place, scope)
        if is_other:
            flow.steer(flow.read(place, scope))


def hooks_of(cells: Iterable[nn.Cell]) -> list[Any]:
    """Return the hooks that cells run in PYNATIVE mode."""
    if ms.get_context("mode") != ms.PYNATIVE_MODE:
        return []
    found = {id(one.cell): one.cell for root in cells for one in cells_of(root)}
    return [hook for cell in found.values() for hook in _hooks_of(own_attributes(cell))]


def _hooks_of(own: Mapping[str, Any]) -> Iterator[Any]:
    for hooks in _HOOKS:
        yield from dict.values(own.get(f"_lazy{hooks}") or own.get(hooks) or {})


def steps_of_cells(cells: Collection[tuple[str, nn.Cell]]) -> Iterator[_Step]:
    """Yield what cells run in PYNATIVE mode, and what they run in Python in either mode."""
    alike, seen = Alike(depth=2), set[Hashable]()
    in_python = ms.get_context("mode") == ms.PYNATIVE_MODE
    for where, cell in cells:
        for key, step in _of_cell(where, cell, alike, in_python=in_python):
            if key not in seen:
                seen.add(key)
                yield step


def _of_cell(where: str, cell: nn.Cell, alike: Alike, *, in_python: bool) -> Iterator[tuple[Hashable, _Step]]:
    kind, own = type(cell), own_attributes(cell)
    call = in_class(kind, "__call__")
    if type(call) is types.FunctionType and is_users(call.__module__):
        yield ("__call__", alike.key(cell)), _Step(types.MethodType(call, cell), f"{where}: __call__(): ")
    if not in_python:
        return
    for name in ("construct", "bprop"):
        method = in_class(kind, name)
        if type(method) is types.FunctionType and is_users(method.__module__):
            yield (name, alike.key(cell)), _Step(types.MethodType(method, cell), f"{where}: {name}(): ")
    for hook in _hooks_of(own):
        yield _code_of(hook), _Step(hook, f"{where}: {_name_of(hook)}: ", given=(Value(cell),))
    if not is_users(kind.__module__):
        for held in _called(beside_bare(cell).values()):
            yield _code_of(held), _Step(held, f"{where}: {_name_of(held)}: ")


def _of_callbacks(callbacks: Iterable[object], context: Any) -> Iterator[_Step]:
    given = (Value(context, frozenset((DATA,))),)
    for one in callbacks:
        methods = {name: vars(kind)[name] for kind in reversed(type(one).__mro__) for name in vars(kind)}
        for name, method in methods.items():
            is_step = type(method) is types.FunctionType and ("step" in name or "epoch" in name)
            if is_step and is_users(method.__module__):
                where = f"{type(one).__name__}.{name}(): "
                is_before, is_of_epoch = "begin" in name, "epoch" in name
                bound = types.MethodType(method, one)
                yield _Step(bound, where, steers=False, given=given, is_before=is_before, is_of_epoch=is_of_epoch)
        for held in _called(own_attributes(one).values()) if not is_of_users(one) else ():
            yield _Step(held, f"{type(one).__name__}: {_name_of(held)}: ")


def _of_metrics(metrics: Iterable[object]) -> Iterator[_Step]:
    for one in metrics:
        if is_of_users(one):
            methods = {name: in_class(type(one), name) for name in ("clear", "update", "eval")}
            bound = [types.MethodType(it, one) for it in methods.values() if type(it) is types.FunctionType]
            if bound:
                yield _Step(bound[-1], f"metric {type(one).__name__}: ", first=tuple(bound[:-1]))


def _called(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the functions of the user's, and other objects of the user's that can be called."""
    for one in values:
        if isinstance(one, (types.FunctionType, types.MethodType, functools.partial)):
            yield one
        elif is_of_users(one) and type(in_class(type(one), "__call__")) is types.FunctionType:
            yield from () if isinstance(one, nn.Cell) else (one,)


def _code_of(function: Any) -> Hashable:
    """Return what a function runs: its code, and that of the functions in its closure and in its object."""
    found: list[Hashable] = []
    for one, instance in functions_of(function):
        held = [*closure_of(one).values(), *(own_attributes(instance).values() if instance is not UNKNOWN else ())]
        inner = tuple(each.__code__ for each in held if type(each) is types.FunctionType)
        found.append((one.__code__, type(instance), inner))
    return tuple(found)


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", None) if isinstance(function, (types.FunctionType, types.MethodType)) else None
    return f"{name}()" if name is not None else type(function).__name__
