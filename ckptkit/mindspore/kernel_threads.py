"""Makes MindSpore's own threads take denormal numbers as zero, as the thread that trains does.

On CPU, MindSpore launches kernels from two threads of its own: one for single operations, one for compiled code. They
start with the first operation in PYNATIVE, serve GRAPH too, and compute as the starting thread did. If that was before
the run began, they keep denormal numbers, and the threads of its pool do not; see `ckptkit.manager.process`.

Guarantees: after `take_denormals_as_zero_everywhere`, both take them as zero, or a warning says that they do not. It
draws no random number. Training thread only, between two micro-steps.
"""

from __future__ import annotations

import logging
import threading

import mindspore as ms
import numpy as np
import numpy.typing as npt
from mindspore import Tensor, ops

from ckptkit.manager.process import DenormalsAsZero, takes_denormals_as_zero

_log = logging.getLogger("ckptkit")

_Values = npt.NDArray[np.float32]
_SMALLEST = np.array([1], np.uint32).view(np.float32)
_LAUNCHES = 64  # at most: from the 51st on, MindSpore has decided where it launches the kernels of a small graph


def take_denormals_as_zero_everywhere() -> None:
    """Make MindSpore's threads take denormal numbers as zero, if the calling thread does; may warn."""
    if not takes_denormals_as_zero() or ms.get_context("device_target") != "CPU" or _are_zero_in_operations():
        return  # threads that did not exist have inherited it now
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)  # in GRAPH, other threads would launch the marks, and these still be used
    try:
        _mark_threads()
    finally:
        ms.set_context(mode=mode)
    if not _are_zero_in_operations():
        _log.warning(
            "MindSpore's threads keep numbers below 1.2e-38 that its pool takes as zero, so a resumed run may not be "
            "bit-exact once there are such numbers. Restore before the first operation of MindSpore in this process."
        )


def _mark_threads() -> None:
    mark = _Mark()
    operation = mark.operation

    @ms.jit
    def compiled(values: Tensor) -> Tensor:
        return operation(values)

    values = Tensor([1.0])
    values.init = None  # mindtorch keeps the name of a device here, which compiled code takes for an initializer
    operation(values).asnumpy()
    for _ in range(_LAUNCHES):
        mark.is_outside_pool = False
        compiled(values).asnumpy()
        if mark.is_outside_pool:
            break


def _are_zero_in_operations() -> bool:
    return not (Tensor(_SMALLEST) * 1.0).asnumpy().view(np.uint32).any()


class _Mark:
    """An operation that changes the thread that launches it; a kernel in Python is the only code of ours there."""

    def __init__(self) -> None:
        self._maker = threading.get_ident()
        self._begun: list[DenormalsAsZero] = []
        self.is_outside_pool = False  # whether the last launch was in a thread that needs the change; the pool's do not
        self.operation = ops.Custom(
            self._launched, out_shape=lambda shape: shape, out_dtype=lambda dtype: dtype, func_type="pyfunc"
        )

    def _launched(self, values: _Values) -> _Values:
        changes = not takes_denormals_as_zero()
        if changes:
            self._begun.append(DenormalsAsZero())
            self._begun[-1].begin()
        self.is_outside_pool = changes or threading.get_ident() == self._maker
        return values
