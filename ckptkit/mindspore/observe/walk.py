"""Walks the Python state that a training reaches, breadth first, and describes each part by its path: `Walk`.

A path says how the next process gets there again: a `Root`, then `Step`s. An object's parts have one path, the
shortest. What checkpoints store already is left out.

Guarantees: bounded in objects and depth; reads objects and runs no code of the user's. Main thread only.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
import types
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import mindspore as ms
from mindspore import nn, ops

from ckptkit.mindspore.observe.paths import Chain, Root, Step
from ckptkit.mindspore.observe.user_code import is_users_class, library_of
from ckptkit.mindspore.observe.value_kinds import ATOMS, Known, described, text_of_atom

OF_DATA = "of the data: "
_MOST_OBJECTS, _MOST_DEPTH = 20_000, 14
_ATOMS = frozenset(ATOMS)
_NEVER = (
    *(types.FrameType, types.CodeType, types.TracebackType, type(threading.Lock())),
    *(type(threading.RLock()), threading.Condition, re.Pattern, type(sys.flags), ops.Primitive),
)

Fact: TypeAlias = tuple[str, bool]  # a path, and whether the content of the object there is meant or what is there


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
        is_content_of_owner: Whether it is an item of a container.
        home: That of the object, if it has one.
        key: The path that leads to it from the nearest object with a home that it is a part of.
    """

    __slots__ = (
        *("depth", "home", "identity", "is_content_of_owner", "is_open", "key", "parent", "path", "step", "text"),
        "value",
    )

    def __init__(self, value: Any, parent: Node | None, step: Step | Root) -> None:
        self.value, self.parent, self.step = value, parent, step
        self.path: str = str(step) if parent is None else f"{parent.path}{step}"
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.text = ""
        self.identity = id(value)
        self.is_open = self.is_content_of_owner = False
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

    def facts(self) -> Iterator[tuple[Fact, str]]:
        """Yield what its path leads to, and the content of the object that has its home elsewhere or here."""
        yield (self.key, False), self.text if self.home is None else f"the object of {self.home.path}"
        if self.home is not None:
            yield (self.home.path, True), self.text

    def place(self, *, is_content: bool) -> tuple[Node, Fact]:
        """Return the node with which it is stored: of what is new, the nearest part of an object with a home."""
        owner = self.parent
        if is_content and self.home is not None:
            return self, (self.home.path, True)
        if owner is None or (owner.home is not None and not self.is_content_of_owner):
            return self, (self.key, False)
        return owner.place(is_content=True)


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
            node.text = text_of_atom(value)
        elif id(value) in self.known.stored:
            if not (issubclass(kind, ms.Tensor) and node.step[0] in ("item", "key")):
                return
            node.text = f"the parameter {getattr(value, 'name', '')}"  # which of them it refers to
        elif not _is_walked(kind):
            return
        elif id(value) in self.known.data:
            node.text = f"{OF_DATA}{self.known.data[id(value)]}"
        else:
            node.text, parts = described(value, self.known)
            if parts and id(value) not in self.seen and node.depth < _MOST_DEPTH:
                self.seen[id(value)] = node
                node.is_open = True
                self._waiting += [Node(part, None if type(step) is Root else node, step) for step, part in parts]
            if library_of(kind) == "ckptkit":
                return
        self.nodes[node.path] = node


@functools.lru_cache(maxsize=4096)
def _is_walked(kind: Any) -> bool:
    if library_of(kind) == "ckptkit":
        return issubclass(kind, nn.Cell)  # the user's cells in it
    if issubclass(kind, threading.Thread):
        return is_users_class(kind)
    return not issubclass(kind, _NEVER)
