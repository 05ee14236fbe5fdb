"""Where the bytes of a checkpoint go on their way into parameters.

Guarantees: after `Landing.filled` has been called for a name, the parameter of that name has the bytes; where they
cannot be read into the parameter itself, one tensor at a time is gathered beside it, with the small ones that lie
in the same window of the stream. Main thread only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import mindspore as ms
import numpy as np

from ckptkit.contents import TensorInfo
from ckptkit.mindspore.apply import assign, live_bytes
from ckptkit.tensors import Array


class Landing(Mapping[str, memoryview]):
    """Memory for the tensors of parameters, by name; to be asked for right before it is filled.

    Args:
        parameters: By name.
        entries: What is stored of each.
    """

    def __init__(self, parameters: Mapping[str, ms.Parameter], entries: Mapping[str, TensorInfo]) -> None:
        self._parameters = parameters
        self._entries = entries
        self._gathered: dict[str, Array] = {}

    def __getitem__(self, name: str) -> memoryview:
        live = live_bytes(self._parameters[name])
        if live is not None:
            return live
        bits = self._gathered[name] = self._entries[name].empty()
        return bits.reshape(-1).view(np.uint8).data

    def __contains__(self, name: object) -> bool:
        return name in self._parameters  # Mapping's own would ask for the memory

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def filled(self, name: str) -> None:
        """All bytes of ``name`` are there."""
        bits = self._gathered.pop(name, None)
        if bits is not None:
            assign(self._parameters[name], bits, self._entries[name].dtype)
