"""What in the cells of a training cannot be exact: random operators, dead stock cells, state outside of them.

Guarantees: changes nothing and runs no code of the user's. It reads the code of `construct` (see `code`), so a
function around the train cell, such as one's own step under ``@ms.jit``, is not read. Main thread only.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import mindspore as ms
from mindspore import amp, nn
from mindspore.ops import Primitive

from ckptkit.mindspore.findings.attributes import own_attributes
from ckptkit.mindspore.findings.code import Use, uses
from ckptkit.mindspore.findings.finding import Finding
from ckptkit.mindspore.findings.operators import DROPOUTS, drops_nothing, functional, is_random_primitive
from ckptkit.mindspore.findings.sequential import cells_of

_USE_OURS = "Use ckptkit.nn.Dropout, or a mask that the data pipeline makes"
_REPLACE = "Use ckptkit.nn.Dropout, or ckptkit.nn.replace_dropout(network) for a ready-made network"


def find_in_cells(cells: Iterable[nn.Cell], known: Collection[int]) -> Iterator[Finding]:
    """Findings of the cells and all cells in them, each once.

    Args:
        cells: What is trained: one cell, or network and optimizer.
        known: ``id`` of objects that checkpoints hold by name.
    """
    seen: set[int] = set()
    cells = tuple(cells)
    parameters = {id(one) for cell in cells for one in cell.get_parameters()}
    for root in cells:
        for name, cell, registered in cells_of(root):
            if id(cell) in seen:
                continue
            seen.add(id(cell))
            where = f"{name or 'the train cell'} ({_kind(cell)})"
            yield from _random(cell, where)
            yield from _unseen(cell, where, parameters, known)
            if not registered:
                yield from _displaced(cell, where, parameters)
    yield from _dead_accumulation(cells)


def _random(cell: nn.Cell, where: str) -> Iterator[Finding]:
    if isinstance(cell, DROPOUTS):
        if not drops_nothing(cell):
            why = "two runs with one seed already draw different masks, restarted or not"
            yield Finding("operator", where, why, _REPLACE if isinstance(cell, nn.Dropout) else _USE_OURS)
        return
    for name, value in own_attributes(cell).items():
        for one in _items(value) if name != "_primitives" else ():  # those are attributes, too
            if isinstance(one, Primitive) and is_random_primitive(one):
                yield _kernel_state(f"{where}: {name} (ops.{type(one).__name__})")
    if isinstance(cell, nn.MultiheadAttention) and cell.dropout and _in_graph():
        yield _frozen_seed(f"{where}: its dropout={cell.dropout}")
    construct = own_attributes(cell).get("construct")
    if construct is None:
        construct = types.MethodType(type(cell).construct, cell)
    reported = set()
    for use in uses(construct, _is_of_the_user):
        found = _judged(use, where)
        if found is not None and found not in reported:
            reported.add(found)
            yield found


def _judged(use: Use, where: str) -> Finding | None:
    if isinstance(use.target, type) and is_random_primitive(use.target):
        return _kernel_state(f"{where}: {use.name} in {use.where}")
    _, name, exact_in_pynative = functional().get(id(use.target), (None, "", True))
    if not name:
        return None
    place = f"{where}: {name} in {use.where}"
    if not exact_in_pynative:
        return _kernel_state(place)
    return _frozen_seed(place) if use.compiled or _in_graph() else None


def _kernel_state(where: str) -> Finding:
    return Finding("operator", where, "the state of its generator is inside of the operator, out of reach", _USE_OURS)


def _frozen_seed(where: str) -> Finding:
    return Finding(
        "operator",
        where,
        "a compiled graph keeps the seed that it was compiled with, and the state of its generator inside",
        f"{_USE_OURS}, or run it in PYNATIVE mode, where it is exact",
    )


def _unseen(cell: nn.Cell, where: str, parameters: set[int], known: Collection[int]) -> Iterator[Finding]:
    for name, value in own_attributes(cell).items():
        for one in _items(value):
            if id(one) in known or not _may_hold(one):
                continue
            held = [
                key
                for key, held in own_attributes(one).items()
                if any(_is_foreign(x, parameters) for x in _items(held))
            ]
            if held:
                given = type(one).__name__.lower()
                yield Finding(
                    "unseen",
                    f"{where}: {name} ({type(one).__name__})",
                    f"it is no cell, so {', '.join(held)} would be in no checkpoint",
                    f"Give it by name: StateManager(..., {given}=it) or CheckpointCallback(stateful={{'{given}': it}})",
                )


def _displaced(cell: nn.Cell, where: str, parameters: set[int]) -> Iterator[Finding]:
    """Of a layer that is called though another one has taken its name."""
    held = [one.name for one in cell.get_parameters(expand=False) if id(one) not in parameters]
    if held:
        why = f"an nn.SequentialCell still calls it, so {', '.join(held)} would be used and be in no checkpoint"
        yield Finding("unseen", where, why, "Replace a layer of an nn.SequentialCell by its place: layers[1] = other")


def _may_hold(one: Any) -> bool:
    # The scale of a StaticLossScaler never changes.
    skipped = (
        nn.Cell,
        ms.Tensor,
        Primitive,
        amp.StaticLossScaler,
        type,
        types.ModuleType,
        types.FunctionType,
        types.MethodType,
    )
    return not isinstance(one, skipped)


def _is_foreign(one: Any, parameters: set[int]) -> bool:
    return isinstance(one, ms.Parameter) and id(one) not in parameters


def _dead_accumulation(cells: tuple[nn.Cell, ...]) -> Iterator[Finding]:
    if ms.get_context("device_target") != "CPU" or ms.get_auto_parallel_context("parallel_mode") != "stand_alone":
        return
    for cell in cells:
        dead = next((one.name for one in cell.get_parameters() if one.name.startswith("accu_grads.")), None)
        if dead is not None:
            yield Finding(
                "stock",
                f"{dead} and its like",
                "MindSpore's own accumulation cell leaves them and the weights as they are on CPU, silently",
                "Use ckptkit.AccumulationTrainCell",
            )


def _items(value: Any) -> Iterator[Any]:
    """The value, or what is in it if it is a container; also where the user's class iterates otherwise."""
    if isinstance(value, dict):
        yield from dict.values(value)
    elif isinstance(value, list):
        yield from list.__iter__(value)
    elif isinstance(value, tuple):
        yield from tuple.__iter__(value)
    else:
        yield value


def _kind(cell: nn.Cell) -> str:
    kind = type(cell)
    return f"nn.{kind.__name__}" if getattr(nn, kind.__name__, None) is kind else kind.__name__


def _is_of_the_user(module: str) -> bool:
    return module.partition(".")[0] not in ("mindspore", "numpy", "ckptkit")


def _in_graph() -> bool:
    return bool(ms.get_context("mode") == ms.GRAPH_MODE)
