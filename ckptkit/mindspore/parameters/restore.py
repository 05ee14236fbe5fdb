"""Gives a checkpoint's bytes their memory on their way into parameters.

Guarantees: after `RestoreTarget.done` has been called for a name, the parameter of that name has the bytes. Bytes
that cannot be read into the parameter itself are gathered in other memory, those of one file at a time. Main
thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import mindspore as ms
import numpy as np

from ckptkit.core.contents import TensorInfo
from ckptkit.core.tensors import DTYPES, Array, Leaf
from ckptkit.mindspore.parameters.apply import assign, assign_zeros, can_be_live, live_bytes


class RestoreTarget:
    """Receives the tensors of parameters; implements `ckptkit.core.contents.Sink`.

    Args:
        parameters: By name.
        entries: What is stored of each.
        seen: Leaves of these parameters, taken just now.
        names: The names that it receives.
    """

    def __init__(
        self,
        parameters: Mapping[str, ms.Tensor],
        entries: Mapping[str, TensorInfo],
        seen: Mapping[str, Leaf],
        names: Collection[str],
    ) -> None:
        self.names: Collection[str] = frozenset(names)
        self._parameters = parameters
        self._entries = entries
        self._seen = seen
        self._live = can_be_live()
        self._gathered: dict[str, Array] = {}

    def ready(self, name: str) -> memoryview | None:
        """Return the memory of the parameter itself, or None."""
        return live_bytes(self._parameters[name], self._seen[name].array) if self._live else None

    def buffer(self, name: str) -> memoryview:
        """Return the memory of the parameter, or memory whose bytes `done` assigns to it."""
        live = self.ready(name)
        if live is not None:
            return live
        # Use the leaf's shape: if this rank has a part, the stored shape is that of the whole tensor.
        bits = self._gathered[name] = np.empty(self._seen[name].shape, DTYPES[self._entries[name].dtype])
        return bits.reshape(-1).view(np.uint8).data

    def done(self, name: str) -> None:
        """Finish ``name``, all of whose bytes have been written."""
        bits = self._gathered.pop(name, None)
        if bits is not None:
            assign(self._parameters[name], bits, self._entries[name].dtype)

    def zero(self, name: str) -> None:
        """Set ``name``, which is not stored, to zeros."""
        live = self.ready(name)
        if live is not None:
            np.frombuffer(live, np.uint8).fill(0)
        else:
            assign_zeros(self._parameters[name])
