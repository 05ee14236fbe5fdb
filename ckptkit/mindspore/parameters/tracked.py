"""A parameter or buffer from save to save: its memory is taken anew only where it has another one.

Guarantees: the array of a leaf is the memory that the tensor has now, or on backends where looking copies it, what
gives a copy of now. Asking takes less than a microsecond where nothing changed, a tenth of what taking it costs. Main
thread only; whoever asks has waited for the operations under way (`synchronize`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np

from ckptkit.core.placement import Placement
from ckptkit.core.tensors import Leaf, LeafSpec, Lifetime, Role, bits_of, dtype_of
from ckptkit.mindspore.parameters.apply import can_be_live

_ASKED = 8


class TrackedTensor:
    """One parameter or buffer as a leaf.

    Args:
        name: Of the leaf.
        tensor: Itself.
        role: Of the leaf.
        lifetime_of: The leaf's lifetime by its size in bytes.
        placement: Of the leaf.
        deferred: Whether to look at it only when somebody needs its bits, because looking copies them.
        moved: Gets its name each time that it has other memory than before.
    """

    def __init__(
        self,
        name: str,
        tensor: ms.Tensor,
        role: Role,
        lifetime_of: Callable[[int], Lifetime],
        *,
        placement: Placement = "per_rank",
        deferred: bool,
        moved: set[str],
    ) -> None:
        self.name = name
        self.tensor = tensor
        self._role = role
        self._lifetime_of = lifetime_of
        self._placement = placement
        self._deferred = deferred
        self._moved = moved
        self._pointer: int | None = None
        self._shape: tuple[int, ...] = ()
        self._dtype: object = None
        self._leaf: Leaf | None = None

    def leaf(self) -> Leaf:
        """It as it is now."""
        tensor = self.tensor
        leaf = self._leaf
        # The leaf's array holds the memory that it shows, so nothing else can have been given that address since.
        if (
            leaf is not None
            and tensor.data_ptr() == self._pointer
            and tensor.shape == self._shape
            and tensor.dtype == self._dtype
        ):
            return leaf
        return self._take()

    def _take(self) -> Leaf:
        tensor = self.tensor
        if self._pointer is not None and tensor.data_ptr() != self._pointer:
            self._moved.add(self.name)
        array = tensor.asnumpy()
        spec = LeafSpec(
            self.name,
            self._role,
            self._lifetime_of(array.nbytes),
            dtype_of(self.name, array),
            tuple(array.shape),
            self._placement,
        )
        if self._leaf is not None and self._leaf.spec == spec:
            spec = self._leaf.spec  # the same object, for those who plan by it
        self._shape, self._dtype, self._pointer = tensor.shape, tensor.dtype, tensor.data_ptr()
        if self._deferred and spec.lifetime != "micro":
            self._leaf = Leaf(spec, lambda: bits_of(tensor.asnumpy()))
            return self._leaf
        self._leaf = Leaf(spec, bits_of(array))
        if self._leaf.array.__array_interface__["data"][0] != self._pointer:
            self._pointer = None  # a copy of now, such as of a transposed tensor: good for this once
        return self._leaf


def synchronize(tensors: Sequence[ms.Tensor]) -> None:
    """Wait for every operation under way.

    Looking at one tensor does, since operations end in the order in which they began. Several are looked at because
    only that was tried. (`ms.runtime.synchronize` logs an error on CPU.)
    """
    for one in [*tensors[:: max(1, len(tensors) // _ASKED)], *tensors[-1:]]:
        one.asnumpy()


def looking_copies(tensors: Sequence[ms.Tensor]) -> bool:
    """Whether looking at a tensor gives a copy and not its memory; asked by behaviour, of the smallest one."""
    if not can_be_live():
        return True  # where two looks may also share one copy
    filled = [one for one in tensors if one.size]
    if not filled:
        return False
    smallest = min(filled, key=lambda one: one.size)
    return not np.may_share_memory(smallest.asnumpy(), smallest.asnumpy())
