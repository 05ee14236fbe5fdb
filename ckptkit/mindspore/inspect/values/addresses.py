"""Finds in a state what another process has elsewhere: `id()` of objects, and arrays that are a parameter's memory.

Guarantees: only a number that is the address of a given object counts, as a key, as a value, or written in a text such
as ``<Parameter at 0x7f12...>``. At most 10,000 items are looked at. Pure, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_LOWEST = 1 << 32  # no object of a 64-bit process lies below
_MOST_ITEMS = 10_000  # of a state
_WRITTEN = re.compile(r"0x([0-9a-f]{9,16})\b")


def address_in(state: Any, objects: Iterable[Any]) -> Any:
    """Return the first of ``objects`` whose address ``state`` holds; None if it holds none."""
    numbers = set(_numbers_in(state))
    return next((one for one in objects if id(one) in numbers), None) if numbers else None


def arrays_in(state: Any) -> Iterator[npt.NDArray[Any]]:
    """Yield the arrays of a state."""
    return (one for one in _items_of(state) if isinstance(one, np.ndarray))


def _numbers_in(state: Any) -> Iterator[int]:
    for one in _items_of(state):
        if isinstance(one, int) and one >= _LOWEST:
            yield int(one)
        elif isinstance(one, str) and "0x" in one:
            yield from (int(found, 16) for found in _WRITTEN.findall(one))


def _items_of(state: Any) -> Iterator[Any]:
    pending = [state]
    for _ in range(_MOST_ITEMS):
        if not pending:
            return
        one = pending.pop()
        if isinstance(one, Mapping):
            pending += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)):
            pending += one
        else:
            yield one
