"""Reads and sets variables of a running function or module from a function that it has called.

Guarantees: only the named variables change; none is deleted; the value stack stays as it is. So a loop keeps its
iterator, and a statement under way computes with what it has read (`liveness.operand_names`). CPython 3.10 to 3.12.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import inspect
import sys
import types
from collections.abc import Collection, Mapping
from typing import Any

_UNBOUND = object()
_REFERENCES = 3  # to a dict that only its frame holds: the frame's, our variable's, and getrefcount's argument


def set_variables(frame: types.FrameType, values: Mapping[str, object]) -> None:
    """Set variables of a frame that is suspended in a call.

    Args:
        frame: The frame, of this thread. A variable that it shares with other functions changes for them too.
        values: The new values by name. ``global`` names of a function are variables of its module.

    Raises:
        KeyError: The frame has no such variable. Nothing is set.
        RuntimeError: This Python does not let the variables be set.
    """
    new, code = dict(values), frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        if code.co_name != "<module>":
            raise RuntimeError(f"variables of class {code.co_name} cannot be set\nTrain in a function or a module.")
        _check_known(frame, new, {*code.co_names, *frame.f_globals})
        frame.f_globals.update(new)
        return
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    _check_known(frame, new, own)
    # Python copies them into this dict and back. A name that it does not have is not copied back, so for that moment it
    # holds the new values only. One instruction does all of it: a thread or a debugger may refresh the dict in between.
    snapshot = frame.f_locals
    before = dict(snapshot)  # keeps the old values alive too, so that no finalizer runs before all are set
    calls = (
        functools.partial(snapshot.clear),
        functools.partial(snapshot.update, new),
        functools.partial(ctypes.pythonapi.PyFrame_LocalsToFast, ctypes.py_object(frame), ctypes.c_int(0)),
    )
    collections.deque(map(functools.partial.__call__, calls), maxlen=0)
    del calls
    snapshot.update({name: value for name, value in before.items() if name not in own})
    variables = frame.f_locals  # refreshes the dict
    unset = sorted(name for name, value in new.items() if variables.get(name, _UNBOUND) is not value)
    del variables
    if unset:
        raise RuntimeError(
            f"Python {sys.version.partition(' ')[0]} did not set {', '.join(unset)} of {code.co_name}\n"
            "Keep them in an object that the checkpoint holds, such as one of `stateful`."
        )
    is_traced = sys.gettrace() is not None or sys.getprofile() is not None  # then Python copies the whole dict back
    if not is_traced and sys.getrefcount(snapshot) == _REFERENCES:  # nothing has called `locals` there
        snapshot.clear()  # what the function deletes later must not live on in it


def variables_of(frame: types.FrameType) -> dict[str, Any]:
    """Return the local variables of a frame as they are now, without keeping them alive.

    A function's ``f_locals`` is cached in its frame, which would keep weights alive that the function deletes, so the
    cache is cleared; it is kept if other code holds it.
    """
    cached = frame.f_locals
    variables = dict(cached)
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_function and sys.getrefcount(cached) == _REFERENCES:
        cached.clear()
    return variables


def _check_known(frame: types.FrameType, new: dict[str, object], known: Collection[str]) -> None:
    unknown = sorted(name for name in new if name not in known)
    if unknown:
        raise KeyError(f"{frame.f_code.co_name} has no variable {', '.join(unknown)}")
