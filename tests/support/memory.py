"""Provides `contents_of`: the contents of a capture's checkpoint, without writing a checkpoint.

Guarantees: the bits are those of the capture at the time of the call; they are never corrupt. Any thread may call it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from ckptkit.core.contents import Capture, Contents, Sink, TensorInfo, WantedPart
from ckptkit.core.tensors import Array


class MemorySource:
    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self._tensors = tensors

    def read_into(self, sink: Sink) -> None:
        for name in self._tensors:
            if name in sink.names:
                sink.buffer(name)[:] = self._bytes(name)
                sink.done(name)

    def read_parts(self, wanted: Sequence[WantedPart], done: Callable[[str], None] | None = None) -> None:
        for part in wanted:
            corner = zip(part.box.offsets, part.shape, strict=True)
            cut = self._tensors[part.name][tuple(slice(at, at + size) for at, size in corner)]
            part.memory[:] = np.ascontiguousarray(cut).reshape(-1).view(np.uint8).data
            if done is not None:
                done(part.name)

    def peek(self, name: str) -> Array:
        return self._tensors[name]

    def prove(self, names: Collection[str]) -> None:
        """Do nothing: memory is not corrupt."""

    def _bytes(self, name: str) -> memoryview:
        return self._tensors[name].reshape(-1).view(np.uint8).data


def contents_of(capture: Capture, checkpoint: str) -> Contents:
    """Return the contents that a checkpoint of ``capture`` with the name ``checkpoint`` would have."""
    arrays = {leaf.name: np.array(leaf.array, order="C") for leaf in capture.leaves}
    entries = {leaf.name: TensorInfo(leaf.dtype, leaf.shape, leaf.role) for leaf in capture.leaves}
    small = {name: array for name, array in arrays.items() if entries[name].role == "state"}
    rest = {name: array for name, array in arrays.items() if name not in small}
    return Contents(checkpoint, capture.progress, entries, dict(capture.state), small, MemorySource(rest))
