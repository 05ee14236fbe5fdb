"""Acts when a cell is called that is no part of a graph, or before its next update. Main thread only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import nn


class Fences:
    """Holds what is to run once, before the next update of a train cell."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, fence: Callable[[], None]) -> None:
        if fence not in self._waiting:
            self._waiting.append(fence)

    def run(self) -> None:
        while self._waiting:
            self._waiting[-1]()  # popped only afterwards: a fence that raises runs again at the next call
            self._waiting.pop()


def replace_call(cell: nn.Cell, call: Callable[..., Any]) -> None:
    """Give a cell another ``__call__`` by a class; hooks do not run where it is overridden, and graphs compile them."""
    kind = type(cell)
    names = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    cell.__class__ = type(kind.__name__, (kind,), names)


def before_next_call(cell: nn.Cell, action: Callable[[], object]) -> None:
    """Call ``action`` once, right before the next call of ``cell`` that is no part of a graph."""
    kind, actions = type(cell), [action]

    def call(self: nn.Cell, *inputs: Any, **named: Any) -> Any:
        if type(self) is watched:
            self.__class__ = kind
        while actions:
            actions.pop()()
        return kind.__call__(self, *inputs, **named)

    replace_call(cell, call)
    watched = type(cell)
