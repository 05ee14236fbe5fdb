"""From stored bits to live MindSpore parameters.

Guarantees: the bits arrive unchanged, bfloat16 included, and are seen by graphs that are compiled already. The
caller has compared shapes and dtypes. Main thread only.

They are copied into the parameter's own storage: ``set_data`` would give it another one, and in PYNATIVE the
stock optimizers, whose update is a ``@jit`` function, go on with the storage that they were compiled with.
(``ops.assign`` has no bfloat16 kernel on CPU.) After a micro-step that raised, PYNATIVE still records gradients
and refuses in-place writes to weights, hence `_no_grad`: private, and the only switch there is. Should it move,
the import fails, and every restore with it.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore.common.api import _no_grad

from ckptkit.tensors import Array


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
    with _no_grad():
        parameter.copy_(ms.Tensor(np.zeros_like(parameter.asnumpy())))
