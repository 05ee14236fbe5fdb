"""Checks once that the forward pass does not change parameters that a save reads in place while it runs.

Guarantees: if the first micro-step of this process changes a parameter that only an update should change, the parameter
is named, and every save from then on copies it. A parameter that is first written later is not noticed. Main thread
only.
"""

from __future__ import annotations

import logging
from functools import partial

from mindspore import nn

from ckptkit.core.text import some
from ckptkit.mindspore.parameters.parameters import CellParameters
from ckptkit.mindspore.train.cell import AccumulationTrainCell

_log = logging.getLogger("ckptkit")

_MUCH_BYTES = 64 << 20


def watch_forward(cell: nn.Cell, parameters: CellParameters) -> None:
    """Make ``cell`` compare the digests of its steady ``parameters`` around its next forward and backward pass."""
    if isinstance(cell, AccumulationTrainCell):
        _hint_at_idle(parameters)
        cell.watch(lambda: partial(_demote_changed, parameters, parameters.steady_digests()))


def _hint_at_idle(parameters: CellParameters) -> None:
    idle_bytes, all_bytes = parameters.idle_bytes()
    if idle_bytes > max(_MUCH_BYTES, all_bytes // 4):
        _log.info(
            "%d of %d MiB of parameters belong to no optimizer and are copied by every save. If training never changes "
            "them, declare it: frozen=[names], or a predicate over names",
            *(idle_bytes >> 20, all_bytes >> 20),
        )


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
