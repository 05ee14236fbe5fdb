"""Computes statistics of one tensor: extremes, mean, spread, counts of zero, NaN and infinite elements, a histogram.

Guarantees: uses float64 arithmetic over blocks, so that a large tensor does not need its memory twice. NaN and
infinities are counted and excluded from everything else. Integers up to 64 bits have exact extremes. Complex numbers
count by their magnitudes. Pure functions; any thread may call them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ckptkit.core.tensors import Array, values_of

_BLOCK = 1 << 20  # elements
_Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """Holds the statistics of a tensor; a value that does not exist, or not in float64, is None.

    Attributes:
        count: Number of elements.
        finite: Number of elements that are neither NaN nor infinite; only these enter the next five values.
        minimum: The least element.
        maximum: The greatest element.
        mean: The sum divided by ``finite``.
        std: Standard deviation of the population, not of a sample.
        norm: The square root of the sum of squares.
        zeros: Number of zeros of either sign.
        nan: Number of NaN elements.
        infinite: Number of infinite elements of either sign.
    """

    count: int
    finite: int
    minimum: float | int | None
    maximum: float | int | None
    mean: float | None
    std: float | None
    norm: float | None
    zeros: int
    nan: int
    infinite: int


@dataclass(frozen=True)
class Histogram:
    """Holds in ``counts[i]`` how many finite elements lie from ``edges[i]`` to ``edges[i + 1]``, last edge included."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


def summarise(dtype: str, bits: Array) -> Summary:
    """Compute the statistics of a tensor, given as it is stored.

    Args:
        dtype: Name in `ckptkit.core.tensors.DTYPES`.
        bits: The stored elements, in any shape.
    """
    nan = infinite = zeros = finite = 0
    total = squares = spread = 0.0
    extremes: list[float | int] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for block in _blocks(dtype, bits):
            is_finite = np.isfinite(block)
            nan += int(np.isnan(block).sum())
            good = block[is_finite]
            finite += good.size
            infinite += block.size - good.size
            zeros += good.size - int(np.count_nonzero(good))
            if good.size:
                extremes += [good.min().item(), good.max().item()]
            wide = good.astype(np.float64)
            total += float(wide.sum())
            squares += float(np.square(wide).sum())
        mean = total / finite if finite else None
        for block in _blocks(dtype, bits) if mean is not None else ():
            spread += float(np.square(block[np.isfinite(block)].astype(np.float64) - mean).sum())
    return Summary(
        count=bits.size,
        finite=finite,
        minimum=min(extremes, default=None),
        maximum=max(extremes, default=None),
        mean=_known(mean),
        std=_known(np.sqrt(spread / finite) if finite else None),
        norm=_known(np.sqrt(squares)),
        zeros=zeros,
        nan=nan,
        infinite=infinite - nan,
    )


def histogram(dtype: str, bits: Array, bins: int = 20) -> Histogram:
    """Count the finite elements of a tensor in ``bins`` intervals of equal width; in one if all are equal.

    Args:
        dtype: Name in `ckptkit.core.tensors.DTYPES`.
        bits: The stored elements, in any shape.
        bins: Number of intervals.
    """
    low, high = np.inf, -np.inf
    for block in _finite(dtype, bits):
        low, high = min(low, float(block.min())), max(high, float(block.max()))
    if low > high:
        return Histogram((), ())
    if low == high:
        return Histogram((low, high), (sum(block.size for block in _finite(dtype, bits)),))
    scale = 1.0 if np.isfinite(high - low) else 0.25  # the width of the largest floats overflows
    edges = np.linspace(low * scale, high * scale, bins + 1)
    if not (np.diff(edges) > 0).all():  # neighbouring floats: there are fewer values than bins
        edges = np.array([low, high]) * scale
    counts = np.zeros(len(edges) - 1, np.int64)
    for block in _finite(dtype, bits):
        counts += np.histogram(block * scale, edges)[0]
    return Histogram(tuple((edges / scale).tolist()), tuple(counts.tolist()))


def _finite(dtype: str, bits: Array) -> Iterator[_Float64]:
    for block in _blocks(dtype, bits):
        good = block[np.isfinite(block)]
        if good.size:
            yield good.astype(np.float64)


def _blocks(dtype: str, bits: Array) -> Iterator[npt.NDArray[np.float64 | np.int64]]:
    flat = bits.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        block = values_of(dtype, flat[start : start + _BLOCK])
        if block.dtype.kind == "c":
            yield np.abs(block)
        else:
            yield block.view(np.uint8) if block.dtype.kind == "b" else block  # type: ignore[misc]  # any real dtype


def _known(value: float | None) -> float | None:
    return float(value) if value is not None and np.isfinite(value) else None
