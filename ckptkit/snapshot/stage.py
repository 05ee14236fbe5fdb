"""Copies a capture, so that training may go on while the copy is written.

Guarantees: after `StagingArea.stage` returns, nothing that training does changes the staged bytes; the buffers
are reused from save to save, so memory grows once, by the size of the state. The caller sees to it that the
previous staged capture is not in use any more. Training thread only.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np

from ckptkit.contents import Capture
from ckptkit.tensors import Array, Leaf


class StagingArea:
    """One reused set of buffers."""

    def __init__(self) -> None:
        self._buffers: dict[str, Array] = {}

    def stage(self, capture: Capture) -> Capture:
        """A copy of ``capture`` in this area's buffers; the previous one becomes invalid."""
        leaves = tuple(self._copy(leaf) for leaf in capture.leaves)
        return replace(capture, leaves=leaves, state=copy.deepcopy(dict(capture.state)))

    def _copy(self, leaf: Leaf) -> Leaf:
        buffer = self._buffers.get(leaf.name)
        if buffer is None or buffer.shape != leaf.array.shape or buffer.dtype != leaf.array.dtype:
            buffer = self._buffers[leaf.name] = np.empty_like(leaf.array, order="C")
        np.copyto(buffer, leaf.array)
        return replace(leaf, array=buffer)
