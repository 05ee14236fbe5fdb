"""Digests and describes plain values: numbers, texts, arrays, tensors, generators and containers of them.

Guarantees: equal bits give equal digests in every process; reading a generator does not advance it. `is_plain` rejects
a value that is not plain or too large to digest after every micro-step. Any thread.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np
import xxhash

from ckptkit.core.tensors import Array
from ckptkit.mindspore.observe.attributes import behind_proxy
from ckptkit.mindspore.rng import generator_state

_MAX_ITEMS = 10_000
_MAX_BYTES = 1 << 28
_MAX_DEPTH = 16

ATOMS = (type(None), bool, int, float, complex, str, bytes)
_SETS = (set, frozenset)
_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, deque, *_SETS)


def is_plain(value: Any) -> bool:
    """Return whether `digest_of_value` accepts ``value`` and is fast enough to run after every micro-step."""
    size_bytes = 0
    for items, (one, depth) in enumerate(_parts(value, most=_MAX_ITEMS + 1)):
        if items > _MAX_ITEMS or depth > _MAX_DEPTH:
            return False
        if isinstance(one, ms.Tensor):
            if one.has_init:  # has no data yet
                return False
            size_bytes += tensor_bytes(one)
        elif isinstance(one, np.ndarray | np.generic):
            if one.dtype.hasobject:
                return False
            size_bytes += one.nbytes
        elif _container(one) is None and type(one) not in ATOMS and generator_state(one) is None:
            return False
        if size_bytes > _MAX_BYTES:
            return False
    return True


def tensor_bytes(tensor: ms.Tensor) -> int:
    """Return the size of a tensor's data in bytes, without reading them."""
    # Private, since mindtorch replaces `Tensor.nbytes` by one that fails for some dtypes. If MindSpore's own moves,
    # whatever digests a tensor raises AttributeError.
    size: int = tensor._nbytes
    return size


def digest_of_value(value: Any) -> str:
    """Return the xxh3_128 of a plain value, including types and shapes."""
    hasher = xxhash.xxh3_128()
    for one, depth in _parts(value):
        if isinstance(one, ms.Tensor | np.ndarray | np.generic):
            array = _array(one)
            hasher.update(f"{depth}{array.dtype}{array.shape}".encode())
            hasher.update(np.ascontiguousarray(array).tobytes())
        elif (kind := _container(one)) is not None:
            hasher.update(f"{depth}{type(one).__name__}{kind.__len__(one)}".encode())
        else:
            hasher.update(f"{depth}{type(one).__name__}{written(one)}".encode())
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
    if (kind := _container(value)) is not None:
        arrays = sum(1 for _ in tensors_in(value))
        return f"{type(value).__name__} of {kind.__len__(value)}" + (f" ({arrays} arrays)" if arrays else "")
    if generator_state(value) is not None:
        return f"state of a {type(value).__name__}"
    text = written(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def written(value: Any) -> str:
    """Return `repr`; of a number with more digits than Python prints, the digits of base 16."""
    try:
        return repr(value)
    except ValueError:
        return hex(value) if isinstance(value, int) else _key(value)


def _key(value: Any) -> str:
    """Return what an item of a set is sorted by; of an object that is not plain, its class."""
    if type(value) in ATOMS or isinstance(value, np.generic):
        return written(value)
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
    for one in sorted(items, key=_key) if kind in _SETS else items:
        for part in one if kind is dict else (one,):
            yield from _parts(part, depth + 1, most)


def _container(value: Any) -> Any:
    """Return Python's own class of a container; None for anything else."""
    own = type(value)
    return next(kind for kind in _CONTAINERS if issubclass(own, kind)) if issubclass(own, _CONTAINERS) else None


def _array(value: Any) -> Array:
    array: Array = value.asnumpy() if isinstance(value, ms.Tensor) else np.asarray(value)
    return array
