"""Digests plain values: numbers, texts, arrays, tensors, and dicts, lists and tuples of them.

Guarantees: equal bits give equal digests in every process. `is_plain` rejects a value that is not plain or too large
to digest after every micro-step. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import mindspore as ms
import numpy as np
import xxhash

from ckptkit.mindspore.observe.value_kinds import ATOMS, written

_MAX_ITEMS = 10_000
_MAX_BYTES = 1 << 28
_MAX_DEPTH = 16


def is_plain(value: Any) -> bool:
    """Return whether `digest_of_value` accepts ``value`` and is fast enough to run after every micro-step."""
    size_bytes = 0
    for items, (part, depth) in enumerate(_parts(value)):
        if isinstance(part, ms.Tensor):
            if part.has_init:  # has no data yet
                return False
            # Private, since mindtorch replaces `Tensor.nbytes` by one that fails for some dtypes. If MindSpore's own
            # moves, this raises AttributeError.
            size_bytes += part._nbytes
        elif isinstance(part, np.ndarray | np.generic):
            if part.dtype.hasobject:
                return False
            size_bytes += part.nbytes
        elif not isinstance(part, dict | list | tuple) and type(part) not in ATOMS:
            return False
        if items > _MAX_ITEMS or depth > _MAX_DEPTH or size_bytes > _MAX_BYTES:
            return False
    return True


def digest_of_value(value: Any) -> str:
    """Return the xxh3_128 of a plain value, including types and shapes."""
    hasher = xxhash.xxh3_128()
    for part, depth in _parts(value):
        if isinstance(part, ms.Tensor | np.ndarray | np.generic):
            array = part.asnumpy() if isinstance(part, ms.Tensor) else np.asarray(part)
            hasher.update(f"{depth}{array.dtype}{array.shape}".encode())
            hasher.update(np.ascontiguousarray(array).tobytes())
        else:
            is_container = isinstance(part, dict | list | tuple)
            text = f"{type(part).__name__} {len(part)}" if is_container else written(part)
            hasher.update(f"{depth}{text}".encode())
    return hasher.hexdigest()


def digests_by_place(state: Any, place: str = "") -> dict[str, str]:
    """Return digests by place, computed at once, since a state may be the object's own lists."""
    items: list[tuple[Any, Any]] = []
    if isinstance(state, Mapping):
        items = [*state.items()]
    elif isinstance(state, list | tuple):
        items = [*enumerate(state)]
    if not items:
        return {place or "its value": digest_of_value(state)}
    digests: dict[str, str] = {}
    for key, value in items:
        digests.update(digests_by_place(value, f"{place}/{key}" if place else str(key)))
    return digests


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names whose digest was another one ``before``, or of which there is none now."""
    return sorted(name for name, digest in before.items() if now.get(name) != digest)


def has_arrays(value: Any) -> bool:
    return any(isinstance(part, ms.Tensor | np.ndarray) for part, _ in _parts(value))


def in_words(value: Any) -> str:
    """Return the beginning of how Python writes a plain value, on one line."""
    text = " ".join(written(value).split()[1:])
    return text if len(text) <= 60 else f"{text[:57]}..."


def _parts(value: Any, depth: int = 0) -> Iterator[tuple[Any, int]]:
    """Yield ``value`` and everything in it with its depth, in an order equal in all processes."""
    yield value, depth
    items: Any = ()
    if isinstance(value, dict):
        items = (part for item in value.items() for part in item)
    elif isinstance(value, list | tuple):
        items = value
    for item in items:
        yield from _parts(item, depth + 1)
