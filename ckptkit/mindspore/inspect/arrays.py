"""Digests the arrays and lists of numbers that a script makes at each start, and that no checkpoint holds.

Guarantees: reads plain attributes of cells and variables of the running code, a bounded part of each; runs nothing of
the user's. Equal values have equal digests in every process. Main thread only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import mindspore as ms
import numpy as np
import xxhash
from mindspore import nn

from ckptkit.mindspore.inspect.attributes import own_attributes
from ckptkit.mindspore.inspect.carried import BARE

_MOST = 200  # values that are digested
_ITEMS = 64  # of a list
_BYTES = 1 << 16  # of an array
_NUMBERS = (bool, int, float)


def arrays_of(cells: Iterable[nn.Cell], variables: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Return the digests of arrays, tensors and lists of numbers, by the expressions for them.

    Args:
        cells: Cells of the training; those inside of them are read, too.
        variables: Of the running code, each with its place; see `loop_variables`.
    """
    found = ((name, _digest(value)) for name, value in itertools.chain(_in_cells(cells), variables))
    return dict(itertools.islice(((name, digest) for name, digest in found if digest is not None), _MOST))


def _in_cells(cells: Iterable[nn.Cell]) -> Iterator[tuple[str, object]]:
    for cell in cells:
        for name, one in cell.cells_and_names():
            place = f"{name or type(cell).__name__}."
            yield from ((place + key, value) for key, value in own_attributes(one).items() if key not in BARE)


def _digest(value: object) -> str | None:
    """Return the digest of the beginning of a value; None if it has neither arrays nor several numbers."""
    hasher = xxhash.xxh3_128()
    return hasher.hexdigest() if _add(value, hasher) else None


def _add(value: Any, hasher: xxhash.xxh3_128) -> bool:
    kind = type(value)
    if kind is ms.Tensor or kind is np.ndarray:
        if kind is ms.Tensor and (value.has_init or value.nbytes > _BYTES):
            return False  # reading a tensor may copy all of it
        array = value.asnumpy() if kind is ms.Tensor else value
        if array.dtype.hasobject:
            return False
        hasher.update(f"{array.dtype}{array.shape}".encode())
        hasher.update(np.ascontiguousarray(array.reshape(-1)[: _BYTES // max(1, array.itemsize)]).tobytes())
        return True
    if kind not in (list, tuple) or len(value) < 2:
        return False
    items = [*itertools.islice(value, _ITEMS)]
    hasher.update(f"{len(value)}".encode())
    if all(type(one) in _NUMBERS for one in items):
        hasher.update(repr(items).encode())
        return True
    return all(_add(one, hasher) for one in items)
