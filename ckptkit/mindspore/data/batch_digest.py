"""The digest of a batch: by it a resume sees whether it stands where it believes.

Guarantees: equal digests mean equal bits, dtypes and shapes of every column, in order, up to a collision of
xxh3_128; a MindSpore tensor and the NumPy array of the same bits are equal. Names of columns do not count. Any
thread, as long as nobody writes into the batch.
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
    """Digests of batches that a checkpoint records; says once where there can be none."""

    def __init__(self) -> None:
        self._told = False

    def of(self, batch: Any) -> str | None:
        """`digest_of`, and a warning where it is None."""
        digest = digest_of(batch)
        if digest is None and not self._told:
            self._told = True
            _log.warning("the batches hold more than arrays and plain values: a resume cannot check its position")
        return digest


def digest_of(batch: Any) -> str | None:
    """Digest of one batch: 32 hexadecimal digits, or None if something in it is neither array nor plain value."""
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
        for one in value:
            yield from _parts(one)
    elif isinstance(value, dict):
        yield f"{{{len(value)}".encode()
        for key, one in value.items():
            yield repr(key).encode()
            yield from _parts(one)
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        yield f"{type(value).__name__} {value!r};".encode()
    else:
        yield from _parts_of_array(_array(value))


def _array(value: Any) -> np.ndarray[Any, Any]:
    if hasattr(value, "asnumpy"):
        value = value.asnumpy()
    elif not isinstance(value, np.ndarray) and hasattr(value, "__array__"):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value
    raise _NoBytesError


def _parts_of_array(array: np.ndarray[Any, Any]) -> Iterator[bytes | memoryview]:
    yield f"{array.dtype.name} {array.shape};".encode()
    if array.nbytes:
        yield bytes_of(np.ascontiguousarray(array)).data
