"""Turns what was read of loops and of steps into findings.

Guarantees: reads what `Flow` and `Objects` recorded; runs no code of the user's. Main thread only.
"""

from __future__ import annotations

import re
import types
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import mindspore as ms
import numpy as np

from ckptkit.core.text import some
from ckptkit.mindspore.inspect.attributes import UNKNOWN
from ckptkit.mindspore.inspect.carried_attributes import GENERATORS
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.loops.calling.call import DRAWN, HASHED, PASSED_ON
from ckptkit.mindspore.inspect.loops.containers import FEW, items_of
from ckptkit.mindspore.inspect.loops.draws import BEFORE, CACHE, TAKEN
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.iteration import BESIDE, NUMBER
from ckptkit.mindspore.inspect.loops.objects import ITEMS, LAYERS, Objects, is_trained
from ckptkit.mindspore.inspect.loops.outside import OUTSIDE
from ckptkit.mindspore.inspect.loops.scope import Place
from ckptkit.mindspore.inspect.loops.statements import Statements
from ckptkit.mindspore.inspect.loops.unread.answers import ELSEWHERE
from ckptkit.mindspore.inspect.users import is_library_class, is_users
from ckptkit.mindspore.inspect.values.digest import is_plain

_MOST_PASSES = 4
_DEEPEST = 4  # container in a container
_OWN_OBJECT = (
    "Begin it from what restore() returns, or keep it in an object of your own that is given by name: its state_dict() "
    "gives all of it as plain values, and its load_state_dict() puts it back"
)
_STORE_TOO = (
    "Store it too: in its state_dict() and load_state_dict(), or as a further name in ckptkit.attributes(), whichever "
    "it is given with"
)
_WAYS_OUT = {
    CACHE: "Compute it before the training begins, or keep it in a Parameter, or in an object that is given by name",
    PASSED_ON: "Begin it with what restore() returns, or keep it in an object that is given by name",
    BEFORE: "Let a loader for ckptkit.data.resumable give such batches, or give the one before by name in an object",
    ELSEWHERE: "Keep it in an object that is given by name, and tell it again after restore()",
    OUTSIDE: "Keep what it needs in an object that is given by name: what is there may be ahead of the checkpoint",
}


def passes(flow: Flow) -> Iterator[int]:
    """Yield once more as long as a pass found places that are carried, which the next one knows."""
    for number in range(_MOST_PASSES):
        known = flow.carried()
        yield number
        if number and flow.carried() == known:
            return


def reported(
    flow: Flow,
    objects: Objects,
    read: Statements,
    *,
    per_step: bool = False,
    draws: bool = True,
    is_placed: bool = False,
    without: Collection[Place] = (),
    fed: Sequence[Any] = (),
) -> Iterator[Finding]:
    """Yield the findings of code that was read.

    Args:
        flow: Recorded what it carries and what steers training.
        objects: Recorded its objects and their expressions.
        read: What was read.
        per_step: Whether it is code that cells or ``Model`` call, and not a loop of one's own.
        draws: Whether to report random operators.
        is_placed: Whether a checkpoint has the position in the data.
        without: Attributes, by object and name, that are reported elsewhere.
        fed: Containers that hold the data.
    """
    who = "code that is called once per step" if per_step else "the loop"
    if read.unread:
        yield _unread([*read.unread])
    yield from (_drawn(path, one, who) for path, one in read.taken.values())
    yield from map(_after, read.after if not per_step else ())
    yield from map(_unplaced, read.unplaced if not (per_step or is_placed) else ())
    told = _told_to_data(flow, objects, fed)
    yield from (_fed(path, who) for path in dict.fromkeys(told.values()))
    yield from (_constant(path, who) for path in _told_to_graphs(flow, objects))
    carried: dict[tuple[str, str], list[str]] = {}
    unfit: set[tuple[str, str]] = set()  # of these, `ckptkit.attributes` would not store everything
    in_part: set[tuple[str, str]] = set()  # of these, checkpoints have other attributes
    for place in flow.steering:
        if place in told:
            continue
        holder = objects.holder(place) if place not in without and place not in read.skipping else None
        if holder is None or (place.name == DRAWN and not draws) or id(objects.at(place)) in read.taken:
            continue
        if place.name == DRAWN and objects.at(place) is not None:
            yield from objects.at(place)
        elif place in flow.taken and not flow.is_carried(place):
            yield _taken(holder[0])
        else:
            name = _last_word(holder[0]) if place.name == ITEMS and not holder[1] else place.name
            carried.setdefault(holder, []).append(name)
            owner = objects.owner(place)
            is_default = isinstance(owner, types.FunctionType) and place.name not in vars(owner)  # of an argument
            if not _fits(objects.at(place)) or objects.is_rebound(place) or is_library_class(type(owner)) or is_default:
                unfit.add(holder)
            if objects.is_named(owner):
                in_part.add(holder)
    for (path, kind), several in carried.items():
        names = [*dict.fromkeys(several)]  # a path may stand for several objects
        is_unfit = (path, kind) in unfit
        if names in ([DRAWN], [HASHED]):
            yield _random(path) if names == [DRAWN] else _hashed(path)
            continue
        why = f"{who} carries {', '.join(names)} from one batch to the next, and no checkpoint would have it"
        plain = _elsewhere if per_step else _in_loop
        way_out = _by_name(path, kind, names) if kind else _WAYS_OUT.get(names[0]) or plain(names)
        way_out = _OWN_OBJECT if is_unfit and "ckptkit.attributes" in way_out else way_out
        way_out = _STORE_TOO if (path, kind) in in_part else way_out
        yield _unseen(f"{path} ({kind})" if kind else path, why, way_out)


def _unseen(path: str, why: str, way_out: str) -> Finding:
    """Return a finding of state that was met while code was read, which may not matter."""
    return Finding("unseen", path, why, way_out, certain=False)


def _after(path: str) -> Finding:
    return _unseen(
        path,
        "the loop changes it, or draws from it, after the save in the same iteration, so that a checkpoint made there "
        "is without that",
        "Do it before manager.step()",
    )


def _unplaced(path: str) -> Finding:
    return _unseen(
        path,
        "the loop begins there again, whatever was restored, so that a resumed run trains with other batches",
        "Give it batches by StateManager(cell, ckptkit.data.resumable(...)), or begin it where restore() says",
    )


def _told_to_data(flow: Flow, objects: Objects, fed: Sequence[Any]) -> dict[Place, str]:
    """Return what training changes and the data read, each place with its expression."""
    read = {place: one for place in flow.fed if (one := objects.at(place)) is not UNKNOWN}
    changed = [place for place in flow.fed if place in flow.changed or is_trained(read.get(place))]
    found = {place: objects.expression(place) for place in changed}
    held = {**read, **{Place(id(one), ITEMS): one for one in fed}}
    in_place = {place: objects.in_place[id(one)] for place, one in held.items() if id(one) in objects.in_place}
    return {place: path for place, path in {**in_place, **found}.items() if path}


def _told_to_graphs(flow: Flow, objects: Objects) -> list[str]:
    """Return the expressions of values that training changes, and that compiled code has as constants."""
    constant = {*flow.compiled, *(objects.read_by_cells if ms.get_context("mode") == ms.GRAPH_MODE else ())}
    changed = [place for place in flow.changed if place in constant]
    return [path for one in changed if _is_constant(objects.at(one)) and (path := objects.expression(one))]


def _is_constant(one: Any) -> bool:
    """Return whether a graph copies the value, and does not call it or read its parameters, as of a loss scaler."""
    plain = (bool, int, float, str, list, tuple, dict, np.ndarray, ms.Tensor, types.NoneType)
    return one is UNKNOWN or (isinstance(one, plain) and not isinstance(one, ms.Parameter))


def _fed(path: str, who: str) -> Finding:
    return _unseen(
        path,
        f"{who} changes it, and the code of the data reads it. A resume reads the data again up to its place, and none "
        "of these changes is made there",
        "Let the data depend on (seed, epoch, index of the sample) only, or give them state_dict() and "
        "load_state_dict() that hold it",
    )


def _constant(path: str, who: str) -> Finding:
    return _unseen(
        path,
        f"{who} changes it, but a compiled function keeps the value of its first call, and a resumed run compiles "
        "again with the value of that moment",
        "Pass it to the function as a Tensor, or make it a Parameter with requires_grad=False",
    )


def _taken(path: str) -> Finding:
    return _unseen(
        path,
        "the loop uses it, and it was taken after the restore from what training changes, so that a resumed run has "
        "another one",
        "Take it before restore(), or keep it in an object that is given by name",
    )


def _unread(names: Sequence[str]) -> Finding:
    return _unseen(
        some(names, 1),
        "it is too long to be examined completely before training, so state that the rest of it carries from one "
        "batch to the next is not named",
        "Give such state by name; `ckptkit doctor` checks whether any is left",
    )


def _drawn(path: str, one: Any, who: str) -> Finding:
    draws = isinstance(one, (*GENERATORS, np.random.SeedSequence))
    return _unseen(
        f"{path} ({type(one).__name__})",
        f"{who} {'draws' if draws else 'takes'} from it, and its position would be in no checkpoint",
        f"Give it by name: StateManager(..., {_last_word(path)}=it), or draw from np.random"
        if draws
        else "Join it and the batches in one loader for ckptkit.data.resumable",
    )


def _random(path: str) -> Finding:
    return Finding(
        "operator",
        path,
        "no checkpoint can restore what it draws, and training depends on it",
        "Draw from np.random, whose state checkpoints hold, or use ckptkit.nn.Dropout",
        certain=False,
    )


def _hashed(path: str) -> Finding:
    return Finding(
        "operator",
        path,
        "it gives another number in each process, and training depends on it",
        "Use a digest, such as zlib.crc32(text.encode()), or set PYTHONHASHSEED for every start",
        certain=False,
    )


def _fits(one: Any, depth: int = 0) -> bool:
    """Return whether `ckptkit.attributes` stores such a value; True if it is not known."""
    if one is UNKNOWN or isinstance(one, GENERATORS):
        return True
    makes = one.default_factory if isinstance(one, defaultdict) else None
    if isinstance(makes, type) and is_users(makes.__module__):
        return False  # it may be empty now, and will hold objects of the user's
    if type(one) in (dict, defaultdict, list, tuple) and depth < _DEEPEST:
        return all(_fits(each, depth + 1) for each in items_of(one, FEW))
    is_view = isinstance(one, np.ndarray) and type(one) is not np.ndarray  # such as a file in memory
    return not is_view and type(one) not in (dict, list, tuple, set, frozenset) and is_plain(one)


def _by_name(path: str, kind: str, names: list[str]) -> str:
    if names == [ITEMS]:
        return "Give it by name, with state_dict() and load_state_dict() that hold its items"
    if names == [LAYERS]:
        return "Decide from what restore() returns which layers, hooks and types it has, before the training goes on"
    name = _last_word(path)
    name = name if name.isidentifier() and name != "self" else kind.lower()
    return (
        "Give it by name, with state_dict() and load_state_dict(), or as "
        f"StateManager(..., {name}=ckptkit.attributes(it, {_listed(names)}))"
    )


def _elsewhere(names: list[str]) -> str:
    return (
        "Keep it in a Parameter, or in an object, such as types.SimpleNamespace(), that is given by name: "
        f'CheckpointCallback(stateful={{"kept": ckptkit.attributes(kept, {_listed(names)})}})'
    )


def _in_loop(names: list[str]) -> str:
    if names == [NUMBER]:
        return "Begin it where restore() says: enumerate(batches, point.batches_delivered), or take loop()'s number"
    if names == [BESIDE]:
        return "Join it and the batches in one loader for ckptkit.data.resumable, or begin it where restore() says"
    if names == [TAKEN]:
        return "Take as many fewer as restore() says: islice(batches, number - point.batches_delivered)"
    return (
        "Begin it from what restore() returns, or keep it in an object, such as types.SimpleNamespace(), that is given "
        f"by name: StateManager(..., kept=ckptkit.attributes(kept, {_listed(names)}))"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _last_word(path: str) -> str:
    return str(re.findall(r"\w+", path)[-1]).lower()
