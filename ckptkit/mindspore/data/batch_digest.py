"""Digests batches, so that a resume can check its position.

Guarantees: equal digests mean equal bits, dtypes and shapes of every column, in order, up to a collision of xxh3_128; a
MindSpore tensor and the NumPy array of the same bits have equal digests. Column names do not count. Any thread, as long
as no other thread writes into the batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash

from ckptkit.core.tensors import bytes_of

_log = logging.getLogger("ckptkit")


class Probe:
    """Computes the batch digests that a checkpoint records; warns once if a batch cannot be digested."""

    def __init__(self) -> None:
        self._has_warned = False

    def of(self, batch: Any) -> str | None:
        digest = digest_of(batch)
        if digest is None and not self._has_warned:
            self._has_warned = True
            _log.warning("the batches hold more than arrays and plain values: a resume cannot check its position")
        return digest


def digest_of(batch: Any) -> str | None:
    """Return the batch's digest, 32 hexadecimal digits, or None if it holds more than arrays and plain values."""
    columns = tuple(batch.values()) if isinstance(batch, dict) else batch
    digest = xxhash.xxh3_128()
    try:
        for part in _parts(columns):
            digest.update(part)
    except _NoBytesError:
        return None
    return digest.hexdigest()


class _NoBytesError(Exception):
    pass


def _parts(value: Any) -> Iterator[bytes | memoryview]:
    if isinstance(value, (list, tuple)):
        yield f"[{len(value)}".encode()
        for item in value:
            yield from _parts(item)
    elif isinstance(value, dict):
        yield f"{{{len(value)}".encode()
        for key, item in value.items():
            yield repr(key).encode()
            yield from _parts(item)
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        yield f"{type(value).__name__} {value!r};".encode()
    else:
        array = _array(value)
        yield f"{array.dtype.name} {array.shape};".encode()
        if array.nbytes:
            yield bytes_of(np.ascontiguousarray(array)).data


def _array(value: Any) -> np.ndarray[Any, Any]:
    if hasattr(value, "asnumpy"):
        value = value.asnumpy()
    elif not isinstance(value, np.ndarray) and hasattr(value, "__array__"):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value
    raise _NoBytesError
