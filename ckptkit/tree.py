"""Nested Python state as JSON plus tensors, without pickle.

Guarantees: what `encode_tree` takes, `decode_tree` gives back equal and of the same types: None, bool, int of
any size, float to the bit (infinities and NaN included), str, bytes, list, tuple, dict with any such keys,
NumPy arrays and scalars. Anything else is a TypeError that names the place, so that nothing is stored that
could not be restored. Plain JSON values stay readable as they are. Pure functions, any thread.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import JsonValue

from ckptkit.tensors import Array, Leaf, leaf_of

_MAX_DEPTH = 64


def encode_tree(  # noqa: PLR0911 - one return per type reads as the table that it is
    value: Any, path: str, leaves: list[Leaf], *, _depth: int = 0
) -> JsonValue:
    """Encode ``value``; arrays go to ``leaves``, named by their place below ``path``.

    Raises:
        TypeError: If something in it has no place in a checkpoint; names where and what.
        ValueError: If it is nested more than 64 deep.
    """
    if _depth > _MAX_DEPTH:
        raise ValueError(f"{path}: nested more than {_MAX_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return value
    if type(value) is int:
        return value if abs(value) < 2**53 else {"$int": str(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": struct.pack("<d", value).hex()}
    if type(value) is str:
        return value
    if type(value) is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.generic):
        leaves.append(leaf_of(path, np.array(value), role="state"))
        return {"$scalar": path}
    if isinstance(value, np.ndarray):
        leaves.append(leaf_of(path, value, role="state"))
        return {"$array": path}
    if type(value) in (list, tuple):
        items = [encode_tree(one, f"{path}/{index}", leaves, _depth=_depth + 1) for index, one in enumerate(value)]
        return items if type(value) is list else {"$tuple": items}
    if type(value) is dict:
        return _encode_dict(value, path, leaves, _depth)
    raise TypeError(
        f"{path}: a {type(value).__module__}.{type(value).__qualname__} cannot be stored in a checkpoint; "
        "state_dict() must return None, numbers, strings, bytes, lists, tuples, dicts and NumPy arrays"
    )


def _encode_dict(value: dict[Any, Any], path: str, leaves: list[Leaf], depth: int) -> JsonValue:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: encode_tree(one, f"{path}/{key}", leaves, _depth=depth + 1) for key, one in value.items()}
    pairs: list[JsonValue] = []
    for index, (key, one) in enumerate(value.items()):
        place = f"{path}/#{index}"
        encoded_key = encode_tree(key, f"{place}/key", leaves, _depth=depth + 1)
        pairs.append([encoded_key, encode_tree(one, place, leaves, _depth=depth + 1)])
    return {"$dict": pairs}


def decode_tree(value: JsonValue, tensors: Mapping[str, Array]) -> Any:
    """Undo `encode_tree`; ``tensors`` holds the arrays by name.

    Raises:
        ValueError: If ``value`` is not such an encoding or names a tensor that is not there.
    """
    if isinstance(value, list):
        return [decode_tree(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    tag = next((key for key in value if key.startswith("$")), None)
    if tag is None:
        return {key: decode_tree(one, tensors) for key, one in value.items()}
    if len(value) != 1 or tag not in _DECODERS:
        raise ValueError(f"unknown tag {tag[:40]!r} in a state tree")
    return _DECODERS[tag](value[tag], tensors)


def _tensor(name: JsonValue, tensors: Mapping[str, Array]) -> Array:
    if not isinstance(name, str) or name not in tensors:
        raise ValueError(f"a state tree names the tensor {str(name)[:80]!r}, which the checkpoint does not hold")
    return tensors[name]


def _pairs(value: JsonValue, tensors: Mapping[str, Array]) -> dict[Any, Any]:
    if not isinstance(value, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in value):
        raise ValueError("a '$dict' in a state tree is not a list of pairs")
    return {
        decode_tree(pair[0], tensors): decode_tree(pair[1], tensors) for pair in value if isinstance(pair, list)
    }


def _items(value: JsonValue, tensors: Mapping[str, Array]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError("a '$tuple' in a state tree is not a list")
    return tuple(decode_tree(one, tensors) for one in value)


_DECODERS: dict[str, Any] = {
    "$int": lambda value, _: int(str(value)),
    "$float": lambda value, _: struct.unpack("<d", bytes.fromhex(str(value)))[0],
    "$bytes": lambda value, _: base64.b64decode(str(value), validate=True),
    "$array": lambda value, tensors: np.array(_tensor(value, tensors)),
    "$scalar": lambda value, tensors: _tensor(value, tensors)[()],
    "$tuple": _items,
    "$dict": _pairs,
}
