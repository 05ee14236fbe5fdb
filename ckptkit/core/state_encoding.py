"""Encodes nested Python state as JSON plus tensors, without pickle.

`decode_tree` returns what `encode_tree` accepted, equal and of the same types: None, bool, int of any size,
float to the bit (infinities and NaN included), str, bytes, list, tuple, dict and OrderedDict in their order and with
any such keys, NumPy arrays (no subclass of them) and scalars. Anything else is a TypeError that names the place, so
that nothing is stored that could not be restored. Plain JSON values stay readable. Pure functions, any thread.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import JsonValue

from ckptkit.core.tensors import Array, Leaf, leaf_of

_MAX_DEPTH = 64


def encode_tree(  # noqa: PLR0911 - one return per type reads like a table
    value: Any, path: str, leaves: list[Leaf], *, _depth: int = 0
) -> JsonValue:
    """Encode ``value``; appends arrays to ``leaves``, named by their place below ``path``.

    Raises:
        TypeError: If a value cannot be stored in a checkpoint; names the place and the type.
        ValueError: If it is nested more than 64 deep; an OrderedDict with other keys than strings counts twice.
    """
    if _depth > _MAX_DEPTH:
        raise ValueError(f"{path}: nested more than {_MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool):
        return value
    if type(value) is int:
        return value if abs(value) < 2**53 else {"$int": hex(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": struct.pack("<d", value).hex()}
    if type(value) is str:
        return _checked_text(value, path)
    if type(value) is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.generic):
        leaves.append(leaf_of(path, np.array(value), role="state"))
        return {"$scalar": path}
    if type(value) is np.ndarray:
        if value.dtype.name == "bfloat16":
            raise TypeError(f"{path}: NumPy has no bfloat16 to restore it as; store array.view(numpy.uint16) instead")
        leaves.append(leaf_of(path, value, role="state"))
        return {"$array": path}
    if type(value) in (list, tuple):
        # Most of all values are the 625 numbers of a Python generator, in every save.
        if _depth < _MAX_DEPTH and all(type(item) is int and -(2**53) < item < 2**53 for item in value):
            items: list[JsonValue] = list(value)
            return items if type(value) is list else {"$tuple": items}
        items = [encode_tree(item, f"{path}/{index}", leaves, _depth=_depth + 1) for index, item in enumerate(value)]
        return items if type(value) is list else {"$tuple": items}
    if type(value) in (dict, OrderedDict):
        encoded = _encode_dict(value, path, leaves, _depth)
        return encoded if type(value) is dict else {"$ordered": encoded}
    raise TypeError(
        f"{path}: a {type(value).__module__}.{type(value).__qualname__} cannot be stored in a checkpoint; "
        "state_dict() must return None, numbers, strings, bytes, lists, tuples, dicts and NumPy arrays"
    )


def _checked_text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise TypeError(
            f"{path}: the text {value[:80]!r} cannot be stored in a checkpoint, because it is not valid Unicode; "
            "store its bytes instead, such as os.fsencode(text)"
        ) from error
    return value


def _encode_dict(value: dict[Any, Any], path: str, leaves: list[Leaf], depth: int) -> JsonValue:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {
            _checked_text(key, path): encode_tree(inner, f"{path}/{_segment(key)}", leaves, _depth=depth + 1)
            for key, inner in value.items()
        }
    depth += type(value) is OrderedDict  # four levels of JSON, where readers take 200 in all
    pairs: list[JsonValue] = []
    for index, (key, inner) in enumerate(value.items()):
        encoded_key = encode_tree(key, f"{path}/#{index}.key", leaves, _depth=depth + 1)
        pairs.append([encoded_key, encode_tree(inner, f"{path}/#{index}", leaves, _depth=depth + 1)])
    return {"$dict": pairs}


def _segment(key: str) -> str:
    # As in a JSON pointer, so that arrays in {"a/b": ...} and {"a": {"b": ...}} get different names.
    return key.replace("~", "~0").replace("/", "~1")


def decode_tree(value: JsonValue, tensors: Mapping[str, Array]) -> Any:
    """Undo `encode_tree`; a ValueError says that ``value`` is no such encoding, or names a missing tensor."""
    if isinstance(value, list):
        return [decode_tree(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next((key for key in value if key.startswith("$")), None)
    if tag is None:
        return {key: decode_tree(inner, tensors) for key, inner in value.items()}
    if len(value) != 1 or tag not in _TAGS:
        raise ValueError(f"unknown tag {tag[:40]!r} in a state tree")
    try:
        return _decode_tag(tag, value[tag], tensors)
    except TypeError as error:  # an unhashable key
        raise ValueError(f"a {tag!r} in a state tree has a key that cannot be one: {error}") from error


_TAGS = ("$int", "$float", "$bytes", "$array", "$scalar", "$tuple", "$dict", "$ordered")


def _decode_tag(tag: str, value: JsonValue, tensors: Mapping[str, Array]) -> Any:  # noqa: PLR0911 - as in `encode_tree`
    match tag, value:
        case "$int", str() if re.fullmatch("-?0x[0-9a-f]+", value):
            return int(value, 16)
        case "$float", str() if re.fullmatch("[0-9a-f]{16}", value):
            return float(struct.unpack("<d", bytes.fromhex(value))[0])
        case "$bytes", str():
            return base64.b64decode(value, validate=True)
        case "$array", _:
            return np.array(_tensor(value, tensors))
        case "$scalar", _ if (scalar := _tensor(value, tensors)).shape == ():
            return scalar[()]
        case "$tuple", list():
            return tuple(decode_tree(item, tensors) for item in value)
        case "$dict", list() if all(isinstance(pair, list) and len(pair) == 2 for pair in value):
            pairs = decode_tree(value, tensors)
            if len(decoded := dict(pairs)) == len(pairs):
                return decoded
        case "$ordered", dict() if type(decoded := decode_tree(value, tensors)) is dict:
            return OrderedDict(decoded)
    raise ValueError(f"a {tag!r} in a state tree has another form than `encode_tree` gives it")


def _tensor(name: JsonValue, tensors: Mapping[str, Array]) -> Array:
    if not isinstance(name, str) or name not in tensors:
        raise ValueError(f"a state tree names the tensor {str(name)[:80]!r}, which the checkpoint does not hold")
    return tensors[name]
