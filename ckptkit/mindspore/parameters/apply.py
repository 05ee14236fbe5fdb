"""Writes stored bits into live MindSpore parameters and buffers.

Guarantees: the bits arrive unchanged, bfloat16 included, and graphs that are already compiled see them. The
caller has compared shapes and dtypes. Main thread only.

The bits go into the parameter's own storage. ``set_data`` would give it another one, and in PYNATIVE the stock
optimizers, whose update is a ``@jit`` function, continue with the storage that they were compiled with.
(``ops.assign`` has no bfloat16 kernel on CPU.) Where ``asnumpy()`` returns that storage itself (CPU), `live_bytes` is
written to directly; elsewhere `assign` copies. After a micro-step that raised, PYNATIVE still records gradients
and refuses in-place writes to weights, hence `_no_grad`. It is private, and MindSpore has no other switch. If it moves,
the import fails, and every restore with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import mindspore as ms
import numpy as np
from mindspore.common import _no_grad
from mindspore.context import _context, ms_ctx_param

from ckptkit.core.contents import TensorInfo
from ckptkit.core.tensors import DTYPES, Array, Leaf

_CONTEXT = _context()._context_handle  # of the whole process


def can_be_live() -> bool:
    """Return whether `live_bytes` may be used: elsewhere ``asnumpy()`` may return a host copy of device memory."""
    return bool(ms.get_context("device_target") == "CPU")


def live_bytes(parameter: ms.Tensor, seen: Array | None = None) -> memoryview | None:
    """Return the parameter's own storage, or None if ``asnumpy()`` copies; valid until the next micro-step."""
    if seen is None:
        seen = parameter.asnumpy()
    address = seen.__array_interface__["data"][0]
    if seen.size and not (seen.flags.c_contiguous and seen.flags.writeable and address == parameter.data_ptr()):
        return None
    return seen.reshape(-1).view(np.uint8).data


def tensor_of(bits: Array, dtype: str) -> ms.Tensor:
    """Return a new tensor with a copy of ``bits``; ``dtype`` is a name in `ckptkit.core.tensors.DTYPES`."""
    if dtype == "BF16":
        # MindSpore's own NumPy dtype. It is absent with NumPy 2, where bfloat16 parameters do not work at all.
        from mindspore.common import np_dtype

        bits = np.ascontiguousarray(bits).view(np_dtype.bfloat16).reshape(bits.shape)
    return ms.Tensor(bits)


def assign(parameter: ms.Tensor, bits: Array, dtype: str) -> None:
    with _no_grad():
        parameter.copy_(tensor_of(bits, dtype))


def mode_in_force() -> str:
    # What `ms.get_context("mode")` gives, which checks the device first and takes 50 us beside a training; this is
    # asked at every micro-step. Private: if it moves, the import fails, and a test compares the two.
    return "GRAPH" if _CONTEXT.get_param(ms_ctx_param.mode) == ms.GRAPH_MODE else "PYNATIVE"


class RestoreTarget:
    """Receives the tensors of parameters; implements `ckptkit.core.contents.Sink`."""

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
        live = self.ready(name)
        if live is not None:
            np.frombuffer(live, np.uint8).fill(0)
        else:
            leaf = self._seen[name]
            assign(self._parameters[name], np.zeros(leaf.shape, DTYPES[leaf.dtype]), leaf.dtype)
