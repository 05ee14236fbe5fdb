"""Describes any value by a text and its parts (`described`), follows a step to a part, and sets one.

One table has a row for each kind of value. The text is equal in every process for equal bits; of what has parts, it is
that of the value without them. What checkpoints store already is left out (`Known`).

Guarantees: no code of the user's runs; a generator, an iterator or a file is not advanced. Only `set_part` changes
anything. Of an array or tensor above 1 MiB, a sample is read. Main thread only.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import dis
import enum
import functools
import gc
import inspect
import io
import logging
import math
import os
import random
import re
import sys
import threading
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, TypeAlias

import mindspore as ms
import numpy as np
import xxhash
from mindspore import nn, ops

from ckptkit.core.tensors import Array
from ckptkit.mindspore.observe.attributes import (
    CACHED,
    NO_ATTRIBUTES,
    attributes_of,
    items_of_dict,
    own_attributes,
    set_attribute,
    unwrapped,
)
from ckptkit.mindspore.observe.frame_variables import variables_of
from ckptkit.mindspore.observe.liveness import code_names, live_names
from ckptkit.mindspore.observe.paths import Root, Step
from ckptkit.mindspore.observe.user_code import (
    is_installed,
    is_users,
    is_users_class,
    is_users_frame,
    is_users_function,
    library_of,
)
from ckptkit.mindspore.rng import generator_state

Parts: TypeAlias = Iterable[tuple[Step | Root, Any]]

ATOMS = (type(None), bool, int, float, complex, str, bytes)
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, np.random.BitGenerator)
MOST_ITEMS = 256  # of a container that are walked
OUTSIDE = "lives outside of this process"
MISSING = object()
# What every cell has, and what a call in GRAPH leaves in it; a test tells of more.
EVERY_CELL = frozenset(vars(nn.Cell())) | {
    *("__compile_cell_hook__", "__parse_method__", "_func_graph_flags", "current_phase", "sequence_modified"),
    "_mutable_flags",
}
_HOOKS = tuple(sorted(name for name in EVERY_CELL if name.endswith(("_hook", "_hooks"))))
_ATOMS = frozenset(ATOMS)
_NUMBERS_AND_TEXTS: tuple[Any, ...] = (int, float, str, bytes)
_SEQUENCES = (list, tuple, deque)
_CONTAINERS = (dict, *_SEQUENCES)
_UNSETTABLE = (tuple, functools.partial, types.MethodType, types.BuiltinMethodType)
_STANDARD = frozenset(name.lstrip("_") for name in sys.stdlib_module_names) | {"builtins", "numpy"}
_OWN_GENERATORS = (np.random.mtrand._rand, random._inst)  # private: of the modules; a test tells if they move
# The attribute in which each kind has its frame.
_FRAMES = {types.GeneratorType: "gi_frame", types.CoroutineType: "cr_frame", types.AsyncGeneratorType: "ag_frame"}
# Libraries whose objects live outside of the process, and those whose objects are not looked into.
_OUTSIDE = frozenset(("subprocess", "socket", "multiprocessing", "concurrent", "_socket", "sqlite3"))
_CLOSED = _OUTSIDE | {
    *("asyncio", "_asyncio", "selectors", "ckptkit", "tqdm", "rich"),
    *("_pytest", "pluggy"),  # what a test holds of its runner
}
_CHOICE = re.compile(r"[^\W\d][^\s\d]{0,39}")  # of a script; folders, names of runs and times are not so
_LARGEST = {int: 1 << 24, float: 100.0}  # numbers that a script begins with; times, addresses and hashes are larger
_PROBES = ("hexdigest", "qsize")  # of objects in C that tell nothing else; they change nothing
# Modules of MindSpore whose objects keep in plain attributes what training changes.
_KEEPS_STATE = (
    *("mindspore.experimental.optim", "mindspore.amp", "mindspore.nn", "mindspore.train.metrics"),
    "mindspore.train.callback._history",
)
# What a cached function may name if it can be called again for the same result.
_FIXED = (*ATOMS, tuple, type, types.FunctionType, types.BuiltinFunctionType)
_RANDOM_OR_TIME = frozenset(
    ("random", "rand", "randn", "randint", "normal", "uniform", "choice", "shuffle", "permutation", "time")
)
_CONSTANTS = (*ATOMS, ops.Primitive)
_SAMPLE_BYTES = 1 << 20
_MOST_TENSOR_BYTES = 1 << 26
_MOST_TEXT, _MOST_ATOMS = 200, 10_000

_digest: Callable[[Any], str] = xxhash.xxh3_64_hexdigest


@dataclass
class Known:
    """What a look leaves out.

    Attributes:
        stored: The ``id`` of what checkpoints store already.
        parts: By ``id`` of an object, the attributes of it that checkpoints store.
        parameters: The parameters that checkpoints store, by name.
        data: The objects that batches come from, by ``id``, with their paths there.
    """

    stored: set[int] = field(default_factory=set)
    parts: dict[int, set[str]] = field(default_factory=dict)
    parameters: dict[str, ms.Tensor] = field(default_factory=dict)
    data: Mapping[int, str] = field(default_factory=dict)

    @functools.cached_property
    def names(self) -> dict[int, str]:
        """The names of `parameters`, by ``id``."""
        return {id(parameter): name for name, parameter in self.parameters.items()}

    def stores(self, owner: Any, name: str) -> bool:
        """Return whether checkpoints store an attribute of an object."""
        return name in self.parts.get(id(owner), ())


def described(value: Any, known: Known) -> tuple[str, Parts]:
    """Return the text of a value, and its parts with the steps to them; a `Root` for what has a path of its own."""
    kind: Any = type(value)
    return _description_of(kind)(value, known)


def text_of(value: Any) -> str:
    """Return the text of a value."""
    return described(value, Known())[0]


def part_at(owner: Any, step: Step, known: Known) -> Any:
    """Return the part of an object that a step leads to; `MISSING` without one."""
    if step.kind == "key" and issubclass(type(owner), dict):  # a dict may have more than is walked
        return dict.get(owner, step.key, MISSING)
    return next((part for other, part in described(owner, known)[1] if other == step), MISSING)


def may_set(owner: Any, step: Step) -> bool:
    """Return whether `set_part` can set this part of an object."""
    return step.kind not in ("class", "inner", "part") and not issubclass(type(owner), _UNSETTABLE)


def set_part(owner: Any, step: Step, value: Any) -> None:
    """Set the part of an object that a step leads to; AttributeError or TypeError if it has no place for it."""
    kind, key = step
    if not may_set(owner, step):
        raise TypeError("cannot be replaced")
    if kind == "attribute":
        set_attribute(owner, key, value)
    elif kind == "key":
        dict.__setitem__(owner, key, value)
    elif kind == "item":
        owner[key] = value
    elif kind == "context":
        owner.set(value)
    elif kind == "closure":
        owner.__closure__[owner.__code__.co_freevars.index(key)].cell_contents = value
    else:  # of an argument
        owner.__defaults__ = (*owner.__defaults__[:key], value, *owner.__defaults__[key + 1 :])


def reduced(value: Any) -> tuple[Any, ...]:
    """Return how an object of the standard library, or of NumPy, is made again: a function, arguments, state, items.

    Nothing for an object that Python cannot copy, and for one of another library or of the user's.
    """
    kind: Any = type(value)
    if library_of(kind).lstrip("_") not in _STANDARD:
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


def generator_of(value: Any) -> Any:
    """Return the state of a generator of Python or NumPy, as `ckptkit.mindspore.rng.generator_state`."""
    return value.state if issubclass(type(value), np.random.BitGenerator) else generator_state(value)


def text_of_state(state: Any) -> str:
    """Return the text of a generator with this state."""
    with np.printoptions(threshold=sys.maxsize):  # no item of an array is left out
        return f"generator {_digest(repr(state).encode())}"


def iterated(value: Any) -> Iterator[Any]:
    """Return the items of a list, a tuple or a deque, whatever its class does."""
    base: Any = next(kind for kind in _SEQUENCES if issubclass(type(value), kind))
    items: Iterator[Any] = base.__iter__(value)
    return items


def globals_of(
    module: Mapping[str, Any], names: Collection[str], attributes: Collection[str]
) -> Iterator[tuple[Root, Any]]:
    """Yield the variables of a module, and of the user's modules in it, that code with these names reads."""
    if "globals" in names or ("sys" in names and "modules" in attributes):
        names = module.keys()
    owner = str(module.get("__name__"))
    for name in sorted(names):
        value: Any = module.get(name)
        if name not in module or name.startswith("__"):
            continue
        if not issubclass(type(value), types.ModuleType):
            yield Root("global", owner, name), value
        elif value is os and "environ" in attributes:
            yield Root("environment", "os", "environ"), dict(os.environ)
        elif is_users(value.__name__) and not is_installed(str(vars(value).get("__file__") or "")):
            for part in sorted(attributes):
                if part in vars(value) and not issubclass(type(vars(value)[part]), types.ModuleType):
                    yield Root("global", value.__name__, part), vars(value)[part]


def _attributes(attributes: Iterable[tuple[str, Any]]) -> Parts:
    for name, value in [*attributes]:
        yield Step("attribute", name), value


def _described_atom(value: Any, _: Known) -> tuple[str, Parts]:
    return text_of_atom(value), ()


def text_of_atom(value: Any) -> str:
    """Return the text of None, a number, a text or bytes."""
    if type(value) in (str, bytes) and len(value) > _MOST_TEXT:
        data = value if type(value) is bytes else value.encode(errors="replace")
        return f"{type(value).__name__} {len(value)} {_digest(data)}"
    return written(value)


def _described_extended(value: Any, _: Known) -> tuple[str, Parts]:
    base = next(base for base in _NUMBERS_AND_TEXTS if issubclass(type(value), base))
    return f"{type(value).__qualname__} {base.__repr__(value)[:_MOST_TEXT]}", ()


def _described_member(value: Any, known: Known) -> tuple[str, Parts]:
    name = own_attributes(value).get("_name_")
    return f"{type(value).__qualname__}.{name}", _beside(value, known)


def _text_of_array(value: Array) -> str:
    if value.dtype.hasobject:
        return f"array of objects {value.shape}"
    if value.size == 1:
        return f"array {value.dtype}{value.shape} {value.reshape(-1)[0]!r}"
    step = max(1, value.nbytes // _SAMPLE_BYTES)
    part = np.ascontiguousarray(value if step == 1 else value.reshape(-1)[::step])
    return f"array {value.dtype}{value.shape} {_digest(part.view(np.uint8).data if part.ndim else part.tobytes())}"


def _described_tensor(value: ms.Tensor, known: Known) -> tuple[str, Parts]:
    # Private, since mindtorch replaces `Tensor.nbytes`; if MindSpore's own moves, a look raises AttributeError.
    is_read = not value.has_init and value._nbytes <= _MOST_TENSOR_BYTES
    text = f" {_text_of_array(value.asnumpy())}" if is_read else f"{value.shape}"
    return f"tensor {value.dtype}{text}", _beside(value, known)


def _described_random(value: Any, known: Known) -> tuple[str, Parts]:
    if any(value is generator for generator in _OWN_GENERATORS):  # a checkpoint's section rng has these
        return "the process's generator", ()
    state = generator_of(value)
    return _text_of_class(type(value)) if state is None else text_of_state(state), _beside(value, known)


def _beside(value: Any, known: Known) -> Parts:
    """Return the attributes that a user has set beside those of the library: its own names begin with ``_``."""
    own = own_attributes(value)
    if own is NO_ATTRIBUTES:
        return ()
    return _attributes((name, part) for name, part in own.items() if name[0] != "_" and not known.stores(value, name))


def _described_set(value: Any, known: Known) -> tuple[str, Parts]:
    base: Any = set if issubclass(type(value), set) else frozenset
    members = sorted(described(member, known)[0] for member in base.__iter__(value))
    return f"{type(value).__name__} {len(members)} {_digest(repr(members).encode())}", ()


def _described_container(value: Any, known: Known) -> tuple[str, Parts]:
    """Return a container of nothing but atoms, or of parameters that checkpoints store, as a text, whole.

    Of any other, return the size, the keys, and parts. The text of a large one, whose items are not all walked, has
    their texts.
    """
    kind: Any = type(value)
    is_dict = issubclass(kind, dict)
    pairs = items_of_dict(value) if is_dict else []
    keys, items = [key for key, _ in pairs], [item for _, item in pairs] if is_dict else [*iterated(value)]
    beside = [] if kind in _CONTAINERS else [*_parts_of_object(value, known)]
    if _ATOMS.issuperset(map(type, items)) and _ATOMS.issuperset(map(type, keys)):
        step = max(1, len(items) // _MOST_ATOMS)
        return f"{kind.__name__} of {len(items)} {text_of_atom(repr((keys[::step], items[::step])))}", beside
    names = [known.names.get(id(item), "") for item in items]
    if "" not in names and not is_dict:
        return f"{kind.__name__} of {len(items)} parameters {text_of_atom(' '.join(names))}", beside
    texts = [repr(key) if type(key) in _ATOMS else type(key).__name__ for key in keys[:_MOST_ATOMS]]
    if len(items) > MOST_ITEMS:
        # Parameters are mostly those of an optimizer, which checkpoints have.
        is_parameter = [issubclass(type(item), ms.Parameter) for item in items[:_MOST_ATOMS]]
        texts += [
            str(item.name) if is_name else described(item, known)[0]
            for item, is_name in zip(items, is_parameter, strict=False)
        ]
    digest = f" {text_of_atom(' '.join(texts))}" if texts else ""
    return f"{kind.__qualname__} of {len(items)}{digest}", [*_items(keys if is_dict else None, items), *beside]


def _items(keys: list[Any] | None, items: list[Any]) -> Iterator[tuple[Step, Any]]:
    for index, part in enumerate(items[:MOST_ITEMS]):
        if keys is None:
            yield Step("item", index), part
            continue
        key = keys[index]
        is_named = type(key) in _ATOMS or (type(key) is tuple and _ATOMS.issuperset(map(type, key)))
        if not (type(key) is str and key == "__builtins__"):  # exec() puts it there
            yield Step("key", key) if is_named else Step("part", f"[#{index}]"), part


def _described_file(value: Any, _: Known) -> tuple[str, Parts]:
    is_read = not value.closed and value.readable() and not value.writable() and value.seekable()
    return f"file at {getattr(value, 'buffer', value).tell()}" if is_read else "file", ()


def _described_function(function: types.FunctionType, known: Known) -> tuple[str, Parts]:
    text = f"function {function.__qualname__} {_digest_of_code(function.__code__)}"
    return text, _parts_of_function(function)


def _parts_of_function(function: types.FunctionType) -> Parts:
    own = vars(function)
    if type(own.get("__wrapped__")) in (types.FunctionType, CACHED):
        yield Step("inner", ""), own["__wrapped__"]
    is_own = is_users_function(function)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            kind: Any = type(cell.cell_contents)
            if is_own or is_users_class(kind) or library_of(kind) in ("builtins", "functools", "mindspore"):
                yield Step("closure", name), cell.cell_contents
    if is_own:
        yield from ((Step("default", index), value) for index, value in enumerate(function.__defaults__ or ()))
        yield from ((Step("part", f"({name})"), value) for name, value in (function.__kwdefaults__ or {}).items())
        yield from _attributes((name, part) for name, part in own.items() if name != "__wrapped__")
        yield from globals_of(function.__globals__, *code_names(function.__code__))


@functools.lru_cache(maxsize=4096)
def _digest_of_code(code: types.CodeType) -> str:
    """Return what tells two functions of one name, whatever lines they are on."""
    return _digest(code.co_code + repr(code.co_names).encode())


def _described_partial(value: Any, _: Known) -> tuple[str, Parts]:
    parts = [(name, getattr(value, name)) for name in ("func", "args", "keywords")]
    return "partial", _attributes([*parts, *own_attributes(value).items()])


def _described_method(value: Any, _: Known) -> tuple[str, Parts]:
    parts = (Step("attribute", "__self__"), value.__self__), (Step("inner", ""), value.__func__)
    return f"method {getattr(value.__func__, '__qualname__', '')}", parts


def _described_cache(value: Any, known: Known) -> tuple[str, Parts]:
    size = f" of {value.cache_info().currsize}" if _reads_state(value.__wrapped__) else ""
    return f"cache{size}", [(Step("inner", ""), value.__wrapped__)]


def _reads_state(wrapped: Any) -> bool:
    """Return whether a function names what can change, so that what it gave cannot be computed again."""
    if type(wrapped) is not types.FunctionType or not is_users_function(wrapped):
        return type(wrapped) is types.MethodType
    is_method = wrapped.__code__.co_varnames[:1] == ("self",)
    draws = code_names(wrapped.__code__)[1] & _RANDOM_OR_TIME
    return (
        is_method or bool(draws) or any(not issubclass(type(part), _FIXED) for _, part in _parts_of_function(wrapped))
    )


def _described_generator(value: Any, known: Known) -> tuple[str, Parts]:
    frame = getattr(value, _FRAMES[type(value)])
    parts: list[tuple[Step | Root, Any]] = []
    if frame is None:
        return "generator that ended", parts
    if type(value) is types.GeneratorType and value.gi_yieldfrom is not None:
        parts.append((Step("part", "(from)"), value.gi_yieldfrom))
    if not is_users_frame(frame):
        return "generator at 0", parts
    variables = variables_of(frame)
    parts += [(Step("part", f".{name}"), variables[name]) for name in sorted(live_names(frame) & variables.keys())]
    parts += globals_of(frame.f_globals, code_names(frame.f_code)[0], ())
    return f"generator at {frame.f_lasti}", parts


def _described_class(kind: type, known: Known) -> tuple[str, Parts]:
    text = f"class {kind.__qualname__}"
    if issubclass(kind, enum.Enum):
        return text, _attributes(kind.__members__.items())
    members = [item for base in (*kind.__mro__, type(kind)) if is_users_class(base) for item in vars(base).items()]
    parts = ((name, unwrapped(member)) for name, member in members if not known.stores(kind, name))
    return text, _attributes((name, part) for name, part in parts if not _is_of_class(name, part))


def _is_of_class(name: str, part: Any) -> bool:
    """Return whether Python itself keeps a member in a class."""
    is_special = name.startswith("__") and name.endswith("__")
    return issubclass(type(part), (types.GetSetDescriptorType, types.MemberDescriptorType)) or (
        is_special and (type(part) is not types.FunctionType or name == "__new__")
    )


def _described_cell(cell: nn.Cell, known: Known) -> tuple[str, Parts]:
    return _text_of_class(type(cell)), _parts_of_cell(cell, known)


def _parts_of_cell(cell: nn.Cell, known: Known) -> Parts:
    kind: Any = type(cell)
    own, is_own = own_attributes(cell), is_users_class(kind)
    for name in sorted(own.keys() - EVERY_CELL) if library_of(kind) != "ckptkit" else ():
        is_private = name.startswith("_ckptkit") or (name[0] == "_" and not is_own)
        if not (is_private or known.stores(cell, name) or _is_setting(kind, name, own[name])):
            yield Step("attribute", name), own[name]
    yield from _attributes((name, own[name]) for name in _HOOKS if own.get(name))
    yield from _attributes((own.get("_cells") or {}).items())
    parameters = dict.items(own.get("_params") or {})  # the iterator of an OrderedDict takes four times as long
    yield from _attributes((name, value) for name, value in parameters if id(value) not in known.stored)
    if is_own:
        yield Step("class", kind.__name__), kind


def _described_object(value: Any, known: Known) -> tuple[str, Parts]:
    kind: Any = type(value)
    library = library_of(kind)
    if not is_users_class(kind):
        if library in _CLOSED and kind.__module__ != "multiprocessing.sharedctypes":
            return OUTSIDE if library in _OUTSIDE else _text_of_class(kind), ()
        if library.startswith("_") and (probe := next((name for name in _PROBES if hasattr(kind, name)), None)):
            return f"{kind.__name__} {getattr(value, probe)()}", ()
    return _text_of_class(kind), _parts_of_object(value, known)


def _text_of_class(kind: Any) -> str:
    return f"<{kind.__qualname__}>"


def _parts_of_object(value: Any, known: Known) -> Parts:
    kind: Any = type(value)
    attributes = [*attributes_of(value)]
    if issubclass(kind, logging.Logger) and not is_users_class(kind):  # its manager has all others
        attributes = [(name, part) for name, part in attributes if name in ("level", "handlers", "filters")]
    for name, part in attributes:
        if not (name[:2] == "__" or known.stores(value, name) or _is_setting(kind, name, part)):
            yield Step("attribute", name), part
    if is_users_class(kind):
        yield Step("class", kind.__name__), kind
    elif not (attributes or issubclass(kind, _CONTAINERS)):
        is_iterator = library_of(kind) in ("builtins", "itertools") and hasattr(kind, "__next__")
        for index, part in enumerate(reduced(value)[1:] or (gc.get_referents(value) if is_iterator else ())):
            yield Step("part", f"[{index}]"), part


def _is_setting(kind: Any, name: str, part: Any) -> bool:
    """Return whether an attribute is a constant that methods of MindSpore's classes assign, or a thread's own."""
    if issubclass(kind, threading.Thread):
        return name in _assigned_in(threading.Thread) and issubclass(type(part), (*_CONSTANTS, threading.Event))
    return name in _assigned_by_library(kind) and issubclass(type(part), _CONSTANTS)


@functools.lru_cache(maxsize=4096)
def _assigned_by_library(kind: Any) -> frozenset[str]:
    names = set[str]()
    # An optimizer is compiled in PYNATIVE mode, too, with the numbers that it has then.
    for base in () if issubclass(kind, nn.Optimizer) else kind.__mro__:
        keeps_state = str(base.__module__).startswith(_KEEPS_STATE) and not issubclass(kind, nn.Cell)
        if library_of(base) == "mindspore" and not keeps_state:
            names |= _assigned_in(base)
    return frozenset(names)


@functools.lru_cache(maxsize=4096)
def _assigned_in(kind: type) -> frozenset[str]:
    """Return the attributes that the methods in the body of a class assign."""
    functions = map(inspect.unwrap, vars(kind).values())
    codes = [function.__code__ for function in functions if type(function) is types.FunctionType]
    steps = (step for code in codes for step in dis.get_instructions(code))
    return frozenset(step.argval for step in steps if step.opname == "STORE_ATTR")


_TABLE: tuple[tuple[Any, Callable[[Any, Known], tuple[str, Parts]]], ...] = (
    (enum.Enum, _described_member),
    (np.generic, lambda value, _: (f"{type(value).__name__} {value!r}", ())),
    (nn.Cell, _described_cell),
    (ms.Tensor, _described_tensor),
    (np.ndarray, lambda value, known: (_text_of_array(value), _beside(value, known))),
    (GENERATORS, _described_random),
    (_CONTAINERS, _described_container),
    ((set, frozenset), _described_set),
    ((io.TextIOWrapper, io.BufferedReader), _described_file),
    (io.FileIO, lambda *_: ("file", ())),
    (PurePath, lambda value, _: (f"{type(value).__name__} {value}", ())),
    # A private base class: of c_int and its like.
    (
        (ctypes._SimpleCData, ctypes.Array, ctypes.Structure),
        lambda value, _: (f"{type(value).__name__} {text_of_atom(bytes(value))}", ()),
    ),
    (types.FunctionType, _described_function),
    (types.MethodType, _described_method),
    (CACHED, _described_cache),
    (functools.partial, _described_partial),
    (contextvars.ContextVar, lambda value, _: ("variable", [(Step("context", ""), value.get(None))])),
    (weakref.ref, lambda value, _: ("reference", [(Step("inner", ""), value())])),
    (tuple(_FRAMES), _described_generator),
    (types.ModuleType, lambda *_: ("module", ())),
    (type, _described_class),
)


@functools.lru_cache(maxsize=4096)
def _description_of(kind: Any) -> Callable[[Any, Known], tuple[str, Parts]]:
    if kind in _ATOMS:
        return _described_atom
    if extends_plain(kind):
        return _described_extended
    return next((function for base, function in _TABLE if issubclass(kind, base)), _described_object)


def is_of_process(value: Any) -> bool:
    """Return whether a value may be one of the process, not of the training: an address, a hash, a time, a folder."""
    if type(value) in _LARGEST:
        return bool(math.isfinite(value) and abs(value) > _LARGEST[type(value)])
    is_text = type(value) is str and _CHOICE.fullmatch(value) is None
    return is_text or issubclass(type(value), (bytes, PurePath))
