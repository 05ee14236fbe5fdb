"""Looks at parameters around the first call of a train cell in this process.

The forward pass should not change parameters that a save reads in place while it runs.

Guarantees: if the first micro-step of this process changes a parameter that only an update should change, the parameter
is named, and every save from then on copies it. One that is first written later fails the save that reads it. Main
thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from mindspore import nn

from ckptkit.core.text import some
from ckptkit.mindspore.parameters.parameters import CellParameters
from ckptkit.mindspore.train.cell import AccumulationTrainCell

_log = logging.getLogger("ckptkit")


def watch_forward(cell: nn.Cell, parameters: CellParameters, before: Callable[[], object] = lambda: None) -> None:
    """Make ``cell`` compare the digests of its steady ``parameters`` around its next forward and backward pass."""

    def begin() -> Callable[[], None]:
        before()
        return partial(_demote_changed, parameters, parameters.steady_digests())

    if isinstance(cell, AccumulationTrainCell):
        cell.watch(begin)


def before_next_call(cell: nn.Cell, action: Callable[[], object]) -> None:
    """Call ``action`` once, right before the next call of ``cell`` that is no part of a graph.

    Until then the cell has another class: hooks do not run where ``__call__`` is overridden, and graphs compile them.
    """
    kind = type(cell)
    actions = [action]

    def call(self: nn.Cell, *inputs: Any, **named: Any) -> Any:
        if type(self) is watched:
            self.__class__ = kind
        while actions:
            actions.pop()()
        return kind.__call__(self, *inputs, **named)

    names = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    watched = type(kind.__name__, (kind,), names)
    cell.__class__ = watched


def _demote_changed(parameters: CellParameters, before: dict[str, str]) -> None:
    after = parameters.steady_digests()
    changed = sorted(name for name, digest in before.items() if after[name] != digest)
    if changed:
        _log.warning(
            "the forward pass changes %s, which only an update should: each save copies them at once. If this is "
            "not intended, remove them from the optimizer, or from frozen=",
            some(changed),
        )
        parameters.demote(changed)
