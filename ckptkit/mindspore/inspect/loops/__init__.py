"""Finds plain variables that a custom loop carries between iterations and that steer its training.

Guarantees: reads source and values; calls no function of the user's. Python may ask objects of the user's for
``__class__``, ``__len__``, ``__iter__`` or ``__eq__``, and passes on what they raise. Does not report a variable that
only ends in a print, a log or a meter, nor one whose initial value comes from the checkpoint. Does not follow code
without source, nor functions of installed libraries that get nothing of the training, nor what is in objects that do
not exist yet. Main thread only.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mindspore import nn

from ckptkit.mindspore.inspect.cells import Operators
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.frames import Lines, locals_of, running_frames
from ckptkit.mindspore.inspect.loops.containers import contents
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.outside import OUTSIDE, Handles
from ckptkit.mindspore.inspect.loops.per_step import ids_in, read_by_cells, read_data
from ckptkit.mindspore.inspect.loops.report import passes, reported
from ckptkit.mindspore.inspect.loops.scope import Place, Running, Scope, Sources
from ckptkit.mindspore.inspect.loops.source import ahead, behind, body_of
from ckptkit.mindspore.inspect.loops.statements import Statements
from ckptkit.mindspore.inspect.loops.unread.beside import running_threads, waiting_tasks
from ckptkit.mindspore.inspect.loops.unread.libraries import Libraries


def find_in_loops(
    known: Iterable[Any],
    since: Lines | None = None,
    *,
    is_placed: bool = False,
    hooks: Sequence[Any] = (),
    data: Sequence[Any] = (),
    sources: Iterable[Any] = (),
    cells: Iterable[nn.Cell] = (),
    examined: Iterable[nn.Cell] = (),
    written: set[Place] | None = None,
    trained_by: set[str] | None = None,
) -> Iterator[Finding]:
    """Yield the findings of the loops ahead in the running functions.

    Args:
        known: Objects that checkpoints hold by name, and the data that they position. Nothing below them is reported.
        since: Where the functions were when training was restored; read from there, to know what comes from the
            checkpoint. None if they are there now.
        is_placed: Whether a checkpoint has the position in the data.
        hooks: Functions that calls of the trained cells also run.
        data: What `read_here` returns of the data that a checkpoint positions by reading them again.
        sources: What `sources_of` returns of these data.
        cells: What is trained, or given by name.
        examined: Cells of which the random operators are reported elsewhere.
        written: Gets the places that the code writes.
        trained_by: Gets the expressions of the compiled functions that change parameters.
    """
    apart = ids_in(examined)
    cells = [*cells]
    held = (one for _, frame, _ in _begun(since) for one in locals_of(frame).values())
    read = read_by_cells([*cells, *(one for one in held if issubclass(type(one), nn.Cell))])
    others = [*running_threads()], [*waiting_tasks()]
    again = contents(sources)
    flow, objects = Flow(), Objects(known, read_by_cells=read, cells=cells)
    statements = _read(flow, objects, since, hooks, others, apart=apart, again=again)
    if any(place.name == OUTSIDE for place in flow.changed):
        begun, before = _read_before(since, known)
        outside = {before.draws.outside.renamed(place) for place in flow.changed if place.name == OUTSIDE}
        made = {place: sources & outside for place, sources in begun.made_of(OUTSIDE).items() if sources & outside}
        if made or before.draws.outside.handles:
            flow, objects = Flow(), Objects(known, read_by_cells=read, cells=cells)
            handles = before.draws.outside.handles
            statements = _read(
                flow, objects, since, hooks, others, apart=apart, again=again, given=made, handles=handles
            )
    fed = read_data(data, flow, statements)
    if written is not None:
        written |= objects.written(flow.writes, statements.taken)
    if trained_by is not None:
        trained_by.update(statements.draws.trained_by)
    yield from reported(flow, objects, statements, is_placed=is_placed, fed=fed)


def used_in_loops(
    names: Collection[str], limits: Collection[str], known: Iterable[Any], hooks: Sequence[Any] = ()
) -> Collection[str]:
    """Return on which variables, attributes and items of these names training by the loops ahead depends.

    Args:
        names: Such as ``scale``, also for ``options.scale``, or ``options['scale']``.
        limits: Those of them that may say how long to train: conditions that end a loop do not count.
        known: Objects that checkpoints hold by name.
        hooks: Functions that calls of the trained cells also run.
    """
    flow = Flow(names, limits)
    _read(flow, Objects(known), None, hooks)
    return flow.used


def _read_before(since: Lines | None, known: Iterable[Any]) -> tuple[Flow, Statements]:
    """Read the code before the loops, for what it has made of files, and the like, and what it has opened."""
    flow = Flow((OUTSIDE,))
    statements = Statements(flow, Objects(known), Libraries(frame.f_globals for _, frame in running_frames()), {})
    for path, frame, line in _begun(since):
        scope = Scope(frame.f_code, frame.f_globals, f"{path}: ", Running(locals_of(frame), frame.f_lineno))
        statements.read(behind(body_of(frame.f_code, frame.f_globals), line), scope)
    return flow, statements


def _read(
    flow: Flow,
    objects: Objects,
    since: Lines | None,
    hooks: Sequence[Any],
    others: tuple[Sequence[Any], Sequence[Any]] = ((), ()),
    *,
    apart: Collection[int] = (),
    again: Collection[int] = (),
    given: Mapping[Place, Sources] = types.MappingProxyType({}),
    handles: Handles | None = None,
) -> Statements:
    """Read the loops ahead; see `find_in_loops`.

    Args:
        flow: Records what is read and written.
        objects: Knows the objects that code names.
        since: Where to begin.
        hooks: Functions that calls of the trained cells also run.
        others: Functions that other threads run, and coroutines that wait.
        apart: ``id`` of cells of which the random operators are reported elsewhere.
        again: ``id`` of the data that are read again, and of their contents.
        given: What places were made of before.
        handles: What connections belong to.
    """
    begun = {frame.f_code for _, frame, _ in _begun(since)}
    running = {
        frame.f_code: None if frame.f_code in begun else Running(locals_of(frame), frame.f_lineno)
        for _, frame in running_frames()
    }
    statements = Statements(flow, objects, Libraries(frame.f_globals for _, frame in running_frames()), running)
    statements.run_with(hooks, *others, handles or {})
    statements.draws.operators = Operators(apart)
    statements.draws.read_again = again
    for _ in passes(flow):
        flow.used.clear()  # it is known only after the first pass which loops save
        for place, sources in given.items():
            flow.give(place, sources)
        for path, frame, line in _begun(since):
            now = Running(locals_of(frame), frame.f_lineno)
            scope = Scope(frame.f_code, frame.f_globals, f"{path}: ", now)
            flow.begin_frame()
            statements.read(ahead(body_of(frame.f_code, frame.f_globals), line), scope)
    return statements


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
