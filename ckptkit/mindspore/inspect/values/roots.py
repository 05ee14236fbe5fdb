"""Names the objects from which the values of a training can be reached: what the running functions hold.

Guarantees: reads frames and names; runs no user code. Functions of installed libraries are left out, and so is what a
loop assigns in each iteration, and what each call of a repeated function makes anew. Main thread only.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Collection, Hashable, Iterator
from typing import Any, NamedTuple

from ckptkit.mindspore.inspect.frames import loops_ahead, running_frames, variables_ahead
from ckptkit.mindspore.inspect.loops.objects import place_in
from ckptkit.mindspore.inspect.loops.scope import Place, Running, Scope
from ckptkit.mindspore.inspect.users import is_installed

_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")


class Root(NamedTuple):
    """Names an object from which values are reached.

    Attributes:
        path: The expression for it.
        value: The object.
        place: The variable or attribute that holds it; None for a callback or a cell.
        key: Tells it from the other roots. Of a variable of a function, also its object: a later call has another one.
    """

    path: str
    value: Any
    place: Place | None
    key: Hashable


def roots_of_loops() -> list[Root]:
    """Return what the running functions of the user's hold, and do not assign in their loops, innermost first."""
    found: list[Root] = []
    is_repeated = False
    for path, frame in reversed([*running_frames()]):
        if is_installed(frame.f_code.co_filename):
            continue
        loops = loops_ahead(frame)
        own = set(frame.f_code.co_varnames) if is_repeated else set()  # made anew by each call
        found = [*_roots_of(path, frame, own.union(_assigned_in(frame.f_code, loops))), *found]
        is_repeated = is_repeated or any(frame.f_lasti in one for one in loops)
    return found


def _roots_of(path: str, frame: types.FrameType, without: Collection[str]) -> Iterator[Root]:
    scope = Scope(frame.f_code, frame.f_globals, "", Running({}, 0))
    for name, value in sorted(variables_ahead(frame), key=lambda one: one[0]):
        variable, _, part = name.partition(".")
        if variable not in without:
            home = frame.f_globals.get(variable) if part else None
            place = place_in(home, part) if home is not None else scope.place(name)
            is_local = place.within == id(frame.f_code)
            yield Root(f"{path}: {name}", value, place, (path, name, id(value) if is_local else None))


def _assigned_in(code: types.CodeType, loops: Collection[range]) -> Iterator[str]:
    stores = (one for one in dis.get_instructions(code) if one.opname in _STORES)
    return (one.argval for one in stores if any(one.offset in each for each in loops))
