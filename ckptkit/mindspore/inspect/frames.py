"""Finds the user's functions that are running, and the variables that they are going to use.

Guarantees: reads existing objects; runs no user code. The next lines of a notebook or a prompt are unknown, so there
every variable counts as used. Main thread only.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from ckptkit.core.stack import frames_from
from ckptkit.mindspore.inspect.code.bytecode import functions_of
from ckptkit.mindspore.inspect.code.control_flow import flow_of
from ckptkit.mindspore.inspect.code.names import names_in, variables_in
from ckptkit.mindspore.inspect.contents import named_in
from ckptkit.mindspore.inspect.users import is_users

_OF_MODULES = ("LOAD_NAME", "LOAD_GLOBAL")
_OWN = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")  # no variable of the module, also if they have no value yet


Lines: TypeAlias = Mapping[tuple[int, types.CodeType], int]


def loop_variables() -> Iterator[tuple[str, object]]:
    """Yield what the running code is going to use, each with its place, innermost function first."""
    for place, frame in running_frames():
        yield from ((f"{place}: {name}", value) for name, value in variables_ahead(frame))


def running_frames() -> Iterator[tuple[str, types.FrameType]]:
    """Yield the running user frames with their names, innermost first."""
    for frame in frames_from(sys._getframe(1)):
        if is_users(frame.f_globals.get("__name__")):
            name = frame.f_code.co_name
            yield ("script" if name == "<module>" else f"{name}()"), frame


def written_texts() -> frozenset[tuple[type, str | bytes]]:
    """Return the texts and bytes that are written in the running user code, and in functions and classes beside it.

    Each with its type: a text and bytes are never compared, which `python -bb` refuses.
    """
    frames = [frame for _, frame in running_frames()]
    modules = {id(frame.f_globals): frame.f_globals for frame in frames}
    values = [one for variables in modules.values() for one in [*variables.values()]]
    classes = (one for one in values if issubclass(type(one), type) and is_users(one.__module__))
    members = (one for kind in classes for one in [*vars(kind).values()])
    values += [one.__func__ if type(one) in (staticmethod, classmethod) else one for one in members]
    found = set[tuple[type, str | bytes]]()
    functions = (function for one in values for function, _ in functions_of(one) if is_users(function.__module__))
    waiting: list[object] = [*(frame.f_code for frame in frames), *(one.__code__ for one in functions)]
    while waiting:
        one = waiting.pop()
        if isinstance(one, types.CodeType):
            waiting.extend(one.co_consts)
        elif isinstance(one, (tuple, frozenset)):
            waiting.extend(one)
        elif isinstance(one, (str, bytes)):
            found.add((type(one), one))
    return frozenset(found)


def running_lines() -> Lines:
    """Return the line at which each running user frame is, by the frame's id and code; keeps no frame alive."""
    return {(id(frame), frame.f_code): frame.f_lineno for _, frame in running_frames()}


def locals_of(frame: types.FrameType) -> dict[str, Any]:
    """Return the local variables as they are now, without keeping them alive.

    Python caches a function's ``f_locals`` in its frame, which would keep alive weights that the function deletes, so
    the cache is cleared. ``locals()`` in the function returns the same object; it is kept if other code holds it.
    """
    kept = frame.f_locals
    found = dict(kept)
    # The three references: the frame's, our variable's, and getrefcount's argument.
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.getrefcount(kept) == 3:
        kept.clear()
    return found


def made_anew(frame: types.FrameType) -> set[str]:
    """Return the variables of ``frame`` that its code assigns again before anything reads them.

    Those that a function in it names may be read by that function.
    """
    code = frame.f_code
    inner = (variables_in(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return flow_of(code).assigned_anew(frame.f_lasti) - set(code.co_cellvars).union(*inner)


def loops_ahead(frame: types.FrameType) -> list[range]:
    """Return the instruction offsets of the loops that ``frame`` is in or has not reached yet."""
    flow = flow_of(frame.f_code)
    ahead = flow.ahead(frame.f_lasti)
    return [part for loop in flow.loops if not ahead.isdisjoint(loop) for part in flow.ranges(loop)]


def variables_ahead(frame: types.FrameType) -> Iterator[tuple[str, object]]:
    """Yield what the code of ``frame`` names from its position on, and in the loops that it is in."""
    own = locals_of(frame)
    scopes = (own, frame.f_globals)
    if "__file__" not in frame.f_globals:
        yield from named_in(own.keys(), *scopes, parts=own.keys())
        return
    flow = flow_of(frame.f_code)
    offsets = flow.ahead(frame.f_lasti)
    ahead = [one for one in flow.instructions if one.offset in offsets]
    inner = [one.argval for one in ahead if isinstance(one.argval, types.CodeType)]
    names = {one.argval for one in ahead if one.opname.startswith(_OF_MODULES)}.union(*map(variables_in, inner))
    names |= {one.argval for one in ahead if one.opname.startswith(_OWN) and one.argval in own}
    parts = {one.argval for one in ahead if one.opname in ("LOAD_ATTR", "LOAD_METHOD")}.union(*map(names_in, inner))
    # Sorted: an object is found by its first name, which must be the same in every process.
    yield from named_in(sorted(names), *scopes, parts=sorted(parts))
