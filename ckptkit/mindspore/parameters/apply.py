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

import mindspore as ms
import numpy as np
from mindspore.common import _no_grad

from ckptkit.core.tensors import Array


def can_be_live() -> bool:
    """Return whether `live_bytes` may be used: elsewhere ``asnumpy()`` may return a host copy of device memory."""
    return bool(ms.get_context("device_target") == "CPU")


def live_bytes(parameter: ms.Tensor, seen: Array | None = None) -> memoryview | None:
    """Return the parameter's own storage, or None if ``asnumpy()`` copies; valid until the next micro-step.

    Args:
        parameter: Parameter of a training on CPU; see `can_be_live`.
        seen: What ``asnumpy()`` returned just now, still alive; without it, ``asnumpy()`` is called, which waits for
            every running operation.
    """
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
    """Give ``parameter`` the stored value."""
    with _no_grad():
        parameter.copy_(tensor_of(bits, dtype))


def assign_zeros(parameter: ms.Tensor) -> None:
    """Set ``parameter`` to zeros."""
    with _no_grad():
        parameter.copy_(ms.Tensor(np.zeros_like(parameter.asnumpy())))
