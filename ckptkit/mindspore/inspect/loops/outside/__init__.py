"""Records what code reads and writes outside of the process: files, folders, databases and the environment.

Whatever code calls something there, it is one thing: by its path, of a handle by what it was opened at. What was
written whole in an iteration is made of that iteration alone.

Guarantees: calls nothing of the user's; opens no file. Main thread only.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Sequence
from typing import Any

from ckptkit.mindspore.inspect.attributes import UNKNOWN
from ckptkit.mindspore.inspect.loops.calling.call import Call
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.outside.handles import (
    IN_MEMORY,
    Handle,
    Thing,
    connection_of,
    file_at,
    opened_by,
    variable,
)
from ckptkit.mindspore.inspect.loops.outside.operations import Use, begins_empty, opened, uses_of
from ckptkit.mindspore.inspect.loops.outside.texts import made_text, spelled
from ckptkit.mindspore.inspect.loops.scope import DATA, Place, Scope, Sources, Value
from ckptkit.mindspore.inspect.loops.source import text_of

Handles = dict[int, tuple[Any, Handle]]
OUTSIDE = "what is in it"  # in a file, a folder, a database or the environment
_ASKS = ("__getitem__", "__contains__", "__iter__", "__next__", "__len__")
_COUNTS = ("total_changes", "lastrowid", "rowcount")  # of connections and cursors


class Outside:
    """Records what is read and written outside of the process.

    Args:
        flow: Records what is read and written.
        objects: Knows the objects that code names.

    Attributes:
        handles: By the id of each connection, itself and what it belongs to, as far as code says that.
    """

    def __init__(self, flow: Flow, objects: Objects) -> None:
        self._flow = flow
        self._objects = objects
        self.handles: Handles = {}
        self._swept: dict[str, Place] = {}  # folders of which all may have been written at once
        self._met: dict[Place, None] = {}

    def of(self, call: Call) -> Sources:
        """Record what a call reads and writes; return what it reads."""
        found = frozenset[Place]()
        owner = self._handle(call.owner.target, call.node.func)
        pairs = [*zip(call.given, call.nodes, strict=True)]
        pairs += [(call.named[one.arg], one.value) for one in call.node.keywords]
        handles = [one for value, node in pairs if (one := self._handle(value.target, node)) is not None]
        for use in uses_of(call, owner, handles):
            source = self._read(use.source, call.scope) if use.source is not None else frozenset()
            found |= self._read(use.thing, call.scope) if use.reads else frozenset()
            if use.writes:
                self._write(use, call.sources | source, call.scope)
                connection = connection_of(call.owner.target)
                if connection is not None and self._flow.is_looping():
                    self._objects.in_place.setdefault(id(connection), f"{call.scope.path}{use.thing.shown}")
        return found

    def made(self, call: Call, sources: Sources) -> Value | None:
        """Return the text, the path, or the open file or the like that a call gives; None for anything else."""
        owner = self._handle(call.owner.target, call.node.func)
        if owner is not None and owner.is_database and call.name in ("cursor", "execute", "executemany"):
            return Value(owner, sources)
        handles = [one for value in call.arguments if (one := self._handle(value.target, None)) is not None]
        handle = opened(call, handles)
        if handle is not None and begins_empty(call):
            self._flow.write(self._place(handle.thing, call.scope), frozenset(), call.scope, whole=True)
        target = handle if handle is not None else made_text(call)
        return Value(target, sources) if target is not UNKNOWN else None

    def mentioned(self, text: str) -> list[Place]:
        """Return the files that code reads or writes whose names are in a text, such as a command."""
        names = ((place, os.path.basename(str(place.within))) for place in [*self._met])
        return [place for place, name in names if name and "{" not in name and name in text]

    def item(self, owner: Value, name: str, key: Value | None, scope: Scope) -> Sources:
        """Record that an operator asks `os.environ`, or an open file, or the like; return what is read."""
        if name not in _ASKS:
            return frozenset()
        if owner.target is os.environ:
            asked = key.target if key is not None else None
            return self._read(variable(asked if type(asked) is str else None), scope)
        one = self._handle(owner.target, None)
        return self._read(one.thing, scope) if one is not None else frozenset()

    def set_item(self, owner: Value, key: Value, written: Sources, scope: Scope) -> None:
        """Record that an item of `os.environ`, or of a shelf, is made of ``written``, or deleted."""
        handle = self._handle(owner.target, None)
        if owner.target is os.environ:
            one = variable(key.target if type(key.target) is str else None)
            self._write(Use(one, whole=bool(one.within), sweeps=not one.within), written, scope)
        elif handle is not None:
            self._write(Use(handle.thing), written, scope)

    def count(self, owner: Any, name: str, scope: Scope) -> Sources:
        """Record that code asks a connection or a cursor for a number of rows; return what is read."""
        one = self._handle(owner, None) if name in _COUNTS else None
        return self._read(one.thing, scope) if one is not None else frozenset()

    def meet(self, made: Any, real: Any) -> None:
        """Record what a connection belongs to that code has made; ``made`` stands for it."""
        connection = connection_of(real)
        if isinstance(made, Handle) and connection is not None and not made.thing.key.startswith(IN_MEMORY):
            self.handles[id(connection)] = connection, made

    def makes_file(
        self,
        one: ast.If,
        scope: Scope,
        read: Callable[[ast.expr, Scope], Value],
        block: Callable[[Sequence[ast.stmt], Scope], list[Value]],
    ) -> bool:
        """Read an ``if`` that makes a file where there is none, and trains nothing; return whether it is one.

        Behind it, the file is there: a resumed run finds the one that was made at this place.

        Args:
            one: The statement; if it does anything else, it must be read as any other.
            scope: Its variables.
            read: Reads an expression.
            block: Reads statements, and returns what they return.
        """
        asked = _asked_for(one.test) if not one.orelse else None
        with self._flow.quiet():
            text = spelled(read(asked, scope).target) if asked is not None else None
        if text is None:
            return False
        place, is_made = self._place(file_at(text), scope), [False]

        def make() -> None:
            returned = block(one.body, scope)
            trains = place in self._flow.steering  # by what runs only where there is no file
            is_made[0] = self._flow.is_assigned(place) and not (trains or returned)

        self._flow.either(frozenset((place,)), make, lambda: None, leaves=False)
        if is_made[0]:
            with self._flow.quiet():
                self._flow.write(place, self._flow.read(place, scope) - {place}, scope, whole=True)
        return is_made[0]

    def renamed(self, place: Place) -> Place:
        """Return the place that is known for one of a connection by now."""
        keys = {f"database {at}": one.thing.key for at, (_, one) in self.handles.items()}
        return Place(keys.get(str(place.within), place.within), place.name)

    def _handle(self, one: Any, node: ast.expr | None) -> Handle | None:
        """Return what an open file, connection or cursor belongs to; None for other objects."""
        if one is UNKNOWN:
            return None
        at = id(connection_of(one))
        if at in self.handles:
            return self.handles[at][1]
        owner = node.value if isinstance(node, ast.Attribute) else node
        return opened_by(one, text_of(owner) if owner is not None else "")

    def _read(self, one: Thing, scope: Scope) -> Sources:
        place = self._place(one, scope)
        if one.alike and not self._flow.is_assigned(place):
            place = self._place(one._replace(key=one.alike), scope)
        found, within = self._flow.read(place, scope), one.within
        while within:
            swept = self._swept.get(f"in {within}")
            found |= self._flow.read(swept, scope) if swept is not None else frozenset()
            within = os.path.dirname(within) if os.path.dirname(within) != within else ""
        return found

    def _write(self, use: Use, sources: Sources, scope: Scope) -> None:
        """Record a write; that there is a file may say what training did, whatever is in it."""
        one, sources = use.thing, sources | frozenset((DATA,))
        place = self._place(one, scope)
        self._flow.write(place, sources, scope, whole=use.whole)
        if use.sweeps:
            self._swept[one.key] = place
        if one.alike:
            self._flow.write(self._place(one._replace(key=one.alike), scope), sources, scope, whole=False)
        if one.within:
            around = self._place(Thing(f"in {one.within}", one.around), scope)
            self._flow.write(around, sources, scope, whole=False)

    def _place(self, one: Thing, scope: Scope) -> Place:
        place = Place(one.key, OUTSIDE)
        self._met[place] = None
        self._objects.note(f"{scope.path}{one.shown}", None, place)
        return place


def _asked_for(test: ast.expr) -> ast.expr | None:
    """Return the path of which a condition says that there is nothing; None for another condition."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Attribute(attr="exists" | "isfile"), args=[path])):
            return path
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Attribute(path, "exists" | "is_file"), args=[])):
            return path
    return None
