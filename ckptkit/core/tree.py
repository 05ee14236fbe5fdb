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
from collections.abc import Callable, Mapping
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
    if len(value) != 1 or tag not in _DECODERS:
        raise ValueError(f"unknown tag {tag[:40]!r} in a state tree")
    return _DECODERS[tag](value[tag], tensors)


def _tensor(name: JsonValue, tensors: Mapping[str, Array]) -> Array:
    if not isinstance(name, str) or name not in tensors:
        raise ValueError(f"a state tree names the tensor {str(name)[:80]!r}, which the checkpoint does not hold")
    return tensors[name]


def _text(value: JsonValue, pattern: str, what: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(pattern, value, re.DOTALL):
        raise ValueError(f"a {what}")
    return value


def _integer(value: JsonValue, _: Mapping[str, Array]) -> int:
    return int(_text(value, "-?0x[0-9a-f]+", "'$int' in a state tree is not a hexadecimal number"), 16)


def _double(value: JsonValue, _: Mapping[str, Array]) -> float:
    digits = _text(value, "[0-9a-f]{16}", "'$float' in a state tree is not 16 hexadecimal digits")
    return float(struct.unpack("<d", bytes.fromhex(digits))[0])


def _octets(value: JsonValue, _: Mapping[str, Array]) -> bytes:
    return base64.b64decode(_text(value, ".*", "'$bytes' in a state tree is not text"), validate=True)


def _scalar(value: JsonValue, tensors: Mapping[str, Array]) -> Any:
    tensor = _tensor(value, tensors)
    if tensor.shape != ():
        raise ValueError(f"the '$scalar' {str(value)[:80]!r} in a state tree has the shape {tensor.shape}")
    return tensor[()]


def _pairs(value: JsonValue, tensors: Mapping[str, Array]) -> dict[Any, Any]:
    if not isinstance(value, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in value):
        raise ValueError("a '$dict' in a state tree is not a list of pairs")
    decoded = [[decode_tree(item, tensors) for item in pair] for pair in value if isinstance(pair, list)]
    try:
        result = dict(decoded)
    except TypeError as error:
        raise ValueError(f"a '$dict' in a state tree has a key that cannot be one: {error}") from error
    if len(result) != len(decoded):
        raise ValueError("a '$dict' in a state tree has a key twice")
    return result


def _ordered(value: JsonValue, tensors: Mapping[str, Array]) -> OrderedDict[Any, Any]:
    decoded = decode_tree(value, tensors)
    if type(decoded) is not dict:
        raise ValueError("an '$ordered' in a state tree is not a dictionary")
    return OrderedDict(decoded)


def _items(value: JsonValue, tensors: Mapping[str, Array]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError("a '$tuple' in a state tree is not a list")
    return tuple(decode_tree(item, tensors) for item in value)


_DECODERS: dict[str, Callable[[JsonValue, Mapping[str, Array]], Any]] = {
    "$int": _integer,
    "$float": _double,
    "$bytes": _octets,
    "$array": lambda value, tensors: np.array(_tensor(value, tensors)),
    "$scalar": _scalar,
    "$tuple": _items,
    "$dict": _pairs,
    "$ordered": _ordered,
}
