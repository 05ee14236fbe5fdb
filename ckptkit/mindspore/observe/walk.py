"""Walks the Python state that a training reaches, breadth first, and describes each part by its path: `Walk`.

A path says how the next process gets there again: a `Root`, then `Step`s. An object's parts have one path, the
shortest. What checkpoints store already is left out.

Guarantees: bounded in objects and depth; reads objects and runs no code of the user's. Main thread only.
"""

from __future__ import annotations

import enum
import functools
import re
import sys
import threading
import types
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.mindspore.observe.attributes import CACHED
from ckptkit.mindspore.observe.liveness import code_names
from ckptkit.mindspore.observe.parts import Known, parts_of
from ckptkit.mindspore.observe.paths import Chain, Root, Step
from ckptkit.mindspore.observe.users import is_users_class, is_users_function, library_of
from ckptkit.mindspore.observe.values import ATOMS, CONTAINERS, GENERATORS, own_text_of, text_of

OF_DATA = "of the data: "
_MOST_OBJECTS, _MOST_DEPTH = 20_000, 14
_ATOMS = frozenset(ATOMS)
_NEVER = (
    *(types.FrameType, types.CodeType, types.TracebackType, type(threading.Lock())),
    *(type(threading.RLock()), threading.Condition, re.Pattern, type(sys.flags)),
)
_EXTENDED_BY_USERS = (ms.Tensor, np.ndarray, *GENERATORS, *CONTAINERS)
_FIXED = (*ATOMS, tuple, type, types.FunctionType, types.BuiltinFunctionType)
_RANDOM_OR_TIME = frozenset(
    ("random", "rand", "randn", "randint", "normal", "uniform", "choice", "shuffle", "permutation", "time")
)


class Home(NamedTuple):
    """Says where the first look saw an object.

    Attributes:
        path: As text.
        chain: How to get there.
        signature: What an object that replaces it has to have, too.
    """

    path: str
    chain: Chain
    signature: Any


class Node:
    """One object or value that a walk reached.

    Attributes:
        path: Its path, as text.
        value: The object.
        parent: The node of the object that it is a part of; None for a root.
        step: Leads from there to it; of a root, a `Root`.
        depth: The number of steps from the root.
        text: Equal in every process for equal bits; of an object or a container, of itself without its parts.
        identity: Its ``id``.
        is_open: Whether its parts were walked.
        home: That of the object, if it has one.
        key: The path that leads to it from the nearest object with a home that it is a part of.
    """

    __slots__ = ("depth", "home", "identity", "is_open", "key", "parent", "path", "step", "text", "value")

    def __init__(self, value: Any, parent: Node | None, step: Step | Root) -> None:
        self.value, self.parent, self.step = value, parent, step
        self.path: str = str(step) if parent is None else f"{parent.path}{step}"
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.text = ""
        self.identity = id(value)
        self.is_open = False
        self.key = self.path
        self.home: Home | None = None

    def outwards(self) -> Iterator[Node]:
        """Yield it, what it is a part of, and so on; the last is a root."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def chain(self) -> Chain:
        """Return the root and the steps that lead to it."""
        root, *steps = reversed([node.step for node in self.outwards()])
        return root, tuple(steps)  # of the steps, only the first is a `Root`


class Walk:
    """One look at everything that is reached from roots.

    Args:
        known: What is left out.

    Attributes:
        known: The argument.
        nodes: What was reached, by path.
        seen: The objects whose parts were walked, by ``id``.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        self.nodes: dict[str, Node] = {}
        self.seen: dict[int, Node] = {}
        self._waiting: deque[Node] = deque()

    def add(self, root: Root, value: Any) -> None:
        """Add a root; the first of two with one path counts."""
        if str(root) not in self.nodes:
            self._waiting.append(Node(value, None, root))

    def run(self) -> None:
        """Walk from the roots that were added."""
        while self._waiting and len(self.seen) < _MOST_OBJECTS:
            node = self._waiting.popleft()
            if node.path not in self.nodes:
                self._visit(node)

    def _visit(self, node: Node) -> None:
        value = node.value
        kind: Any = type(value)
        if kind in _ATOMS:
            node.text = text_of(value) or ""
            self.nodes[node.path] = node
            return
        if id(value) in self.known.stored:
            if issubclass(kind, ms.Tensor) and node.step[0] in ("item", "key"):
                node.text = f"the parameter {getattr(value, 'name', '')}"  # which of them it refers to
                self.nodes[node.path] = node
            return
        if not _is_walked(kind):
            return
        if id(value) in self.known.data:
            node.text = f"{OF_DATA}{self.known.data[id(value)]}"
            self.nodes[node.path] = node
            return
        text = _text_of_cache(value) if kind is CACHED else text_of(value)
        node.text = own_text_of(value) if text is None else text
        if library_of(kind) != "ckptkit":
            self.nodes[node.path] = node
        has_parts = text is None or kind is CACHED or issubclass(kind, (enum.Enum, ms.Parameter))
        has_parts = has_parts or (issubclass(kind, _EXTENDED_BY_USERS) and is_users_class(kind))
        if has_parts and id(value) not in self.seen and node.depth < _MOST_DEPTH:
            self.seen[id(value)] = node
            node.is_open = True
            for step, part in parts_of(value, self.known):
                self._waiting.append(Node(part, None if type(step) is Root else node, step))


@functools.lru_cache(maxsize=4096)
def _is_walked(kind: Any) -> bool:
    if library_of(kind) == "ckptkit":
        return issubclass(kind, nn.Cell)  # the user's cells in it
    if issubclass(kind, threading.Thread):
        return is_users_class(kind)
    return not issubclass(kind, _NEVER)


def _text_of_cache(function: Any) -> str:
    return f"cache of {function.cache_info().currsize}" if _reads_state(function) else "cache"


def _reads_state(function: Any) -> bool:
    """Return whether a cached function names what can change, so that its values cannot be computed again."""
    wrapped = function.__wrapped__
    if type(wrapped) is not types.FunctionType or not is_users_function(wrapped):
        return type(wrapped) is types.MethodType
    draws = code_names(wrapped.__code__)[1] & _RANDOM_OR_TIME
    parts = (part for _, part in parts_of(wrapped, Known()))
    is_method = wrapped.__code__.co_varnames[:1] == ("self",)
    return is_method or bool(draws) or any(not issubclass(type(part), _FIXED) for part in parts)
