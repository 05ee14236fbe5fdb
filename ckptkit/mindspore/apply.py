"""From stored bits to live MindSpore parameters.

Guarantees: the bits arrive unchanged, bfloat16 included, and are seen by graphs that are compiled already. The
caller has compared shapes and dtypes. Main thread only.

They go into the parameter's own storage: ``set_data`` would give it another one, and in PYNATIVE the stock
optimizers, whose update is a ``@jit`` function, go on with the storage that they were compiled with.
(``ops.assign`` has no bfloat16 kernel on CPU.) Where ``asnumpy()`` gives that storage itself (CPU), `live_bytes` is
written to directly; elsewhere `assign` copies. After a micro-step that raised, PYNATIVE still records gradients
and refuses in-place writes to weights, hence `_no_grad`: private, and the only switch there is. Should it move,
the import fails, and every restore with it.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore.common.api import _no_grad

from ckptkit.tensors import Array


def live_bytes(parameter: ms.Parameter) -> memoryview | None:
    """The parameter's own storage, or None where it cannot be had; good until the next micro-step.

    Waits for every operation under way.
    """
    if ms.get_context("device_target") != "CPU":
        return None  # there, two calls may well share memory: a copy on the host, which the device never sees
    first: Array = parameter.asnumpy()
    second: Array = parameter.asnumpy()
    alike = first.flags.c_contiguous and first.flags.writeable and np.shares_memory(first, second)
    if first.size and not alike:
        return None
    return first.reshape(-1).view(np.uint8).data


def tensor_of(bits: Array, dtype: str) -> ms.Tensor:
    """A new tensor with a copy of ``bits``; ``dtype`` is a name in `ckptkit.tensors.DTYPES`."""
    if dtype == "BF16":
        # MindSpore's own NumPy dtype; absent with NumPy 2, where bfloat16 parameters do not work at all.
        from mindspore.common import np_dtype

        bits = np.ascontiguousarray(bits).view(np_dtype.bfloat16).reshape(bits.shape)
    return ms.Tensor(bits)


def assign(parameter: ms.Parameter, bits: Array, dtype: str) -> None:
    """Give ``parameter`` the stored value."""
    with _no_grad():
        parameter.copy_(tensor_of(bits, dtype))


def assign_zeros(parameter: ms.Parameter) -> None:
    """Give ``parameter`` all zeros."""
    live = live_bytes(parameter)
    if live is not None:
        np.frombuffer(live, np.uint8).fill(0)
        return
    with _no_grad():
        parameter.copy_(ms.Tensor(np.zeros_like(parameter.asnumpy())))
