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
    try:
        return hasher.hexdigest() if _add(value, hasher) else None
    except (TypeError, ValueError, RuntimeError, MemoryError):  # such as a number with more digits than Python prints
        return None


def _add(value: Any, hasher: xxhash.xxh3_128) -> bool:
    """Add the beginning of a value: of each list a part, and no more lists than that in all."""
    waiting, left = [value], _ITEMS
    while waiting:
        one = waiting.pop()
        kind = type(one)
        if kind is ms.Tensor or kind is np.ndarray:
            if not _add_array(one, hasher):
                return False
            continue
        left -= 1
        if kind not in (list, tuple) or len(one) < 2 or left < 0:
            return False
        items = [*itertools.islice(one, _ITEMS)]
        hasher.update(f"{len(one)}".encode())
        if all(type(each) in _NUMBERS for each in items):
            hasher.update(repr(items).encode())
        else:
            waiting += reversed(items)
    return True


def _add_array(one: Any, hasher: xxhash.xxh3_128) -> bool:
    if type(one) is ms.Tensor and (one.has_init or one.nbytes > _BYTES):
        return False  # reading a tensor may copy all of it
    array = one.asnumpy() if type(one) is ms.Tensor else one
    if array.dtype.hasobject:
        return False
    hasher.update(f"{array.dtype}{array.shape}".encode())
    # Not `reshape`, which may copy all of a view.
    hasher.update(np.ascontiguousarray(array.flat[: _BYTES // max(1, array.itemsize)]).tobytes())
    return True
