"""Records what code reads and writes outside of the process: files, folders, databases and the environment.

Guarantees: calls nothing. Main thread only.
"""

from __future__ import annotations

import os

from ckptkit.mindspore.inspect.loops.call import Call
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.outside.operations import outside_of, variable_of
from ckptkit.mindspore.inspect.loops.scope import DATA, Place, Scope, Sources, Value

OUTSIDE = "what is in it"  # in a file, a folder, a database or the environment


class Outside:
    """Records what is read and written outside of the process.

    Args:
        flow: Records what is read and written.
        objects: Knows the objects that code names.
    """

    def __init__(self, flow: Flow, objects: Objects) -> None:
        self._flow = flow
        self._objects = objects

    def of(self, call: Call) -> Sources:
        """Record that a call reads or writes what is outside of the process; return what it reads."""
        found = frozenset[Place]()
        for name, is_read, is_written in outside_of(call):
            place = self._outside(name, call.scope)
            found |= self._flow.read(place, call.scope) if is_read else frozenset()
            if is_written:  # that there is a file may say what training did, whatever is in it
                self._flow.write(place, call.sources | frozenset((DATA,)), call.scope, whole=False)
        return found

    def environment(self, owner: Value, key: Value, scope: Scope, written: Sources | None = None) -> Sources:
        """Record that an item of `os.environ` is read, or made of ``written``; return what is read."""
        if owner.target is not os.environ:
            return frozenset()
        place = self._outside(variable_of(key), scope)
        if written is None:
            return self._flow.read(place, scope)
        self._flow.write(place, written | frozenset((DATA,)), scope, whole=False)
        return frozenset()

    def _outside(self, name: str, scope: Scope) -> Place:
        place = Place(name, OUTSIDE)
        self._objects.note(f"{scope.path}{name}", None, place)
        return place
