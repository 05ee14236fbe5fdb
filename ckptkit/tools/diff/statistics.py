"""Measures by how much two tensors differ, piece by piece, so that neither has to be in memory whole.

Guarantees: elements are compared by their bits, so that NaN equals itself and the two zeros differ; bfloat16 counts as
the numbers that it encodes. Magnitudes cover the elements that differ and are finite on both sides. Pure but for its
own counts; one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ckptkit.core.tensors import Array, values_of

_FLOATS = ("F64", "F32", "F16", "BF16", "C64")
_BITS: dict[int, np.dtype[np.unsignedinteger[npt.NBitBase]]] = {
    size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)
}  # by bytes per element

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Divergence:
    """Holds the counts of a `Tally`.

    Attributes:
        elements: Number of compared elements.
        differing: How many of them differ in any bit.
        first: Index of the first differing element met, one number per axis; None if none differs.
        max_abs: Largest absolute difference; None if no differing element is finite on both sides.
        max_relative: Largest difference relative to the larger of the two magnitudes; None as for ``max_abs``.
        max_ulps: Largest distance in representable numbers of the dtype, adjacent ones being 1 apart; None for
            integers, and as for ``max_abs``.
        not_finite: How many of the differing ones are NaN or infinite on either side.
        nans_a: NaNs on the first side, including where both have them.
        nans_b: NaNs on the second side.
    """

    elements: int
    differing: int
    first: tuple[int, ...] | None
    max_abs: float | None
    max_relative: float | None
    max_ulps: int | None
    not_finite: int
    nans_a: int
    nans_b: int


class Tally:
    """Counts the differences of one tensor.

    Args:
        dtype: Name in `ckptkit.core.tensors.DTYPES`.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._elements = self._differing = self._not_finite = 0
        self._nans = [0, 0]
        self._first: tuple[int, ...] | None = None
        self._max_abs: float | None = None
        self._max_relative: float | None = None
        self._max_ulps: int | None = None

    def add(self, a: Array, b: Array, place: Callable[[int], tuple[int, ...]]) -> None:
        """Compare two flat pieces.

        Args:
            a: In the NumPy dtype of `ckptkit.core.tensors.DTYPES`.
            b: As many elements of the same dtype.
            place: Returns the index in the whole tensor of the i-th element.
        """
        bits = _BITS[a.dtype.itemsize]
        self._elements += a.size
        if self._dtype in _FLOATS:
            self._nans[0] += _nans(self._dtype, a)
            self._nans[1] += _nans(self._dtype, b)
        where = np.flatnonzero(a.view(bits) != b.view(bits))
        if not where.size:
            return
        self._differing += where.size
        if self._first is None:
            self._first = place(int(where[0]))
        x, y = a[where], b[where]
        if self._dtype in _FLOATS:
            self._measure_floats(x, y)
        else:
            self._measure_integers(x, y)

    def result(self) -> Divergence:
        """Return all counts."""
        return Divergence(
            self._elements,
            self._differing,
            self._first,
            self._max_abs,
            self._max_relative,
            self._max_ulps,
            self._not_finite,
            *self._nans,
        )

    def _measure_floats(self, x: Array, y: Array) -> None:
        if self._dtype == "C64":  # compare real and imaginary parts as numbers
            x, y = x.view(np.float32), y.view(np.float32)
        one, other = _numbers(self._dtype, x), _numbers(self._dtype, y)
        finite = np.isfinite(one) & np.isfinite(other)
        self._not_finite += int(finite.size - np.count_nonzero(finite))
        if not finite.any():
            return
        one, other = one[finite], other[finite]
        with np.errstate(over="ignore"):
            apart = np.abs(one - other)
        self._widen(apart, np.maximum(np.abs(one), np.abs(other)))
        places = [_place_in_order(side[finite]) for side in (x, y)]
        ulps = int((np.maximum(*places) - np.minimum(*places)).max())
        self._max_ulps = max(self._max_ulps or 0, ulps)

    def _measure_integers(self, x: Array, y: Array) -> None:
        bits = _BITS[x.dtype.itemsize]
        if x.dtype == np.bool_:
            x, y = x.view(np.uint8), y.view(np.uint8)
        high, low = np.maximum(x, y), np.minimum(x, y)
        apart = (high.view(bits) - low.view(bits)).astype(np.float64)  # unsigned, so that nothing overflows
        self._widen(apart, np.maximum(np.abs(high.astype(np.float64)), np.abs(low.astype(np.float64))))

    def _widen(self, apart: _Floats, size: _Floats) -> None:
        self._max_abs = max(self._max_abs or 0.0, float(apart.max()))
        relative = np.divide(apart, size, out=np.zeros_like(apart), where=size > 0)
        self._max_relative = max(self._max_relative or 0.0, float(relative.max()))


def _nans(dtype: str, array: Array) -> int:
    if dtype == "BF16":
        # All exponent bits, and any fraction bit; avoids converting all elements.
        return int(np.count_nonzero((array.view(np.uint16) & 0x7FFF) > 0x7F80))
    return int(np.count_nonzero(np.isnan(array)))


def _numbers(dtype: str, array: Array) -> _Floats:
    return values_of(dtype, array).astype(np.float64)


def _place_in_order(array: Array) -> npt.NDArray[np.unsignedinteger[npt.NBitBase]]:
    """Return the rank of each float in the order of all finite floats of its width."""
    bits = array.view(_BITS[array.dtype.itemsize])
    sign = bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))
    found: npt.NDArray[np.unsignedinteger[npt.NBitBase]] = np.where(bits & sign, ~bits, bits | sign)
    return found
