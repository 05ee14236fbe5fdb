"""Makes MindSpore's own threads in PYNATIVE take denormal numbers as zero, as the thread that trains does.

In PYNATIVE on CPU, MindSpore launches kernels from two threads: one for single operations, one for compiled code. Each
starts with the first operation of the process, and takes over then how the starting thread computes. If that was before
the run began, they keep denormal numbers, and the threads of its pool do not; see `ckptkit.manager.denormals`.

Guarantees: after `take_denormals_as_zero_everywhere`, both take them as zero, or a warning says that they do not. It
draws no random number. Training thread only, between two micro-steps.
"""

from __future__ import annotations

import logging

import mindspore as ms
import numpy as np
import numpy.typing as npt
from mindspore import Tensor, ops

from ckptkit.manager.denormals import DenormalsAsZero, takes_denormals_as_zero

_log = logging.getLogger("ckptkit")

_Values = npt.NDArray[np.float32]
_SMALLEST = np.array([1], np.uint32).view(np.float32)
_LAUNCHES = 64  # at most: from the 51st on, MindSpore has decided where it launches the kernels of a small graph


def take_denormals_as_zero_everywhere() -> None:
    """Do so for the threads that exist; does nothing where the calling thread does not, or in GRAPH."""
    if not takes_denormals_as_zero() or ms.get_context("mode") != ms.PYNATIVE_MODE:
        return
    if ms.get_context("device_target") != "CPU" or _are_zero_in_operations():
        return  # threads that did not exist have inherited it now
    mark = _Mark()
    operation = mark.operation

    @ms.jit
    def compiled(values: Tensor) -> Tensor:
        return operation(values)

    operation(Tensor([1.0])).asnumpy()
    launches = 0
    while len(mark.threads) < 2 and launches < _LAUNCHES:
        compiled(Tensor([1.0])).asnumpy()
        launches += 1
    if launches == _LAUNCHES or not _are_zero_in_operations():
        _log.warning(
            "MindSpore's threads keep numbers below 1.2e-38 that its pool takes as zero, so a resumed run may not be "
            "bit-exact once there are such numbers. Restore before the first operation of MindSpore in this process."
        )


def _are_zero_in_operations() -> bool:
    return not (Tensor(_SMALLEST) * 1.0).asnumpy().view(np.uint32).any()


class _Mark:
    """An operation that changes the thread that launches it.

    Attributes:
        operation: Returns its argument. A kernel in Python is the only code of ours that runs in these threads.
        threads: The `DenormalsAsZero` that changed a thread; the pool's need none.
    """

    def __init__(self) -> None:
        self.threads: list[DenormalsAsZero] = []
        self.operation = ops.Custom(
            self._launched, out_shape=lambda shape: shape, out_dtype=lambda dtype: dtype, func_type="pyfunc"
        )

    def _launched(self, values: _Values) -> _Values:
        if not takes_denormals_as_zero():
            one = DenormalsAsZero()
            one.begin()
            self.threads.append(one)
        return values
