"""Follows a path to an object, and sets what it leads to: `Places`.

Guarantees: follows and sets parts without running code of the user's. What a process does not have is a
`CannotPackError`. Main thread only.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import mindspore as ms
import numpy as np

from ckptkit.mindspore.observe.frame_variables import set_variables, variables_of
from ckptkit.mindspore.observe.packing import CannotPackError, Unpacker
from ckptkit.mindspore.observe.parts import MISSING, may_set, part_at, set_part
from ckptkit.mindspore.observe.paths import Chain, Root, chain_of
from ckptkit.mindspore.observe.roots import Reached, is_module_level, label_of
from ckptkit.mindspore.observe.values import GENERATORS
from ckptkit.mindspore.observe.walk import Node

_ROOTS_FOLLOWED = ("variable", "global", "callback", "cell", "given")
_FILLED = (list, dict, set, deque, np.ndarray, bytearray, ms.Parameter, *GENERATORS)  # changed in place


class Places:
    """Finds and sets objects of a training by their paths.

    Args:
        reached: What the training reaches now.
        frames: The running functions of the user's, innermost first.
    """

    def __init__(self, reached: Reached, frames: Sequence[types.FrameType]) -> None:
        self._reached, self._frames = reached, frames
        self._objects: dict[str, Any] = {}
        self._owners: dict[int, str] | None = None

    def unpacker(self) -> Unpacker:
        """Return what puts values back; not an attribute, since it holds this object, and that holds parameters."""
        return Unpacker(self._object_of, self.class_of, self.owner_of)

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

    def resolve_before(self, unpacker: Unpacker, packed: Any) -> None:
        """Resolve all references in packed values, before putting some of them back changes where they lead to."""
        for reference in _references_in(packed):
            with contextlib.suppress(CannotPackError):  # which is said of the value that needs it
                value = self._objects[repr(reference)] = self._resolve(reference)
                unpacker.referred[id(value)] = value

    def put(self, unpacker: Unpacker, chain: Chain, first: int, packed: Any) -> None:
        """Put a packed value where a path leads to."""
        root, steps = chain
        owner = self.follow((root, steps[:-1])) if steps else None
        present = part_at(owner, steps[-1], self._reached.known) if steps else self._present(root)
        value = unpacker.slot(first, packed, None if present is MISSING else present)
        if steps and value is not present:
            try:
                set_part(owner, steps[-1], value)
            except (AttributeError, TypeError, IndexError) as error:
                raise CannotPackError(str(error)) from error
        elif root.kind == "variable" and not steps:
            set_variables(self._frame(root.owner), {root.name: value})
        elif root.kind == "global" and not steps:
            self._module(root.owner, root.name)[root.name] = value
        elif value is not present:
            raise CannotPackError("cannot be replaced")

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
        if self._owners is None:
            self._owners = {tensor.data_ptr(): name for name, tensor in self._reached.known.parameters.items()}
        is_array = issubclass(type(value), np.ndarray)
        return self._owners.get(value.__array_interface__["data"][0] if is_array else value.data_ptr())

    def _object_of(self, reference: Any) -> Any:
        key = repr(reference)
        return self._objects[key] if key in self._objects else self._resolve(reference)

    def _resolve(self, reference: Sequence[Any]) -> Any:
        kind, *place = reference
        if kind == "path":
            return self.follow(chain_of(place))
        value = self.named(*place) if kind == "named" else self._reached.known.parameters.get(place[0])
        if value is None:
            raise CannotPackError(f"there is no {'.'.join(place)} in this process")
        return value

    def _present(self, root: Root) -> Any:
        """Return what a path begins with; `MISSING` for a variable that is not set yet."""
        reached = self._reached
        if root.kind == "variable":
            return variables_of(self._frame(root.owner)).get(root.name, MISSING)
        if root.kind == "global":
            return self._module(root.owner, root.name).get(root.name, MISSING)
        if root.kind == "given":
            return dict(reached.given).get(root.name, MISSING)
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


def is_reachable(node: Node) -> bool:
    """Return whether another process can follow the path of a node."""
    root, steps = node.chain()
    return root.kind in _ROOTS_FOLLOWED and all(step.kind != "part" for step in steps)


def is_followed(node: Node) -> bool:
    """Return whether another process can follow the path of a node, and set what is there."""
    _, steps = node.chain()
    is_filled = issubclass(type(node.value), _FILLED)
    return is_reachable(node) and (is_filled or node.parent is None or may_set(node.parent.value, steps[-1]))


def _references_in(packed: Any) -> Iterator[Any]:
    if isinstance(packed, (list, tuple)):
        if len(packed) == 2 and type(packed[0]) is str and packed[0] == "reference":
            yield packed[1]
        else:
            for part in packed:
                yield from _references_in(part)
