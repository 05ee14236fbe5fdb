"""A parameter from save to save: its memory is taken anew only where it has another one.

Guarantees: the array of a leaf is the memory that the parameter has now, or on backends where looking copies it, what
gives a copy of now. Asking takes less than a microsecond where nothing changed, a tenth of what taking it costs. Main
thread only; whoever asks has waited for the operations under way (`synchronize`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np

from ckptkit.mindspore.apply import can_be_live
from ckptkit.placement import Placement
from ckptkit.tensors import Leaf, LeafSpec, Lifetime, Role, bits_of, dtype_of

_ASKED = 8


class TrackedParameter:
    """One parameter as a leaf.

    Args:
        parameter: Itself.
        role: Of the leaf.
        lifetime_of: The leaf's lifetime by its size in bytes.
        placement: Of the leaf.
        deferred: Whether to look at it only when somebody needs its bits, because looking copies them.
    """

    def __init__(
        self,
        parameter: ms.Parameter,
        role: Role,
        lifetime_of: Callable[[int], Lifetime],
        *,
        placement: Placement = "per_rank",
        deferred: bool,
    ) -> None:
        self.parameter = parameter
        self._role = role
        self._lifetime_of = lifetime_of
        self._placement = placement
        self._deferred = deferred
        self._pointer: int | None = None
        self._shape: tuple[int, ...] = ()
        self._dtype: object = None
        self._leaf: Leaf | None = None

    def leaf(self) -> Leaf:
        """The parameter as it is now."""
        parameter = self.parameter
        leaf = self._leaf
        # The leaf's array holds the memory that it shows, so nothing else can have been given that address since.
        if (
            leaf is not None
            and parameter.data_ptr() == self._pointer
            and parameter.shape == self._shape
            and parameter.dtype == self._dtype
        ):
            return leaf
        return self._take()

    def _take(self) -> Leaf:
        parameter = self.parameter
        array = parameter.asnumpy()
        spec = LeafSpec(
            parameter.name,
            self._role,
            self._lifetime_of(array.nbytes),
            dtype_of(parameter.name, array),
            tuple(array.shape),
            self._placement,
        )
        if self._leaf is not None and self._leaf.spec == spec:
            spec = self._leaf.spec  # the same object, for those who plan by it
        self._shape, self._dtype, self._pointer = parameter.shape, parameter.dtype, parameter.data_ptr()
        if self._deferred and spec.lifetime != "micro":
            self._leaf = Leaf(spec, lambda: bits_of(parameter.asnumpy()))
            return self._leaf
        self._leaf = Leaf(spec, bits_of(array))
        if self._leaf.array.__array_interface__["data"][0] != self._pointer:
            self._pointer = None  # a copy of now, such as of a transposed tensor: good for this once
        return self._leaf


def synchronize(parameters: Sequence[ms.Parameter]) -> None:
    """Wait for every operation under way.

    Looking at one parameter does, since operations end in the order in which they began. Several are looked at because
    only that was tried. (`ms.runtime.synchronize` logs an error on CPU.)
    """
    for one in [*parameters[:: max(1, len(parameters) // _ASKED)], *parameters[-1:]]:
        one.asnumpy()


def looking_copies(parameters: Sequence[ms.Parameter]) -> bool:
    """Whether looking at a parameter gives a copy and not its memory; asked by behaviour, of the smallest one."""
    if not can_be_live():
        return True  # where two looks may also share one copy
    filled = [one for one in parameters if one.size]
    if not filled:
        return False
    smallest = min(filled, key=lambda one: one.size)
    return not np.may_share_memory(smallest.asnumpy(), smallest.asnumpy())
