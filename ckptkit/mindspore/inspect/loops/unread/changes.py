"""Records what a call of code that is not read changes: its object, or an argument.

A call whose result nobody uses is there for what it changes: an object of C, or of Python's library, is taken for
changed by it, and so is what holds that object.

Guarantees: calls nothing of the user's. Main thread only.
"""

from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import functools
import gc
import logging
import multiprocessing.pool
import struct
import subprocess
import threading
import types
from collections import deque
from typing import Any

import numpy as np
from mindspore import amp, nn

from ckptkit.mindspore.inspect.attributes import UNKNOWN, in_class, is_symbol, owner_of
from ckptkit.mindspore.inspect.carried_attributes import GENERATORS
from ckptkit.mindspore.inspect.loops.calling.call import Call, is_seeded
from ckptkit.mindspore.inspect.loops.effects import (
    RESETS,
    REWORKS,
    changes,
    fills,
    is_ours,
    may_change,
    only_written,
    outputs,
)
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.iteration import Reader
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.outside.handles import opened_by
from ckptkit.mindspore.inspect.loops.outside.texts import is_path
from ckptkit.mindspore.inspect.loops.scope import CachePlace, Scope, Sources, Trains, Value, is_remade, together
from ckptkit.mindspore.inspect.loops.source import text_of
from ckptkit.mindspore.inspect.loops.unread.answers import CONNECTIONS
from ckptkit.mindspore.inspect.users import is_mindspores, is_users

_CONTAINERS = (list, tuple, dict, set, frozenset, deque, np.ndarray)  # whose methods have known names
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic)
# These run code that is read elsewhere, or keep the time.
_RUN = (
    *(concurrent.futures.Executor, concurrent.futures.Future, asyncio.AbstractEventLoop, asyncio.Future),
    *(threading.Thread, threading.Condition, threading.Barrier, type(threading.Lock()), type(threading.RLock())),
    *(multiprocessing.pool.Pool, subprocess.Popen, multiprocessing.process.BaseProcess),
)
_CODE = (types.ModuleType, types.FunctionType, types.MethodType, type)
_VALUES = (property, functools.cached_property, types.MemberDescriptorType)  # what a class has for its attributes
_LOGS = ("debug", "info", "warning", "error", "exception", "critical", "log")
_MOST = 2_000  # objects that are looked at in one


class Changes:
    """Records what calls change.

    Args:
        flow: Records what is read and written.
        objects: Knows the objects that code names.
        reader: Reads the expressions of what is changed.

    Attributes:
        unused: The call whose result the present statement does not use; None if it is another statement.
    """

    def __init__(self, flow: Flow, objects: Objects, reader: Reader) -> None:
        self._flow = flow
        self._objects = objects
        self._reader = reader
        self._held: dict[tuple[int, str], set[int]] = {}
        self.unused: ast.expr | None = None

    def of(self, call: Call) -> None:
        """Record the objects that a call changes in place."""
        node, target, owner = call.node, call.called.target, call.owner.target
        for one in outputs(target, node):
            self._reader.change(one, call.sources, call.scope, whole=one in only_written(target, node))
        reworked = owner if REWORKS.fullmatch(call.name) else next((one.target for one in call.given), None)
        if isinstance(reworked, nn.Cell) and (reworked is owner or target is amp.auto_mixed_precision):
            place = self._objects.reworks(reworked, f"{call.scope.path}{text_of(node.func)}")
            self._flow.write(place, call.sources, call.scope, whole=False)
        unbound = isinstance(owner, type) and changes(call.name, owner)  # list.append(losses, loss)
        if call.nodes and (unbound or fills(target, owner, call.name)):
            at = 1 if target is struct.pack_into and len(call.nodes) > 1 else 0
            self._reader.change(call.nodes[at], call.sources, call.scope)
            self._around(call.given[at].target, call.sources, call.scope)
        keeps = call.name == "setdefault" and not is_remade(Value(sources=call.sources))
        is_told = self.is_told(node, call.owner)
        if isinstance(node.func, ast.Attribute) and (keeps or is_told or changes(call.name, owner)):
            self._reader.change(node.func.value, call.sources, call.scope, whole=call.name in RESETS)
            self._around(owner, call.sources, call.scope)
        if not isinstance(node.func, ast.Attribute):  # add = losses.append
            self.by(target, call.sources, call.scope)
        if isinstance(node.func, ast.Attribute) and is_seeded(call):
            self._reader.store(node.func.value, Value(UNKNOWN, together(call.arguments)), call.scope)
        self._of_cached(call)

    def _of_cached(self, call: Call) -> None:
        """Record a change of what a cache keeps, now or later, such as of a parameter that is assigned."""
        if not may_change(call.called.target, call.name):
            return
        is_cell = isinstance(call.called.target, (Trains, nn.Cell))
        for one in (call.called if is_cell else call.owner, *call.given[:1]):
            if not isinstance(one.place, CachePlace):
                continue
            if not self._objects.is_named(one.target) and not self._objects.is_in_cells(one.target):
                self._flow.write(one.place, call.sources, call.scope, whole=False)

    def by(self, method: Any, sources: Sources, scope: Scope) -> None:
        """Record what a call of a method that is not the user's changes, such as that of a list."""
        bound = owner_of(method)
        is_changed = bound is not None and changes(method.__name__, bound)
        for place in self._objects.places_of(bound) if is_changed else ():
            self._flow.write(place, sources, scope, whole=method.__name__ in RESETS)

    def is_told(self, node: ast.Call, owner: Value) -> bool:
        """Return whether a call is there for what it changes in its object, whose code is not read."""
        if node is not self.unused or not isinstance(node.func, ast.Attribute):
            return False
        one = owner.target
        if one is UNKNOWN and owner.place is not None:  # a part of it, such as an item
            one = self._objects.at(owner.place)
        is_log = isinstance(one, (logging.Logger, logging.LoggerAdapter)) and node.func.attr in _LOGS
        method = in_class(type(one), node.func.attr)
        is_read = type(method) is types.FunctionType and is_users(method.__module__)
        is_method = method is not UNKNOWN and not isinstance(method, _VALUES)
        return is_method and self._is_opaque(one) and not (is_log or is_read)

    def _is_opaque(self, one: Any) -> bool:
        """Return whether an object keeps what it is given in memory that is not read."""
        if is_symbol(one) or isinstance(one, (*_PLAIN, *_CODE, *_CONTAINERS, *_RUN, *CONNECTIONS, *GENERATORS)):
            return False
        if is_mindspores(one) or isinstance(one, nn.Cell) or is_ours(one):
            return False
        return not (is_path(one) or self._objects.is_named(one)) and opened_by(one, "") is None

    def _around(self, one: Any, sources: Sources, scope: Scope) -> None:
        """Record a change of an object for those that hold it, such as a tree for one of its elements."""
        if not self._is_opaque(one):
            return
        for place, other in self._objects.met_like(one):
            if self._has(other, one):
                self._flow.write(place, sources, scope, whole=False)

    def _has(self, whole: Any, part: Any) -> bool:
        key = id(whole), type(part).__module__
        if key not in self._held:  # once for all parts: each call of a class's super() tells another object
            self._held[key] = _held_by(whole, key[1])
        return id(part) in self._held[key]


def _held_by(whole: Any, home: str) -> set[int]:
    """Return the ids of what an object of a library leads to, by containers and objects of that library."""
    found: set[int] = set()
    waiting = deque([whole])
    while waiting and len(found) < _MOST:
        for one in gc.get_referents(waiting.popleft()):
            if id(one) not in found and (isinstance(one, (dict, list, tuple)) or type(one).__module__ == home):
                found.add(id(one))
                waiting.append(one)
    return found
