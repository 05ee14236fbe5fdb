"""Finds what cannot be exact in the cells of a training: random operators, dead stock cells, state outside the cells.

A cell belongs to the training if it is trained, is given by name, or is held or named by one that does.

Guarantees: changes nothing and runs no user code. Reads the code of `construct` (see `uses`), so a function around the
train cell, such as a custom step under ``@ms.jit``, is not read. Main thread only.
"""

from __future__ import annotations

import re
import types
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import mindspore as ms
from mindspore import nn
from mindspore.nn.probability.distribution import Distribution
from mindspore.ops import Primitive

from ckptkit.core.text import some
from ckptkit.mindspore.inspect.attributes import UNKNOWN, met, own_attributes, owner_of
from ckptkit.mindspore.inspect.carried_attributes import GENERATORS, beside_bare, carried
from ckptkit.mindspore.inspect.code.bytecode import Use, uses
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.operators import (
    DROPOUTS,
    DROPOUTS_OF_MINT,
    drops_nothing,
    functional,
    is_random_primitive,
    methods,
    rounds_by_launch,
)
from ckptkit.mindspore.inspect.same_code import Alike
from ckptkit.mindspore.inspect.sequential import Found, cells_of
from ckptkit.mindspore.inspect.unstored_parameters import CONTAINERS, Held, Holder
from ckptkit.mindspore.parameters.roles import all_of, optimizers_of

_USE_OURS = "Use ckptkit.nn.Dropout, or a mask that the data pipeline makes"
_PLAIN = (type(None), bool, int, float, str, ms.Parameter)  # most attributes of a cell
_OTHER_OPTIMIZERS = "Use nn.Adam, nn.RMSProp(centered=True) or mindspore.experimental.optim.RMSprop"
_WRITES = ("assign", "scatter_", "apply_")  # functions that change parameters
_OF_SAMPLES = "Draw from a generator made of (seed, epoch, index of the sample): ckptkit.data.sample_rng"
_REPLACE = "Use ckptkit.nn.Dropout, or ckptkit.nn.replace_dropout(network) for a ready-made network"


def find_in_cells(
    cells: Iterable[nn.Cell],
    known: Collection[int],
    variables: Iterable[tuple[str, Any]] = (),
    stored: Collection[tuple[object, Collection[str]]] = (),
    *,
    by_name: Iterable[tuple[str, nn.Cell]] = (),
    elsewhere: Collection[int] = (),
) -> Iterator[Finding]:
    """Yield the findings of the cells, of all cells in them (each once), and of the loop's variables.

    Args:
        cells: What is trained: one cell, or network and optimizer.
        known: ``id`` of objects that checkpoints hold by name.
        variables: Variables of the training loop, each with its place.
        stored: Objects of which checkpoints hold some attributes, with their names.
        by_name: Trained cells that checkpoints hold by name, each with its own plain attributes.
        elsewhere: ``id`` of cells that the checkpoints of another run hold.
    """
    attributes = {(id(owner), name) for owner, names in stored for name in names}
    cells = tuple(cells)
    parameters = {id(one): one for cell in cells for one in all_of(cell)}
    found: dict[int, Found] = {}
    for one in (one for root in cells for one in cells_of(root)):
        found.setdefault(id(one.cell), one)
    held = Held({*known, *parameters, *found})
    named = {id(one.cell): (name, one) for name, root in by_name for one in cells_of(root) if id(one.cell) not in found}
    operators, in_graph = Operators({*found, *named}), _in_graph()
    for one in found.values():
        cell, where = one.cell, place_of(one)
        yield from operators.of(cell, where)
        yield from _carried(cell, where, attributes, in_graph=in_graph)
        yield from (_unseen(holder, elsewhere, f"{where}: ") for holder in held.around(cell))
        yield from (each for path, inner in held.met() for each in operators.inside(inner, f"{where}: {path}"))
        if not one.registered:
            yield from _displaced(cell, where, parameters.keys())
    for name, one in named.values():
        yield from operators.of(one.cell, place_of(one, name))
        if one.name:  # of the cell itself, plain attributes are stored
            yield from _carried(one.cell, place_of(one, name), attributes, in_graph=in_graph)
    for place, value in variables:
        yield from (_unseen(holder, elsewhere) for holder in held.below(place, value))


def place_of(found: Found, root: str = "") -> str:
    """Return the place of a cell as findings name it; ``root`` is the name under which its root was given."""
    names = [one for one in (root, found.name) if one]
    return f"{'.'.join(names) or 'the train cell'} ({_kind(found.cell)})"


class Operators:
    """Finds what cells compute that a resumed run cannot repeat; reads alike cells once.

    Args:
        apart: ``id`` of cells that are examined by themselves.
    """

    def __init__(self, apart: Collection[int] = ()) -> None:
        self._apart = {*apart}
        self._inside: list[nn.Cell] = []  # holds the cells, so that no id is reused
        self._alike = Alike()
        self._read: dict[Hashable, list[Use]] = {}

    def of(self, cell: nn.Cell, where: str) -> Iterator[Finding]:
        """Yield the findings of one cell, and of the cells that its code names and no cell registers."""
        if rounds_by_launch(cell):
            why = "in launches 6 to 15 of a process, its kernel may round otherwise, and a resumed run counts them anew"
            yield Finding("rounding", where, why, _OTHER_OPTIMIZERS, certain=False)
        yield from self._random(cell, where)

    def inside(self, cell: nn.Cell, where: str) -> Iterator[Finding]:
        """Yield, as doubts, the findings of a cell that no trained cell registers, and of all cells in it, once.

        A ``set_train`` of the network does not reach it, so a dropout that is not in training drops nothing.
        """
        if id(cell) in self._apart:
            return
        found = [one for one in cells_of(cell) if id(one.cell) not in self._apart]
        self._apart.update(id(one.cell) for one in found)
        self._inside.append(cell)
        for one in found:
            is_off = isinstance(one.cell, DROPOUTS) and not one.cell.training
            place = f"{where}{one.name and f'.{one.name}'} ({_kind(one.cell)})"
            yield from (replace(each, certain=False) for each in self.of(one.cell, place) if not is_off)

    def in_graph(self, function: Any, where: str) -> tuple[list[Finding], bool]:
        """Return what is inexact in a function only because it is compiled, and whether the function trains.

        In PYNATIVE, what the same operators draw outside of it may be exact.
        """
        found: dict[Finding, None] = {}
        trains = False
        for use in uses(function, _enters, compiled=True, methods=methods(), closures=True):
            if not _is_cell(use.target):
                trains = trains or use.name.rpartition(".")[2].startswith(_WRITES)
                found.update(dict.fromkeys(filter(None, [_judged(use, where)])))
                continue
            trains = trains or bool(optimizers_of([use.target]))
            found.update(dict.fromkeys(self._compiled(use.target, f"{where}: {use.name}")))
        return [*found], trains

    def _compiled(self, cell: nn.Cell, where: str) -> Iterator[Finding]:
        """Yield what is inexact in a cell, and in those inside it, only because compiled code calls it."""
        for one in cells_of(cell):
            place = f"{where}{one.name and f'.{one.name}'} ({_kind(one.cell)})"
            told = {*self._random(one.cell, place)}
            yield from (each for each in self._random(one.cell, place, compiled=True) if each not in told)

    def in_data(self, use: Use, where: str) -> Iterator[Finding]:
        """Yield the findings of an object that code of the data names; that code is never compiled."""
        _, name, _ = functional().get(id(use.target), (None, "", ""))
        if name:
            why = "it draws from a generator of MindSpore's, which reading the data again does not set back"
            yield Finding("pipeline", f"{where}: {name}", why, _OF_SAMPLES, certain=False)
        elif _is_cell(use.target):
            yield from self.inside(use.target, f"{where}: {use.name}")
        elif isinstance(use.target, type) and issubclass(use.target, DROPOUTS):
            yield replace(_dropout(use.target, f"{where}: {use.name}"), certain=False)

    def _random(self, cell: nn.Cell, where: str, *, compiled: bool = False) -> Iterator[Finding]:
        if isinstance(cell, DROPOUTS):
            if not drops_nothing(cell):
                yield _dropout(type(cell), where)
            return
        held = ((name, value) for name, value in beside_bare(cell).items() if type(value) not in _PLAIN)
        for name, value in held:
            for one in _items(value):
                if isinstance(one, Primitive) and is_random_primitive(one):
                    yield _kernel_state(f"{where}: {name} (ops.{type(one).__name__})")
        if isinstance(cell, nn.MultiheadAttention) and cell.dropout and (compiled or _in_graph()):
            yield _frozen_seed(f"{where}: its dropout={cell.dropout}")
        if isinstance(cell, Distribution):
            return  # its construct names all that it can do; each call of it is read at its call site
        reported = set()
        for use in self._uses(cell):
            if _is_cell(use.target):
                yield from self.inside(use.target, f"{where}: {use.name}")
                if use.compiled and not compiled and use.target is not cell:
                    yield from self._compiled(use.target, f"{where}: {use.name}")
                continue
            found = _judged(replace(use, compiled=compiled or use.compiled), where)
            if found is not None and found not in reported:
                reported.add(found)
                yield found

    def _uses(self, cell: nn.Cell) -> list[Use]:
        """Return the random operators and the cells that the code of a cell names."""
        key = self._alike.key(cell)
        if key not in self._read:
            construct = own_attributes(cell).get("construct")
            if construct is None:
                construct = types.MethodType(type(cell).construct, cell)
            found = uses(construct, _enters, methods=methods())
            self._read[key] = [
                one for one in found if _is_cell(one.target) or _judged(replace(one, compiled=True), "") is not None
            ]
        return self._read[key]


def _is_cell(one: object) -> bool:
    return issubclass(type(one), nn.Cell)  # isinstance() would ask a weak proxy for its class


def _dropout(kind: type, where: str) -> Finding:
    if issubclass(kind, DROPOUTS_OF_MINT):
        return _unmeasured(where)
    why = "two runs with one seed already draw different masks, restarted or not"
    return Finding("operator", where, why, _REPLACE if issubclass(kind, nn.Dropout) else _USE_OURS)


def _judged(use: Use, where: str) -> Finding | None:
    place = f"{where}: {use.name} in {use.where}"
    if isinstance(use.target, type) and issubclass(use.target, DROPOUTS):
        return _dropout(use.target, place)
    if isinstance(use.target, type) and is_random_primitive(use.target):
        return _kernel_state(place)
    if isinstance(owner_of(use.target), GENERATORS) and (use.compiled or _in_graph()):
        return Finding(
            "operator",
            f"{where}: {use.name} in {use.where}",
            "a graph draws it once, when it is compiled, and a resumed run compiles again",
            _USE_OURS,
        )
    _, name, exact = functional().get(id(use.target), (None, "", "pynative"))
    place = f"{where}: {name} in {use.where}"
    if exact == "pynative":
        return _frozen_seed(place) if name and (use.compiled or _in_graph()) else None
    return _unmeasured(place) if exact == "unknown" else _kernel_state(place)


def _kernel_state(where: str) -> Finding:
    return Finding(
        "operator", where, "the state of its generator is inside the operator, where ckptkit cannot read it", _USE_OURS
    )


def _unmeasured(where: str) -> Finding:
    why = "it is not tested whether its draws can be restored, because it has no kernel on CPU"
    return Finding("operator", where, why, _USE_OURS, certain=False)


def _frozen_seed(where: str) -> Finding:
    return Finding(
        "operator",
        where,
        "a compiled graph keeps the seed that it was compiled with, and the state of its generator inside",
        f"{_USE_OURS}, or run it in PYNATIVE mode, where it is exact",
    )


def _carried(cell: nn.Cell, where: str, stored: Collection[tuple[int, str]], *, in_graph: bool) -> Iterator[Finding]:
    # In GRAPH mode, construct can assign no attribute but a Parameter; __call__ is Python in either mode.
    found = {name: ("__call__", value) for name, value in carried(cell, "__call__")}
    found.update({} if in_graph else {name: ("construct", value) for name, value in carried(cell, "construct")})
    for name, (method, value) in found.items():
        if (id(cell), name) in stored:
            continue
        is_generator = isinstance(value, GENERATORS)
        yield Finding(
            "unseen",
            f"{where}: {name} ({type(value).__name__})",
            f"{method}() {'draws from' if is_generator else 'changes'} it, and it would be in no checkpoint",
            "Draw from np.random, whose state checkpoints hold"
            if is_generator
            else "Make it a Parameter, and change it by ops.assign",
        )


def _unseen(holder: Holder, elsewhere: Collection[int], where: str = "") -> Finding:
    place = f"{where}{holder.path} ({_kind(holder.one)})"
    if id(holder.one) in elsewhere:
        why = "it is in the checkpoints of another run, and a process that dies between two saves continues them apart"
        fix = "Give both to one StateManager, unless neither reads the other"
        return Finding("unseen", place, why, fix, certain=False)
    kind = type(holder.one)
    is_named = isinstance(holder.one, (*CONTAINERS, ms.Parameter))
    given = (re.findall(r"\w+", holder.path)[-1] if is_named else kind.__name__).lower()
    return Finding(
        "unseen",
        place,
        f"{some(holder.held)} would be in no checkpoint",
        f"Give it by name: StateManager(..., {given}=it) or CheckpointCallback(stateful={{'{given}': it}})",
        certain=False,
    )


def left_out(name: str, places: Sequence[str]) -> Finding:
    """Return the finding for an object stored by ``name`` without what is at ``places``."""
    return Finding(
        "unseen",
        f"the stateful object {name}",
        f"{', '.join(places)} cannot be stored and would be in no checkpoint",
        "Give it state_dict() and load_state_dict()",
        certain=False,
    )


def _displaced(cell: nn.Cell, where: str, parameters: Collection[int]) -> Iterator[Finding]:
    """Report a layer that is still called after another one has taken its name."""
    held = [one.name for one in cell.get_parameters(expand=False) if id(one) not in parameters]
    if held:
        why = f"an nn.SequentialCell still calls it, so {', '.join(held)} would be used and be in no checkpoint"
        fix = "Replace a layer of an nn.SequentialCell by its index: layers[1] = other"
        yield Finding("unseen", where, why, fix, certain=False)


def _items(value: Any) -> Iterator[Any]:
    """Yield the value, or the items of a container, bypassing any ``__iter__`` of the user's."""
    base = next((one for one in (list, tuple) if isinstance(value, one)), None)
    items = dict.values(value) if isinstance(value, dict) else base.__iter__(value) if base is not None else (value,)
    yield from (one for one in items if met(one) is not UNKNOWN)


def _kind(one: Any) -> str:
    kind = type(one)
    return f"nn.{kind.__name__}" if getattr(nn, kind.__name__, None) is kind else kind.__name__


def _enters(module: str) -> bool:
    if module.startswith("mindspore.nn.probability"):
        return True
    return module.partition(".")[0] not in ("mindspore", "numpy", "ckptkit")


def _in_graph() -> bool:
    return bool(ms.get_context("mode") == ms.GRAPH_MODE)
