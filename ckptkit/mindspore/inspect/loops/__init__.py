"""Finds plain variables that a custom loop carries between iterations and that steer its training.

Guarantees: reads source and values; calls no function of the user's. Python may ask objects of the user's for
``__class__``, ``__len__``, ``__iter__`` or ``__eq__``, and passes on what they raise. Does not report a variable that
only ends in a print, a log or a meter, nor one whose initial value comes from the checkpoint. Does not follow code
without source, nor functions of installed libraries that get nothing of the training, nor what is in objects that do
not exist yet. Main thread only.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator
from typing import Any

from ckptkit.mindspore.inspect.carried import GENERATORS
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.frames import Lines, locals_of, running_frames
from ckptkit.mindspore.inspect.loops.calls import DRAWN, TAKEN
from ckptkit.mindspore.inspect.loops.expressions import NUMBER
from ckptkit.mindspore.inspect.loops.flow import Flow, Running, Scope
from ckptkit.mindspore.inspect.loops.libraries import Libraries
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.source import ahead, body_of
from ckptkit.mindspore.inspect.loops.statements import Statements


def find_in_loops(known: Iterable[Any], since: Lines | None = None) -> Iterator[Finding]:
    """Yield the findings of the loops ahead in the running functions.

    Args:
        known: Objects that checkpoints hold by name, and the data that they position. Nothing below them is reported.
        since: Where the functions were when training was restored; read from there, to know what comes from the
            checkpoint. None if they are there now.
    """
    flow, objects = Flow(), Objects(known)
    running = {frame.f_code: Running(locals_of(frame), frame.f_lineno) for _, frame in running_frames()}
    statements = Statements(flow, objects, Libraries(frame.f_globals for _, frame in running_frames()), running)
    for _ in range(2):  # the second pass knows which variables are carried
        for path, frame, line in _begun(since):
            now = Running(locals_of(frame), frame.f_lineno)
            scope = Scope(frame.f_code, frame.f_globals, f"{path}: ", running=now)
            statements.read(ahead(body_of(frame.f_code, frame.f_globals), line), scope)
    for path, one in statements.taken.values():
        yield _drawn(path, one)
    carried: dict[tuple[str, str], list[str]] = {}
    for place in flow.steering:
        holder = objects.holder(place)
        if holder is not None and id(objects.at(place)) not in statements.taken:
            carried.setdefault(holder, []).append(place.name)
    for (path, kind), names in carried.items():
        yield _random(path) if names == [DRAWN] else _carried(path, kind, names)


def _begun(since: Lines | None) -> Iterator[tuple[str, types.FrameType, int]]:
    """Yield the running functions that are read by themselves, each with its name and the line to begin at.

    Those that were called after the restore are read where they are called.
    """
    frames = [*running_frames()]
    if since is None:
        yield from ((path, frame, frame.f_lineno) for path, frame in frames)
        return
    restored = [(path, frame, since.get((id(frame), frame.f_code))) for path, frame in frames]
    if all(line is None for _, _, line in restored):  # restored in another cell of a notebook
        yield from ((path, frame, 0) for path, frame in frames)
    yield from ((path, frame, line) for path, frame, line in restored if line is not None)


def _drawn(path: str, one: Any) -> Finding:
    draws = isinstance(one, GENERATORS)
    return Finding(
        "unseen",
        f"{path} ({type(one).__name__})",
        f"the loop {'draws' if draws else 'takes'} from it, and how far would be in no checkpoint",
        f"Give it by name: StateManager(..., {_last_word(path)}=it), or draw from np.random"
        if draws
        else "Join it and the batches in one loader for ckptkit.data.resumable",
        certain=False,
    )


def _random(path: str) -> Finding:
    return Finding(
        "operator",
        path,
        "no checkpoint can restore what it draws, and training depends on it",
        "Draw from np.random, whose state checkpoints hold, or use ckptkit.nn.Dropout",
        certain=False,
    )


def _carried(path: str, kind: str, names: list[str]) -> Finding:
    return Finding(
        "unseen",
        f"{path} ({kind})" if kind else path,
        f"the loop carries {', '.join(names)} from one batch to the next, and no checkpoint would have it",
        _way_out(path, kind, names),
        certain=False,
    )


def _way_out(path: str, kind: str, names: list[str]) -> str:
    listed = ", ".join(f'"{name}"' for name in names)
    if kind:
        name = _last_word(path)
        return (
            "Give it by name, with state_dict() and load_state_dict(), or as "
            f"StateManager(..., {name if name.isidentifier() and name != 'self' else kind.lower()}"
            f"=ckptkit.attributes(it, {listed}))"
        )
    if names == [NUMBER]:
        return "Begin it where restore() says: enumerate(batches, point.batches_delivered)"
    if names == [TAKEN]:
        return "Take as many fewer as restore() says: islice(batches, number - point.batches_delivered)"
    return (
        "Begin it from what restore() returns, or keep it in an object, such as types.SimpleNamespace(), that is given "
        f"by name: StateManager(..., kept=ckptkit.attributes(kept, {listed}))"
    )


def _last_word(path: str) -> str:
    return str(re.findall(r"\w+", path)[-1]).lower()
