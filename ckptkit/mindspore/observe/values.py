"""Describes a value by a text that is equal in every process for equal bits: the digest of one node of a walk.

Guarantees: reading a generator, an iterator or a file does not advance it; no code of the user's runs. An array or
tensor above 1 MiB is read by a sample. Any thread.
"""

from __future__ import annotations

import array
import ctypes
import datetime
import decimal
import enum
import fractions
import io
import itertools
import queue
import random
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import mindspore as ms
import numpy as np
import xxhash

from ckptkit.core.tensors import Array
from ckptkit.mindspore.observe.attributes import own_attributes
from ckptkit.mindspore.observe.users import is_users_class
from ckptkit.mindspore.rng import generator_state

ATOMS = (type(None), bool, int, float, complex, str, bytes)
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, np.random.BitGenerator)
SIMPLE = (
    *(decimal.Decimal, fractions.Fraction, range, slice, type(Ellipsis)),
    *(datetime.datetime, datetime.timedelta, datetime.date, datetime.time),
)
CTYPES = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)  # private: the base class of c_int and its like
_PLAIN_BASES: tuple[Any, ...] = (int, float, str, bytes, frozenset, tuple)
_SAMPLE_BYTES = 1 << 20
_MOST_TENSOR_BYTES = 1 << 26
_MOST_TEXT = 200

Number = int | float | None


def text_of(value: Any) -> tuple[str | None, Number]:  # noqa: PLR0911, PLR0912 - one case per kind reads like a table
    """Return the text of a value, and the number that it is, if it is one; None for what is known by its parts."""
    kind = type(value)
    if kind in ATOMS:
        return _text_of_atom(value), value if kind in (int, float) else None
    if issubclass(kind, np.generic):
        return f"{kind.__name__} {value!r}", value.item() if value.dtype.kind in "iuf" else None
    if issubclass(kind, enum.Enum):
        return f"{kind.__qualname__}.{own_attributes(value).get('_name_')}", None
    if issubclass(kind, ms.Tensor):
        return _text_of_tensor(value)
    if issubclass(kind, np.ndarray):
        return text_of_array(value), _number_in(value)
    if issubclass(kind, np.dtype):
        return f"dtype {value.str}", None
    if kind in SIMPLE or kind is itertools.count:
        return written(value), None
    if issubclass(kind, PurePath):
        return f"{kind.__name__} {value}", None
    if (base := plain_base_of(kind)) is not None and base not in (tuple, frozenset):
        return f"{kind.__qualname__} {base.__repr__(value)[:_MOST_TEXT]}", None
    if kind is queue.SimpleQueue:
        return f"queue of {value.qsize()}", None
    if kind is bytearray or kind is array.array:
        return f"{kind.__name__} {len(value)} {_digest(bytes(value))}", None
    if issubclass(kind, (set, frozenset)):
        return _text_of_set(value), None
    if issubclass(kind, GENERATORS):
        return _text_of_generator(value), None
    if issubclass(kind, np.random.SeedSequence):
        return f"SeedSequence {value.n_children_spawned}", None
    if issubclass(kind, CTYPES):
        return f"{kind.__name__} {_digest(bytes(value))}", None
    if kind in (io.StringIO, io.BytesIO):
        return "closed" if value.closed else f"{kind.__name__} {value.tell()} {_text_of_atom(value.getvalue())}", None
    return None, None


def plain_base_of(kind: type) -> Any:
    """Return the number, text, tuple or frozenset that a class of the user's extends; None for any other class."""
    bases = (base for base in _PLAIN_BASES if issubclass(kind, base))
    return next(bases, None) if is_users_class(kind) and not issubclass(kind, enum.Enum) else None


def written(value: Any) -> str:
    """Return the class and `repr` of a value; of a number with more digits than Python prints, those of base 16."""
    try:
        return f"{type(value).__name__} {value!r}"
    except ValueError:
        return f"{type(value).__name__} {hex(value)}"


def text_of_array(value: Array) -> str:
    """Return the dtype, the shape and the digest of an array; the value of a single element."""
    if value.dtype.hasobject:
        return f"array of objects {value.shape}"
    if value.size == 1:
        return f"array {value.dtype}{value.shape} {value.reshape(-1)[0]!r}"
    step = max(1, value.nbytes // _SAMPLE_BYTES)
    part = np.ascontiguousarray(value if step == 1 else value.reshape(-1)[::step])
    return f"array {value.dtype}{value.shape} {_digest(part.view(np.uint8).data if part.ndim else part.tobytes())}"


def generator_of(value: Any) -> Any:
    """Return the state of a generator of Python or NumPy, as `ckptkit.mindspore.rng.generator_state`."""
    return value.state if issubclass(type(value), np.random.BitGenerator) else generator_state(value)


def _text_of_atom(value: Any) -> str:
    if type(value) in (str, bytes) and len(value) > _MOST_TEXT:
        data = value if type(value) is bytes else value.encode(errors="replace")
        return f"{type(value).__name__} {len(value)} {_digest(data)}"
    return written(value)


def _text_of_tensor(value: ms.Tensor) -> tuple[str, Number]:
    # Private, since mindtorch replaces `Tensor.nbytes`; if MindSpore's own moves, a look raises AttributeError.
    if value.has_init or value._nbytes > _MOST_TENSOR_BYTES:
        return f"tensor {value.dtype}{value.shape}", None
    values = value.asnumpy()
    return f"tensor {value.dtype} {text_of_array(values)}", _number_in(values)


def _text_of_generator(value: Any) -> str | None:
    state = generator_of(value)
    return None if state is None else text_of_state(state)


def text_of_state(state: Any) -> str:
    """Return the text of a generator with this state."""
    return f"generator {_digest(repr(_plain(state)).encode())}"


def _plain(state: Any) -> Any:
    """Return the state of a generator with its arrays as bytes, since `repr` of a long array leaves items out."""
    if isinstance(state, dict):
        return {name: _plain(part) for name, part in state.items()}
    if isinstance(state, (list, tuple)) and any(isinstance(part, np.ndarray) for part in state):
        return [_plain(part) for part in state]
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _text_of_set(value: Any) -> str:
    base: Any = set if issubclass(type(value), set) else frozenset
    members = sorted(map(_member, base.__iter__(value)))
    return f"{type(value).__name__} {len(members)} {_digest(repr(members).encode())}"


def _member(value: Any) -> str:
    if type(value) in ATOMS or issubclass(type(value), np.generic):
        return written(value)
    if type(value) in (tuple, frozenset):
        parts = map(_member, value)
        return f"{type(value).__name__} {[*parts] if type(value) is tuple else sorted(parts)}"
    return type(value).__qualname__


def _number_in(value: Array) -> Number:
    is_number = value.size == 1 and value.dtype.kind in "iuf"
    return value.reshape(-1)[0].item() if is_number else None


_digest: Callable[[Any], str] = xxhash.xxh3_64_hexdigest
