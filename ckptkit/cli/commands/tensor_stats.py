"""What the elements of one tensor are like: extremes, mean, spread, how many are zero, NaN or infinite, a histogram.

Guarantees: float64 arithmetic over blocks, so that a large tensor needs no second one's memory; NaN and infinities are
counted and enter nothing else; integers up to 64 bits have exact extremes. Of complex numbers the magnitudes are looked
at. Pure functions, any thread.
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
    """The numbers of a tensor; what has no value, or none in float64, is None.

    Attributes:
        count: Elements.
        finite: Elements that are neither NaN nor infinite, of which all the others but the counts are.
        minimum: The least.
        maximum: The greatest.
        mean: Their sum by ``finite``.
        std: Of the population, not of a sample.
        norm: The square root of the sum of their squares.
        zeros: Of either sign.
        nan: Not a number.
        infinite: Of either sign.
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
    """How many finite elements lie between ``edges[i]`` and ``edges[i + 1]``, the last edge included."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


def summarise(dtype: str, bits: Array) -> Summary:
    """Look at a tensor, given as it lies on storage.

    Args:
        dtype: Name in `ckptkit.core.tensors.DTYPES`.
        bits: Of any shape.
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
    """Count the finite elements of a tensor in ``bins`` intervals of equal width, one where all are equal.

    Args:
        dtype: Name in `ckptkit.core.tensors.DTYPES`.
        bits: Of any shape.
        bins: How many.
    """
    low, high = np.inf, -np.inf
    for block in _finite(dtype, bits):
        low, high = min(low, float(block.min())), max(high, float(block.max()))
    if low > high:
        return Histogram((), ())
    if low == high:
        return Histogram((low, high), (sum(block.size for block in _finite(dtype, bits)),))
    scale = 1.0 if np.isfinite(high - low) else 0.25  # of the largest floats, the width is none
    edges = np.linspace(low * scale, high * scale, bins + 1)
    if not (np.diff(edges) > 0).all():  # neighbours among floats: there are fewer values than bins
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
