"""Digests plain values: numbers, texts, arrays, tensors, generators and containers of them.

Guarantees: equal bits give equal digests in every process; reading a generator does not advance it. `is_plain` rejects
a value that is not plain or too large to digest after every micro-step. Any thread.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import mindspore as ms
import numpy as np
import xxhash

from ckptkit.mindspore.observe.attributes import behind_proxy
from ckptkit.mindspore.rng import generator_state

_MAX_ITEMS = 10_000
_MAX_BYTES = 1 << 28
_MAX_DEPTH = 16

_ATOMS = (type(None), bool, int, float, complex, str, bytes)
_SETS = (set, frozenset)
_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, deque, *_SETS)


def is_plain(value: Any) -> bool:
    """Return whether `digest_of_value` accepts ``value`` and is fast enough to run after every micro-step."""
    size_bytes = 0
    for items, (part, depth) in enumerate(_parts(value, most=_MAX_ITEMS + 1)):
        if items > _MAX_ITEMS or depth > _MAX_DEPTH:
            return False
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
        elif _container(part) is None and type(part) not in _ATOMS and generator_state(part) is None:
            return False
        if size_bytes > _MAX_BYTES:
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
        elif (kind := _container(part)) is not None:
            hasher.update(f"{depth}{type(part).__name__}{kind.__len__(part)}".encode())
        else:
            hasher.update(f"{depth}{type(part).__name__}{_written(part)}".encode())
    return hasher.hexdigest()


def digests_by_place(state: Any) -> dict[str, str]:
    """Return digests by place, computed at once, since a state may be the object's own lists."""
    return {place: digest_of_value(value) for place, value in _places_in(state, "")}


def has_arrays(value: Any) -> bool:
    return any(isinstance(part, ms.Tensor | np.ndarray) for part, _ in _parts(value))


def in_words(value: Any) -> str:
    """Return the beginning of how Python writes a plain value, on one line."""
    text = " ".join(_written(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _places_in(state: Any, place: str) -> Iterator[tuple[str, Any]]:
    items: list[tuple[Any, Any]] = []
    if isinstance(state, Mapping):
        items = [*state.items()]
    elif isinstance(state, (list, tuple)):
        items = [*enumerate(state)]
    if not items:
        yield place or "its value", state
    for key, value in items:
        yield from _places_in(value, f"{place}/{key}" if place else str(key))


def _written(value: Any) -> str:
    """Return `repr`; of a number with more digits than Python prints, the digits of base 16."""
    try:
        return repr(value)
    except ValueError:
        return hex(value) if isinstance(value, int) else _key(value)


def _key(value: Any) -> str:
    """Return what an item of a set is sorted by; of an object that is not plain, its class."""
    if type(value) in _ATOMS or isinstance(value, np.generic):
        return _written(value)
    kind = _container(value)
    items = kind.__iter__(value) if kind is not None else ()
    return f"{type(value).__qualname__} {', '.join(map(_key, items))}"


def _parts(value: Any, depth: int = 0, most: int | None = None) -> Iterator[tuple[Any, int]]:
    """Yield ``value`` and everything in it, in an order equal in all processes; generators as their state.

    Of each container, no more than ``most`` items.
    """
    value = behind_proxy(value)
    state = generator_state(value)
    if state is not None:
        yield from _parts(state, depth, most)
        return
    yield value, depth
    kind = _container(value)
    if kind is None:
        return
    items = [*itertools.islice(dict.items(value) if kind is dict else kind.__iter__(value), most)]
    for item in sorted(items, key=_key) if kind in _SETS else items:
        for part in item if kind is dict else (item,):
            yield from _parts(part, depth + 1, most)


def _container(value: Any) -> Any:
    """Return Python's own class of a container; None for anything else."""
    own = type(value)
    return next(kind for kind in _CONTAINERS if issubclass(own, kind)) if issubclass(own, _CONTAINERS) else None
