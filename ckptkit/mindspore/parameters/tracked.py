"""Tracks a parameter or buffer from save to save, and reads its memory again only if the memory changed.

Guarantees: the array of a leaf is the tensor's present memory or, on backends where reading copies, a function that
copies it. A leaf that did not change costs less than a microsecond, a tenth of reading it. Main thread only; the caller
has waited for the running operations (`synchronize`).
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
    """Tracks one parameter or buffer as a leaf.

    Args:
        name: Name of the leaf.
        tensor: The parameter or buffer.
        role: Role of the leaf.
        lifetime_of: Returns the leaf's lifetime for its size in bytes.
        placement: Placement of the leaf.
        deferred: Whether to read the tensor only when its bits are needed, because reading copies them.
        moved: Gets the leaf's name each time its memory has changed.
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

    @property
    def last_leaf(self) -> Leaf | None:
        """What `leaf` returned last."""
        return self._leaf

    def leaf(self) -> Leaf:
        """Return the tensor's present leaf."""
        tensor = self.tensor
        leaf = self._leaf
        # The leaf's array keeps its memory alive, so no other tensor can have got that address since.
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
            spec = self._leaf.spec  # the same object, so that comparing specs with a plan stays fast
        self._shape, self._dtype, self._pointer = tensor.shape, tensor.dtype, tensor.data_ptr()
        if self._deferred and spec.lifetime != "micro":
            self._leaf = Leaf(spec, lambda: bits_of(tensor.asnumpy()))
            return self._leaf
        self._leaf = Leaf(spec, bits_of(array))
        if self._leaf.array.__array_interface__["data"][0] != self._pointer:
            self._pointer = None  # a copy, such as of a transposed tensor: valid for this save only
        return self._leaf


def synchronize(tensors: Sequence[ms.Tensor]) -> None:
    """Wait for every running operation.

    Reading one tensor does that, since operations end in the order in which they began. Several are read because only
    that was tested. (`ms.runtime.synchronize` logs an error on CPU.)
    """
    for one in [*tensors[:: max(1, len(tensors) // _ASKED)], *tensors[-1:]]:
        one.asnumpy()


def looking_copies(tensors: Sequence[ms.Tensor]) -> bool:
    """Return whether reading a tensor gives a copy and not its memory; tries it on the smallest one."""
    if not can_be_live():
        return True  # not tried: two reads may share one copy
    filled = [one for one in tensors if one.size]
    if not filled:
        return False
    smallest = min(filled, key=lambda one: one.size)
    return not np.may_share_memory(smallest.asnumpy(), smallest.asnumpy())
