"""Follows a path to an object, and to what sets it: `Places`.

Guarantees: follows and sets parts without running code of the user's. What a process does not have is a
`CannotPackError`. Main thread only.
"""

from __future__ import annotations

import sys
import types
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from ckptkit.mindspore.observe.frame_variables import set_variables, variables_of
from ckptkit.mindspore.observe.packing import CannotPackError
from ckptkit.mindspore.observe.paths import Chain, Root, chain_of
from ckptkit.mindspore.observe.value_kinds import MISSING, may_set, part_at, set_part
from ckptkit.mindspore.observe.walk_roots import Reached, is_module_level, label_of
from ckptkit.mindspore.parameters.apply import can_be_live

_SET, _FOLLOWED = ("variable", "global"), ("variable", "global", "callback", "cell", "given")


class Places:
    """Finds and sets objects of a training by their paths.

    Args:
        reached: What the training reaches now.
        frames: The running functions of the user's, innermost first.
    """

    def __init__(self, reached: Reached, frames: Sequence[types.FrameType]) -> None:
        self._reached, self._frames = reached, frames
        self._owners: list[tuple[int, int, str]] | None = None  # where the memory of each begins and ends

    def follow(self, chain: Chain) -> Any:
        """Return the object at a path."""
        root, steps = chain
        name, value = str(root), self._present(root)
        for step in steps:
            if value is MISSING:
                break
            name, value = step.key, part_at(value, step, self._reached.known)
        if value is MISSING:
            raise CannotPackError(f"there is no {name} in this process")
        return value

    def setter(self, chain: Chain) -> Callable[[Any], None]:
        """Return what sets the variable or the part of an object at a path, whatever changes before it is called."""
        root, steps = chain
        if steps:
            owner = self.follow((root, steps[:-1]))
            if not may_set(owner, steps[-1]):
                raise CannotPackError("cannot be replaced")
            return lambda value: set_part(owner, steps[-1], value)
        if root.kind == "global":
            module = self._module(root.owner, root.name)
            return lambda value: module.update({root.name: value})
        frame = self._frame(root.owner)
        return lambda value: set_variables(frame, {root.name: value})

    def resolve(self, reference: Sequence[Any]) -> Any:
        """Return the object of a reference."""
        kind, *place = reference
        if kind == "path":
            return self.follow(chain_of(place))
        value = self.named(*place) if kind == "named" else self._reached.known.parameters.get(place[0])
        if value is None:
            raise CannotPackError(f"there is no {'.'.join(place)} in this process")
        return value

    def named(self, module: str, qualname: str) -> Any:
        """Return the function or class of that name; None without one."""
        first, *rest = qualname.split(".")
        try:
            value = self._module(module, first).get(first)
        except CannotPackError:
            return None
        for name in rest:
            value = vars(value).get(name) if issubclass(type(value), type) else None
        return value

    def class_of(self, module: str, qualname: str) -> Any:
        """Return the class of that name."""
        kind = self.named(module, qualname)
        if not issubclass(type(kind), type):
            raise CannotPackError(f"there is no class {module}.{qualname} in this process")
        return kind

    def owner_of(self, value: Any) -> str | None:
        """Return the name of the stored parameter whose memory a parameter or an array has; None if it has another."""
        is_array = issubclass(type(value), np.ndarray)
        if is_array and not can_be_live():
            return None
        if self._owners is None:
            tensors = self._reached.known.parameters.items()
            # Private, since mindtorch replaces `Tensor.nbytes`; if MindSpore's own moves, this raises AttributeError.
            places = ((tensor.data_ptr(), tensor._nbytes, name) for name, tensor in tensors)
            self._owners = sorted((begin, begin + size, name) for begin, size, name in places)
        address = value.__array_interface__["data"][0] if is_array else value.data_ptr()
        before = bisect_right(self._owners, address, key=itemgetter(0)) - 1  # an array may begin within the memory
        return self._owners[before][2] if before >= 0 and address < self._owners[before][1] else None

    def _present(self, root: Root) -> Any:
        """Return what a path begins with; `MISSING` for a variable that is not set yet."""
        reached = self._reached
        if root.kind == "variable":
            return variables_of(self._frame(root.owner)).get(root.name, MISSING)
        if root.kind == "global":
            return self._module(root.owner, root.name).get(root.name, MISSING)
        if root.kind == "given":
            return dict(reached.given).get(root.name, MISSING)
        if root.kind not in _FOLLOWED:
            return MISSING
        name = root.name.partition("#")[0]
        same = [callback for callback in reached.callbacks if type(callback).__name__ == name]
        objects = same if root.kind == "callback" else [cell for _, cell in reached.cells]
        return objects[int(root.owner)] if int(root.owner) < len(objects) else MISSING

    def _frame(self, label: str) -> types.FrameType:
        for frame in self._frames:
            if label_of(frame) == label and not is_module_level(frame):
                return frame
        raise CannotPackError(f"{label} is not running in this process")

    def _module(self, name: str, variable: str) -> dict[str, Any]:
        """Return the variables of a module; of a script that another one runs, by its frame."""
        for frame in self._frames:
            if frame.f_globals.get("__name__") == name and variable in frame.f_globals:
                return frame.f_globals
        if name not in sys.modules:
            raise CannotPackError(f"there is no module {name} in this process")
        return vars(sys.modules[name])


def is_followed(chain: Chain) -> bool:
    """Return whether another process can follow a path."""
    root, steps = chain
    return root.kind in _FOLLOWED and all(step.kind != "part" for step in steps)


def is_settable(chain: Chain, owner: Any) -> bool:
    """Return whether another process can follow a path and set what is there, which is a part of ``owner``."""
    root, steps = chain
    return is_followed(chain) and (may_set(owner, steps[-1]) if steps else root.kind in _SET)
