"""Tells what the objects that batches come from change themselves from what the steps of a training change in them.

A resume reads the data again, or restores them by their own state; so what they change themselves is not stored. What
the steps change in them is in no checkpoint, and is named.

Guarantees: a look changes nothing. Main thread only.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from ckptkit.mindspore.observe.parts import Known
from ckptkit.mindspore.observe.paths import Root, is_below
from ckptkit.mindspore.observe.roots import Reached
from ckptkit.mindspore.observe.values import ATOMS, CONTAINERS, text_of_state
from ckptkit.mindspore.observe.walk import Node, Walk

_SHARED = (*ATOMS, type, types.FunctionType, types.ModuleType)  # many objects hold these


class DataChanges:
    """Tells what the objects that batches come from change themselves from what the steps change in them."""

    def __init__(self) -> None:
        self.objects: dict[int, str] = {}
        self._before: tuple[int, dict[str, str]] = (-1, {})
        self._plain: dict[str, str] = {}
        self._held: set[str] = set()
        self._changed: set[str] = set()
        self._has_threads = False
        self._left_out: set[str] = set()

    def look(self, reached: Reached, step: int, *, is_handed_out: bool) -> None:
        """Look at them as the batch of a micro-step is handed out, or at another moment."""
        walk = Walk(Known(stored=reached.known.stored))
        for value in reached.data:
            walk.add(Root("data", "", type(value).__name__), value)
        walk.run()
        nodes = [node for node in walk.nodes.values() if node.chain()[0].kind == "data"]
        self.objects = {node.identity: node.path for node in nodes if not issubclass(type(node.value), _SHARED)}
        state = reached.data_state()
        has_state = state is not None
        self._held = {node.text for node in _walked(state).values()} | _generators_in(state)
        for node in nodes:
            is_generator = has_state and node.text.startswith("generator ")
            is_watched = reached.is_stateless or is_generator or _is_plain(node)  # a list does not change itself
            has_changed = is_watched and self._plain.setdefault(node.path, node.text) != node.text
            if has_changed and not (is_generator and node.text in self._held):
                (self._changed if _is_plain(node) else self._left_out).add(node.path)
        self._has_threads = reached.has_threads
        if is_handed_out:
            self._before = step, {node.path: node.text for node in nodes}
        elif self._before[0] == step:
            before = self._before[1]
            changed = [node for node in nodes if before.get(node.path, node.text) != node.text]
            self._changed |= {node.path for node in changed if node.text not in self._held}

    def changed(self, referred: Sequence[str]) -> list[str]:
        """Return the paths of what the steps have changed.

        Args:
            referred: The paths of what training refers to besides the data. Of a pipeline, threads change all else.
        """
        of_steps = [path for path in self._changed if not self._has_threads or is_below(path, referred)]
        return [*of_steps, *self._left_out]


def _is_plain(node: Node) -> bool:
    """Return whether a node of the data lies in lists, tuples and dicts alone."""
    above = node.parent
    while above is not None and type(above.value) in CONTAINERS:
        above = above.parent
    return above is None and node.parent is not None


def _generators_in(state: Any) -> set[str]:
    """Return the texts of the generators whose states a state holds, as dicts or tuples of theirs."""
    parts, texts = [state], set[str]()
    while parts:
        part = parts.pop()
        texts.add(text_of_state(part))
        parts += part.values() if type(part) is dict else part if type(part) in (list, tuple) else ()
    return texts


def _walked(value: Any) -> dict[str, Node]:
    walk = Walk(Known())
    walk.add(Root("data", "", "state"), value)
    walk.run()
    return walk.nodes
