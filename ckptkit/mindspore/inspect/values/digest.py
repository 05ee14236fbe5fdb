"""Digests and describes plain values: numbers, texts, arrays, tensors, generators and containers of them.

Guarantees: equal bits give equal digests in every process; reading a generator does not advance it. `is_plain` rejects
a value that is not plain or too large to digest after every micro-step. Any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np
import xxhash

from ckptkit.core.tensors import Array
from ckptkit.mindspore.rng import generator_state

_MAX_ITEMS = 10_000
_MAX_BYTES = 1 << 28
_MAX_DEPTH = 16

_ATOMS = (type(None), bool, int, float, complex, str, bytes)
_SEQUENCES = (list, tuple, deque)
_SETS = (set, frozenset)


def is_plain(value: Any) -> bool:
    """Return whether `digest_of_value` accepts ``value`` and is fast enough to run after every micro-step."""
    size_bytes = 0
    for items, (one, depth) in enumerate(_parts(value)):
        if items > _MAX_ITEMS or depth > _MAX_DEPTH:
            return False
        if isinstance(one, ms.Tensor):
            if one.has_init:  # has no data yet
                return False
            size_bytes += one.nbytes
        elif isinstance(one, np.ndarray | np.generic):
            if one.dtype.hasobject:
                return False
            size_bytes += one.nbytes
        elif not _is_container(one) and type(one) not in _ATOMS and generator_state(one) is None:
            return False
        if size_bytes > _MAX_BYTES:
            return False
    return True


def digest_of_value(value: Any) -> str:
    """Return the xxh3_128 of a plain value, including types and shapes."""
    hasher = xxhash.xxh3_128()
    for one, depth in _parts(value):
        if isinstance(one, ms.Tensor | np.ndarray | np.generic):
            array = _array(one)
            hasher.update(f"{depth}{array.dtype}{array.shape}".encode())
            hasher.update(np.ascontiguousarray(array).tobytes())
        elif _is_container(one):
            hasher.update(f"{depth}{type(one).__name__}{len(one)}".encode())
        else:
            hasher.update(f"{depth}{type(one).__name__}{one!r}".encode())
    return hasher.hexdigest()


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield every array and tensor in a plain value, unconverted."""
    return (one for one, _ in _parts(value) if isinstance(one, ms.Tensor | np.ndarray))


def arrays_in(value: Any) -> Iterator[Array]:
    """Yield every array and tensor in a plain value, as an array."""
    return map(_array, tensors_in(value))


def in_words(value: Any) -> str:
    """Describe a plain value in a few words."""
    if isinstance(value, ms.Tensor | np.ndarray):
        array = _array(value)
        return repr(array.item()) if array.size == 1 else f"array {array.dtype}{array.shape}"
    if _is_container(value):
        arrays = sum(1 for _ in tensors_in(value))
        return f"{type(value).__name__} of {len(value)}" + (f" ({arrays} arrays)" if arrays else "")
    if generator_state(value) is not None:
        return f"state of a {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _parts(value: Any, depth: int = 0) -> Iterator[tuple[Any, int]]:
    """Yield ``value`` and everything in it, in an order equal in all processes; generators as their state."""
    state = generator_state(value)
    if state is not None:
        yield from _parts(state, depth)
        return
    yield value, depth
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _parts(key, depth + 1)
            yield from _parts(one, depth + 1)
    elif isinstance(value, _SEQUENCES):
        for one in value:
            yield from _parts(one, depth + 1)
    elif isinstance(value, _SETS):
        for one in sorted(value, key=repr):
            yield from _parts(one, depth + 1)


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | deque | set | frozenset)


def _array(value: Any) -> Array:
    array: Array = value.asnumpy() if isinstance(value, ms.Tensor) else np.asarray(value)
    return array
