"""Tells what the objects that batches come from change themselves from what the steps of a training change in them.

A resume reads the data again, or restores them by their own state; what the steps change in them is in no checkpoint,
and is named. Guarantees: a look changes nothing. Main thread only.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from ckptkit.mindspore.observe.paths import Root, is_below
from ckptkit.mindspore.observe.value_kinds import ATOMS, Known, text_of_state
from ckptkit.mindspore.observe.walk import Node, Walk
from ckptkit.mindspore.observe.walk_roots import Reached

_SHARED = (*ATOMS, type, types.FunctionType, types.ModuleType)  # many objects hold these


class DataChanges:
    """Tells what the objects that batches come from change themselves from what the steps change in them."""

    def __init__(self) -> None:
        self.objects: dict[int, str] = {}
        self._first: dict[str, str] = {}
        self._before: tuple[int, dict[str, str]] = (-1, {})
        self._changed: set[str] = set()
        self._left_out: set[str] = set()  # generators that the state of a loader does not hold
        self._has_threads = False

    def look(self, reached: Reached, step: int, *, is_handed_out: bool) -> None:
        """Look at them as the batch of a micro-step is handed out, or at another moment."""
        nodes = _walked(Known(stored=reached.known.stored), *reached.data)
        self.objects = {node.identity: node.path for node in nodes if not issubclass(type(node.value), _SHARED)}
        self._has_threads = reached.has_threads and not reached.is_stateless
        texts = {node.path: node.text for node in nodes}
        self._first = {**texts, **self._first}
        state = reached.data_state()
        held = {node.text for node in _walked(Known(), state)} | _texts_of_generators(state)
        drawn = {path for path, text in texts.items() if text != self._first[path] and text.startswith("generator ")}
        self._left_out |= {path for path in drawn if state is not None and texts[path] not in held}
        if is_handed_out:
            self._before = step, texts
            return
        before = self._first if reached.is_stateless else self._before[1] if self._before[0] == step else {}
        self._changed |= {path for path, text in texts.items() if before.get(path, text) != text and text not in held}

    def changed(self, referred: Sequence[str]) -> list[str]:
        """Return the paths of what the steps have changed.

        Args:
            referred: The paths of what training refers to besides the data. Of a pipeline, threads change all else.
        """
        of_steps = [path for path in self._changed if not self._has_threads or is_below(path, referred)]
        return [*of_steps, *self._left_out]


def _texts_of_generators(state: Any) -> set[str]:
    parts = [*state.values()] if type(state) is dict else [*state] if type(state) in (list, tuple) else []
    return {text_of_state(state)}.union(*map(_texts_of_generators, parts))


def _walked(known: Known, *values: Any) -> list[Node]:
    walk = Walk(known)
    for value in values:
        walk.add(Root("data", "", type(value).__name__), value)
    walk.run()
    return [node for node in walk.nodes.values() if node.chain()[0].kind == "data"]
