"""Records every call of a training with digests of what it got and returned, in order.

Uses Python's own profiling hook, so that no cell, operator or function is replaced: what runs is what runs without it.
Guarantees: sees each call of a cell, of an operator or function of MindSpore written in Python, of the user's functions
and of Python's `random`, on the thread that starts it. Does not see inside a compiled graph, nor a function without
Python code: of those that the user's code calls, it has the names. Replaces a profiler that the script started. Values
that are not plain are left out. Training thread only.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.ops import Primitive

from ckptkit.core.stack import frames_from
from ckptkit.manager.hooks import Recorded
from ckptkit.mindspore.inspect.operators import DROPOUTS, functional, is_random_primitive
from ckptkit.mindspore.inspect.recording.qualified import qualified_name
from ckptkit.mindspore.inspect.users import is_users
from ckptkit.mindspore.inspect.values.digest import digest_of_value, is_plain, tensors_in

# Functions of MindSpore that compute. Others, such as those that read a context, would only make records long.
_COMPUTES = (
    *("mindspore.ops.function.", "mindspore.ops.auto_generate.", "mindspore.ops.tensor_method"),
    *("mindspore.ops.functional_overload", "mindspore.mint", "mindspore.numpy.", "mindspore.scipy."),
)
# Where MindSpore runs gradients and graphs. Private names: if they move, such a call is not recorded by itself, and
# what it returned is found in what gets it next.
_GRADIENTS = ("mindspore.ops.composite.base", "after_grad")
_GRAPH = "staging_specialize"
_OF = ("func", "fn", "fn_")  # their variables for the function
_CELL_CALL = nn.Cell.__call__.__code__
_INSTALLED = tuple({f"{sysconfig.get_path(one)}{os.sep}" for one in ("stdlib", "purelib", "platlib")})
# Parts of ckptkit in which training goes on; the last one watches the calls of a train cell.
_TRAINS = (
    *("ckptkit.mindspore.train", "ckptkit.mindspore.nn", "ckptkit.mindspore.data", "ckptkit.data", "ckptkit.nn"),
    "ckptkit.mindspore.state.observe",
)
_MAX_CALLED = 8
_UNREMARKABLE = (type(None), types.ModuleType, list, dict, tuple, set, str, bytes, int, float, type)


@dataclass(frozen=True)
class _Code:
    """Says what calls of one code are."""

    kind: str
    name: str
    arguments: tuple[str, ...]


class CallRecorder:
    """Records the calls of one training.

    Args:
        names: Names of its cells with their classes, by ``id``.
        write: Gets each event.
    """

    def __init__(self, names: Mapping[int, str], write: Callable[[Recorded], None]) -> None:
        self._names = names
        self._write = write
        self._codes: dict[types.CodeType, _Code | None] = {}
        self._own: dict[types.CodeType, bool] = {}
        self._running: list[tuple[types.FrameType, str, str]] = []
        self._called: list[str] = []
        self._muted: types.FrameType | None = None

    def start(self) -> None:
        """Record from now on."""
        # Python does not profile what the hook itself calls.
        sys.setprofile(self._look)

    def _look(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if self._muted is not None:
            if event == "return" and frame is self._muted:
                self._muted = None
        elif event == "call" and self._is_beside_training(frame):
            self._muted = frame
        elif event == "c_call":
            self._note_called(frame, argument)
        elif event == "call":
            self._begin(frame)
        elif event == "return" and self._running and self._running[-1][0] is frame:
            self._end(argument)

    def _begin(self, frame: types.FrameType) -> None:
        code = self._code_of(frame)
        if code is None:
            return
        variables = frame.f_locals
        kind, where = self._called_what(code, variables)
        given = {name: variables[name] for name in code.arguments if name in variables}
        self._emit("call", kind, where, frame.f_back, given)
        self._running.append((frame, kind, where))

    def _end(self, returned: Any) -> None:
        frame, kind, where = self._running.pop()
        if returned is not None:
            self._emit("return", kind, where, frame.f_back, {"output": returned})

    def _emit(
        self, event: Any, kind: str, where: str, caller: types.FrameType | None, found: Mapping[str, Any]
    ) -> None:
        values: dict[str, str] = {}
        drawn: dict[str, str] = {}
        for name, value in found.items():
            if value is None or isinstance(value, str) or not is_plain(value):
                continue
            if any(True for _ in tensors_in(value)):
                values[name] = digest_of_value(value)
            for at, number in enumerate(_numbers_in(value)):
                # An operator depends on the numbers that it gets; what the user's code does with them is unknown.
                target = drawn if kind in ("code", "random") else values
                target[f"{name}.{at}"] = digest_of_value(number)
        called, self._called = tuple(self._called), []
        line = _line_of(caller)
        depth = len(self._running)
        self._write(
            Recorded(
                event=event, depth=depth, kind=kind, where=where, line=line, values=values, drawn=drawn, called=called
            )
        )

    def _note_called(self, frame: types.FrameType, function: Any) -> None:
        owner = getattr(function, "__self__", None)
        if type(owner) in _UNREMARKABLE and getattr(owner, "__name__", "builtins") == "builtins":
            return
        if not self._is_own(frame):
            return
        home = owner.__name__ if isinstance(owner, types.ModuleType) else type(owner).__name__
        self._called = [*self._called, f"{home}.{function.__name__}"][-_MAX_CALLED:]

    def _is_beside_training(self, frame: types.FrameType) -> bool:
        """Return whether ckptkit saves, observes or restores there: that is done at other moments in another life."""
        name = frame.f_globals.get("__name__")
        return isinstance(name, str) and name.startswith("ckptkit.") and not name.startswith(_TRAINS)

    def _is_own(self, frame: types.FrameType) -> bool:
        if frame.f_code not in self._own:
            self._own[frame.f_code] = _is_own(frame)
        return self._own[frame.f_code]

    def _code_of(self, frame: types.FrameType) -> _Code | None:
        code = frame.f_code
        if code not in self._codes:
            self._codes[code] = _understood(frame)
        return self._codes[code]

    def _called_what(self, code: _Code, variables: Mapping[str, Any]) -> tuple[str, str]:
        """Return the kind and the name of a call."""
        one = variables.get("self")
        if code.kind == "cell":
            kind = "graph" if ms.get_context("mode") == ms.GRAPH_MODE else code.kind
            draws = isinstance(one, DROPOUTS)
            return "random cell" if draws else kind, self._names.get(id(one), type(one).__name__)
        if code.kind == "operator":
            kind = "random operator" if is_random_primitive(one) else code.kind
            return kind, f"operator {getattr(one, 'name', type(one).__name__)}"
        if code.kind in ("graph", "gradients"):
            of = next((variables[name] for name in _OF if name in variables), None)
            return code.kind, f"{code.name} of {getattr(of, '__qualname__', type(of).__name__)}"
        return code.kind, code.name


def _understood(frame: types.FrameType) -> _Code | None:
    """Return what calls of a frame's code are; None if they are not recorded."""
    code = frame.f_code
    kind, name = _kind_of(frame)
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    # Not the object itself: it may be under construction, such as a generator that has no state yet.
    given = tuple(one for one in code.co_varnames[:count] if one != "self")
    return _Code(kind, name, given) if kind else None


def _kind_of(frame: types.FrameType) -> tuple[str, str]:
    """Return the kind and the name of what a frame runs; the kind is empty if it is not recorded."""
    code, module, one = frame.f_code, str(frame.f_globals.get("__name__", "")), frame.f_locals.get("self")
    name = qualified_name(frame)
    kind = ""
    if code is _CELL_CALL:
        kind = "cell"
    elif isinstance(one, nn.Cell) and code.co_name == "construct":
        pass  # the call of the cell has it
    elif isinstance(one, Primitive) and code.co_name == "__call__":
        kind = "operator"
    elif (module, code.co_name) == _GRADIENTS:
        kind, name = "gradients", "the gradients"
    elif code.co_name == _GRAPH and module.endswith(".api"):
        kind, name = "graph", "the graph"
    elif module.startswith(_COMPUTES):
        public = _codes_that_draw().get(code)
        kind = "random operator" if public else "function"
        name = public or f"{'mint' if module.startswith('mindspore.mint') else 'ops'}.{name}"
    elif module == "random":
        kind, name = "random", f"random.{name}"
    elif _is_own(frame):
        name = f"{name.replace('<locals>.', '')}() in {Path(code.co_filename).name}:{code.co_firstlineno}"
        kind = "code"
    return kind, name


@functools.cache
def _codes_that_draw() -> dict[types.CodeType, str]:
    found = functional().values()
    return {one.__code__: name for one, name, _ in found if isinstance(one, types.FunctionType)}


def _numbers_in(value: Any) -> list[Any]:
    """Return the numbers in a plain value that are not in an array: itself, or items of a tuple or list."""
    items = value if isinstance(value, tuple | list) else (value,)
    return [one for one in items if isinstance(one, bool | int | float | complex | np.generic)]


def _is_own(frame: types.FrameType) -> bool:
    """Return whether code is the user's: neither a library's, nor made of text, such as that of a dataclass."""
    module, file = frame.f_globals.get("__name__"), frame.f_code.co_filename
    return bool(module) and is_users(module) and not file.startswith(("<", *_INSTALLED))


def _line_of(frame: types.FrameType | None) -> str:
    """Return the line of the user's code that is running, with its function."""
    for one in frames_from(frame):
        if _is_own(one):
            name = qualified_name(one).replace("<locals>.", "")
            within = "" if name == "<module>" else f" in {name}()"
            return f"{Path(one.f_code.co_filename).name}:{one.f_lineno}{within}"
    return ""
