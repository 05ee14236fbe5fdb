"""Reads what threads and tasks of `asyncio` do while a loop goes on, and what tasks tell to those who wait for them.

Guarantees: as for `ckptkit.mindspore.inspect.loops`, which says what is found; runs no task. Main thread only.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import re
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any

from ckptkit.mindspore.inspect.attributes import in_class, own_attributes
from ckptkit.mindspore.inspect.frames import locals_of, running_frames
from ckptkit.mindspore.inspect.loops.calling.call import Call
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.iteration import Reader
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.scope import MARKS, Running, Scope, Sources, together
from ckptkit.mindspore.inspect.loops.source import ahead, behind, body_of
from ckptkit.mindspore.inspect.users import is_of_users, is_users

_TELLS = re.compile(r"set|set_result|set_exception|put(_nowait)?|send\w*|write|call_soon\w*|append(left)?|notify\w*")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Beside:
    """Reads what runs beside a loop.

    Args:
        flow: Records what is read and written.
        objects: Knows the objects that code names.
        reader: Reads calls.

    Attributes:
        threads: Functions that other threads run.
        tasks: Coroutines that wait, or have not begun.
        told: What the answers of tasks are made of.
    """

    def __init__(self, flow: Flow, objects: Objects, reader: Reader) -> None:
        self._flow = flow
        self._objects = objects
        self._reader = reader
        self._is_task = False
        self.threads: list[Any] = []
        self.tasks: list[Any] = []
        self.told: Sources = frozenset()

    def read(self, scope: Scope) -> None:
        """Read what others do while a loop that saves goes on."""
        if not self._flow.innermost_saves():
            return
        for one in self.threads:
            with self._flow.beside():
                self._reader.calls.follow(one, (), {}, scope)
        self._is_task = True
        for task in self.tasks:
            with self._flow.beside():
                self._read_task(task)
        self._is_task = False

    def starts(self, call: Call) -> None:
        """Record that a call starts a thread of a class of the user's."""
        one = call.owner.target
        if call.name != "start" or not isinstance(one, threading.Thread):
            return
        run = types.MethodType(in_class(type(one), "run"), one)
        if is_of_users(one) and run not in self.threads:
            self.threads.append(run)

    def tells(self, call: Call) -> None:
        """Record what a task tells by a call: a result, an item of a queue."""
        if self._is_task and _TELLS.fullmatch(call.name):
            sources = (together(call.arguments) | self._flow.control) - MARKS
            self.told |= frozenset(one for one in sources if not _is_queue(self._objects.at(one)))

    def _read_task(self, coroutine: Any) -> None:
        """Read the loops of a task from where it is; its variables last from one batch to the next."""
        frame, code = coroutine.cr_frame, coroutine.cr_code
        body, is_begun = body_of(code, frame.f_globals), inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED
        left = ahead(body, frame.f_lineno) if is_begun else body
        line = next((one.lineno for part in left for one in ast.walk(part) if isinstance(one, _LOOPS)), None)
        if line is None:  # it answers once
            return
        now = Running(locals_of(frame), frame.f_lineno if is_begun else 0)
        inside = Scope(code, frame.f_globals, f"{code.co_name}(): ", now)
        for name in code.co_varnames:
            found = self._objects.places_of(inside.value(name).target) if name in now.values else []
            if found:
                inside.known[name] = inside.known[name]._replace(place=found[0])
        self._flow.lasting.add(id(code))
        with self._flow.once(True):
            self._reader.calls.run(() if is_begun else behind(body, line), inside)
        self._reader.calls.run(ahead(body, line), inside)


def running_threads() -> Iterator[Any]:
    """Yield the functions that other threads run."""
    for one in threading.enumerate():
        own = own_attributes(one)
        if type(one) is threading.Thread and callable(own.get("_target")):
            yield functools.partial(own["_target"], *(own.get("_args") or ()), **(own.get("_kwargs") or {}))
        elif is_of_users(one):
            yield types.MethodType(in_class(type(one), "run"), one)


def waiting_tasks() -> Iterator[Any]:
    """Yield the coroutines of the user's that wait in an event loop which the running code is in, or names."""
    for loop in _event_loops():
        for task in _by_age(asyncio.all_tasks(loop)):
            one: Any = task.get_coro()
            is_own = inspect.iscoroutine(one) and one.cr_frame is not None and not one.cr_running
            if is_own and is_users(one.cr_frame.f_globals.get("__name__")):
                yield one


def _by_age(tasks: Iterable[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    return sorted(tasks, key=lambda one: (len(one.get_name()), one.get_name()))


def _event_loops() -> list[asyncio.AbstractEventLoop]:
    found: dict[int, asyncio.AbstractEventLoop] = {}
    named = [
        value for _, frame in running_frames() for value in [*locals_of(frame).values(), *frame.f_globals.values()]
    ]
    held = [own_attributes(one).get("_loop") for one in named if type(one).__module__.startswith("asyncio.")]
    for one in [asyncio._get_running_loop(), *named, *held]:
        if issubclass(type(one), asyncio.AbstractEventLoop):
            found[id(one)] = one
    return [*found.values()]


def _is_queue(one: Any) -> bool:
    return hasattr(type(one), "put") and hasattr(type(one), "get")
