"""Describes a value by a text that is equal in every process for equal bits: the digest of one node of a walk.

Guarantees: reading a generator, an iterator or a file does not advance it; no code of the user's runs. An array or
tensor above 1 MiB is read by a sample. Any thread.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import io
import random
import sys
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any

import mindspore as ms
import numpy as np
import xxhash
from mindspore import nn

from ckptkit.core.tensors import Array
from ckptkit.mindspore.observe.attributes import items_of_dict, own_attributes
from ckptkit.mindspore.observe.users import is_users_class, is_users_frame, library_of
from ckptkit.mindspore.rng import generator_state

ATOMS = (type(None), bool, int, float, complex, str, bytes)
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, np.random.BitGenerator)
CONTAINERS = (dict, list, tuple, deque)
MOST_ITEMS = 256  # of a container that are walked
OUTSIDE = "lives outside of this process"
# The attribute in which each kind has its frame.
GENERATOR_KINDS = {
    types.GeneratorType: "gi_frame",
    types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}
_NUMBERS_AND_TEXTS: tuple[Any, ...] = (int, float, str, bytes)
_OUTSIDE = frozenset(("subprocess", "socket", "multiprocessing", "concurrent", "_socket", "sqlite3"))
_ALIVE = frozenset(
    (
        *("Popen", "socket", "Process", "Connection", "ForkProcess", "SpawnProcess", "SyncManager", "BaseProxy"),
        *("DictProxy", "ListProxy", "ValueProxy", "NamespaceProxy", "SharedMemory", "ProcessPoolExecutor", "Pool"),
        *("Queue", "SimpleQueue"),
    )
)
_PROBES = ("hexdigest", "qsize")  # of objects in C that tell nothing else; they change nothing
_OWN_GENERATORS = (np.random.mtrand._rand, random._inst)  # private: of the modules; a test tells if they move
_SAMPLE_BYTES = 1 << 20
_MOST_TENSOR_BYTES = 1 << 26
_MOST_TEXT, _MOST_ATOMS = 200, 10_000

_digest: Callable[[Any], str] = xxhash.xxh3_64_hexdigest


def text_of(value: Any) -> str | None:
    """Return the text of a value; None for what is known by its parts."""
    kind: Any = type(value)
    return _text_function(kind)(value)


def own_text_of(value: Any) -> str:
    """Return the text of an object that is known by its parts, without them."""
    kind: Any = type(value)
    if kind is types.FunctionType:
        return f"function {value.__qualname__} {_digest_of_code(value.__code__)}"
    if kind is types.MethodType:
        return f"method {getattr(value.__func__, '__qualname__', '')}"
    if issubclass(kind, type):
        return f"class {value.__qualname__}"
    if issubclass(kind, CONTAINERS):
        return _text_of_container(value)
    if kind in GENERATOR_KINDS:
        frame = getattr(value, GENERATOR_KINDS[kind])
        at = frame.f_lasti if frame is not None and is_users_frame(frame) else 0
        return "generator that ended" if frame is None else f"generator at {at}"
    return f"<{kind.__qualname__}>"


def reduced(value: Any) -> tuple[Any, ...]:
    """Return how an object of the standard library, or of NumPy, is made again: a function, arguments, state, items.

    Nothing for an object that Python cannot copy, and for one of another library or of the user's.
    """
    kind: Any = type(value)
    if kind.__module__.partition(".")[0].lstrip("_") not in _STANDARD:
        return ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 deprecates what 3.14 removes for iterators of itertools
            parts = value.__reduce_ex__(4)
    except (TypeError, ValueError, RuntimeError):  # it cannot be copied, is closed, or is for another process
        return ()
    return parts if type(parts) is tuple else ()


def extends_plain(kind: Any) -> bool:
    """Return whether a class of the user's extends numbers or texts."""
    return issubclass(kind, _NUMBERS_AND_TEXTS) and is_users_class(kind) and not issubclass(kind, enum.Enum)


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


def text_of_state(state: Any) -> str:
    """Return the text of a generator with this state."""
    with np.printoptions(threshold=sys.maxsize):  # no item of an array is left out
        return f"generator {_digest(repr(state).encode())}"


def iterated(value: Any) -> Iterator[Any]:
    """Return the items of a list, a tuple or a deque, whatever its class does."""
    base: Any = next(kind for kind in (list, tuple, deque) if issubclass(type(value), kind))
    items: Iterator[Any] = base.__iter__(value)
    return items


def _text_of_atom(value: Any) -> str:
    if type(value) in (str, bytes) and len(value) > _MOST_TEXT:
        data = value if type(value) is bytes else value.encode(errors="replace")
        return f"{type(value).__name__} {len(value)} {_digest(data)}"
    return written(value)


def _text_of_extended(value: Any) -> str:
    base = next(base for base in _NUMBERS_AND_TEXTS if issubclass(type(value), base))
    return f"{type(value).__qualname__} {base.__repr__(value)[:_MOST_TEXT]}"


def _text_of_file(value: Any) -> str:
    is_read = not value.closed and value.readable() and not value.writable() and value.seekable()
    return f"file at {getattr(value, 'buffer', value).tell()}" if is_read else "file"


def _text_of_tensor(value: ms.Tensor) -> str:
    # Private, since mindtorch replaces `Tensor.nbytes`; if MindSpore's own moves, a look raises AttributeError.
    if value.has_init or value._nbytes > _MOST_TENSOR_BYTES:
        return f"tensor {value.dtype}{value.shape}"
    return f"tensor {value.dtype} {text_of_array(value.asnumpy())}"


def _text_of_generator(value: Any) -> str | None:
    if any(value is generator for generator in _OWN_GENERATORS):  # a checkpoint's section rng has these
        return "the process's generator"
    state = generator_of(value)
    return None if state is None else text_of_state(state)


def _text_of_set(value: Any) -> str:
    base: Any = set if issubclass(type(value), set) else frozenset
    members = sorted(text_of(member) or type(member).__qualname__ for member in base.__iter__(value))
    return f"{type(value).__name__} {len(members)} {_digest(repr(members).encode())}"


def _text_of_atoms(value: Any) -> str | None:
    """Return the text of a container with nothing but atoms in it, whole; None for any other."""
    kind: Any = type(value)
    pairs = items_of_dict(value) if issubclass(kind, dict) else []
    keys = [key for key, _ in pairs]
    items = [item for _, item in pairs] if issubclass(kind, dict) else [*iterated(value)]
    if not _ATOMS.issuperset(map(type, items)) or not _ATOMS.issuperset(map(type, keys)):
        return None
    step = max(1, len(items) // _MOST_ATOMS)
    return f"{kind.__name__} of {len(items)} {_text_of_atom(repr((keys[::step], items[::step])))}"


def _text_of_container(value: Any) -> str:
    """Return the size and the keys of a container; of a large one, whose items are not all walked, their texts, too."""
    kind: Any = type(value)
    pairs = items_of_dict(value) if issubclass(kind, dict) else [(None, item) for item in iterated(value)]
    keys = [repr(key) if type(key) in _ATOMS else type(key).__name__ for key, _ in pairs[:_MOST_ATOMS]]
    if len(pairs) > MOST_ITEMS:
        keys += [_short_text_of(item) for _, item in pairs[:_MOST_ATOMS]]
    digest = f" {_text_of_atom(' '.join(keys))}" if issubclass(kind, dict) or len(pairs) > MOST_ITEMS else ""
    return f"{kind.__qualname__} of {len(pairs)}{digest}"


def _short_text_of(item: Any) -> str:
    if issubclass(type(item), ms.Parameter):  # mostly those of an optimizer, which checkpoints have
        return str(item.name)
    return text_of(item) or type(item).__name__


@functools.lru_cache(maxsize=4096)
def _digest_of_code(code: types.CodeType) -> str:
    """Return what tells two functions of one name, whatever lines they are on."""
    return _digest(code.co_code + repr(code.co_names).encode())


_ATOMS = frozenset(ATOMS)
_STANDARD = frozenset(name.lstrip("_") for name in sys.stdlib_module_names) | {"builtins", "numpy"}
_BY_BASE: tuple[tuple[Any, Callable[[Any], str | None]], ...] = (
    (nn.Cell, lambda _: None),
    (CONTAINERS, _text_of_atoms),
    ((io.StringIO, io.BytesIO), lambda _: None),
    ((io.TextIOWrapper, io.BufferedReader), _text_of_file),
    (io.IOBase, lambda _: "file"),
    (np.generic, lambda value: f"{type(value).__name__} {value!r}"),
    (enum.Enum, lambda value: f"{type(value).__qualname__}.{own_attributes(value).get('_name_')}"),
    (ms.Tensor, _text_of_tensor),
    (np.ndarray, text_of_array),
    (np.dtype, lambda value: f"dtype {value.str}"),
    (PurePath, lambda value: f"{type(value).__name__} {value}"),
    ((set, frozenset), _text_of_set),
    (GENERATORS, _text_of_generator),
    # A private base class: of c_int and its like.
    (
        (ctypes._SimpleCData, ctypes.Array, ctypes.Structure),
        lambda value: f"{type(value).__name__} {_text_of_atom(bytes(value))}",
    ),
    (np.random.SeedSequence, lambda value: f"SeedSequence {value.n_children_spawned}"),
)


@functools.lru_cache(maxsize=4096)
def _text_function(kind: Any) -> Callable[[Any], str | None]:
    """Return what gives the texts of values of a class."""
    if kind in _ATOMS:
        return _text_of_atom
    if library_of(kind) in _OUTSIDE and not is_users_class(kind) and kind.__name__ in _ALIVE:
        return lambda _: OUTSIDE
    if extends_plain(kind):
        return _text_of_extended
    for base, function in _BY_BASE:
        if issubclass(kind, base):
            return function
    is_in_c = library_of(kind).startswith("_") and not is_users_class(kind)
    probe = next((name for name in _PROBES if is_in_c and hasattr(kind, name)), None)
    return lambda value: None if probe is None else f"{kind.__name__} {getattr(value, probe)()}"
