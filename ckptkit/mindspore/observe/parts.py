"""Enumerates the parts of an object, follows a step to one, and sets one: `parts_of`, `part_at`, `set_part`.

One rule says for each kind of object what its parts are, so what a look sees is what a resume can follow. What
checkpoints store already is left out (`Known`).

Guarantees: no code of the user's runs. Only `set_part` changes anything. Main thread only.
"""

from __future__ import annotations

import contextvars
import dis
import enum
import functools
import gc
import itertools
import logging
import os
import threading
import types
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.mindspore.observe.attributes import (
    CACHED,
    attributes_of,
    items_of_dict,
    own_attributes,
    set_attribute,
    unwrapped,
)
from ckptkit.mindspore.observe.frame_variables import variables_of
from ckptkit.mindspore.observe.liveness import code_names, live_names, looped_global_names
from ckptkit.mindspore.observe.paths import Root, Step
from ckptkit.mindspore.observe.users import (
    is_installed,
    is_users,
    is_users_class,
    is_users_frame,
    is_users_function,
    library_of,
)
from ckptkit.mindspore.observe.values import (
    ATOMS,
    CONTAINERS,
    GENERATOR_KINDS,
    GENERATORS,
    MOST_ITEMS,
    iterated,
    reduced,
)

Parts: TypeAlias = Iterator[tuple[Step | Root, Any]]

MISSING = object()
_ATOMS = frozenset(ATOMS)
_UNSETTABLE = (tuple, functools.partial, types.MethodType, types.BuiltinMethodType)
# Modules of MindSpore whose objects keep in plain attributes what training changes.
_KEEPS_STATE = (
    *("mindspore.experimental.optim", "mindspore.amp", "mindspore.nn", "mindspore.train.metrics"),
    "mindspore.train.callback._history",
)
_OF_LOGGERS = ("level", "handlers", "filters")
_CLOSED = frozenset(
    (
        *("concurrent", "asyncio", "_asyncio", "multiprocessing", "subprocess", "socket", "_socket"),
        *("selectors", "tqdm", "rich", "_pytest", "pluggy"),  # the last two: what a test holds of its runner
    )
)
# What every cell has, and what a call in GRAPH leaves in it; a test tells of more.
EVERY_CELL = frozenset(vars(nn.Cell())) | {
    *("__compile_cell_hook__", "__parse_method__", "_func_graph_flags", "current_phase", "sequence_modified"),
    "_mutable_flags",
}
_HOOKS = tuple(sorted(name for name in EVERY_CELL if name.endswith(("_hook", "_hooks"))))


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

    def stores(self, owner: Any, name: str) -> bool:
        """Return whether checkpoints store an attribute of an object."""
        return name in self.parts.get(id(owner), ())


def parts_of(value: Any, known: Known) -> Parts:  # noqa: PLR0912 - a case for each kind
    """Yield the parts of an object with the steps to them; a `Root` for what has a path of its own."""
    kind: Any = type(value)
    if issubclass(kind, CONTAINERS):
        yield from _items_of(value)
        if kind in CONTAINERS:
            return
    if kind is types.MethodType:
        yield Step("attribute", "__self__"), value.__self__
        yield Step("inner", ""), value.__func__
    elif kind is types.FunctionType:
        yield from _parts_of_function(value, known)
    elif kind is CACHED:
        yield Step("inner", ""), value.__wrapped__
    elif issubclass(kind, functools.partial):
        yield from _attributes((name, getattr(value, name)) for name in ("func", "args", "keywords"))
        yield from _attributes(own_attributes(value).items())
    elif kind is contextvars.ContextVar:
        yield Step("context", ""), value.get(None)
    elif issubclass(kind, weakref.ref):
        yield Step("inner", ""), value()
    elif kind in GENERATOR_KINDS:
        yield from _parts_of_generator(value)
    elif issubclass(kind, type):
        yield from _parts_of_class(value, known)
    elif issubclass(kind, types.ModuleType):
        return
    elif issubclass(kind, nn.Cell):
        yield from _parts_of_cell(value, known)
    else:
        yield from _parts_of_object(value, known)


def part_at(owner: Any, step: Step, known: Known) -> Any:
    """Return the part of an object that a step leads to; `MISSING` without one."""
    if step.kind == "key" and issubclass(type(owner), dict):  # a dict may have more than is walked
        return dict.get(owner, step.key, MISSING)
    return next((part for other, part in parts_of(owner, known) if other == step), MISSING)


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
        if key == len(owner):
            owner.append(value)
        else:
            owner[key] = value
    elif kind == "context":
        owner.set(value)
    elif kind == "closure":
        owner.__closure__[owner.__code__.co_freevars.index(key)].cell_contents = value
    else:  # of an argument
        owner.__defaults__ = (*owner.__defaults__[:key], value, *owner.__defaults__[key + 1 :])


def _attributes(attributes: Iterable[tuple[str, Any]]) -> Parts:
    for name, value in [*attributes]:
        yield Step("attribute", name), value


def _items_of(value: Any) -> Parts:
    if issubclass(type(value), dict):
        for index, (key, part) in enumerate(itertools.islice(items_of_dict(value), MOST_ITEMS)):
            is_named = type(key) in _ATOMS or (type(key) is tuple and _ATOMS.issuperset(map(type, key)))
            if not (type(key) is str and key == "__builtins__"):  # exec() puts it there
                yield Step("key", key) if is_named else Step("part", f"[#{index}]"), part
        return
    for index, part in enumerate(itertools.islice(iterated(value), MOST_ITEMS)):
        yield Step("item", index), part


def _parts_of_object(value: Any, known: Known) -> Parts:
    kind: Any = type(value)
    library, is_own = library_of(kind), is_users_class(kind)
    is_closed = library in _CLOSED and kind.__module__ != "multiprocessing.sharedctypes"
    if library == "ckptkit" or (is_closed and not is_own):
        return
    attributes = [*attributes_of(value)]
    theirs: Collection[str] = ()
    if issubclass(kind, enum.Enum):
        theirs = ("_value_", "_name_", "_sort_order_")
    elif issubclass(kind, (ms.Tensor, np.ndarray, *GENERATORS)):
        attributes = [*own_attributes(value).items()]
        theirs = [name for name, _ in attributes if name.startswith("_")]
    elif is_own:
        # A thread's own attributes change with the thread, and those of MindSpore's base classes are settings.
        theirs = _assigned_by(kind, "threading" if issubclass(kind, threading.Thread) else "mindspore")
    elif library == "mindspore" and not kind.__module__.startswith(_KEEPS_STATE):
        theirs = _assigned_by(kind, None)
    elif issubclass(kind, logging.Logger):
        attributes = [(name, part) for name, part in attributes if name in _OF_LOGGERS]
    for name, part in attributes:
        is_left_out = name[:2] == "__" or known.stores(value, name) or (name in theirs and not _holds_users(part))
        if not is_left_out:
            yield Step("attribute", name), part
    if is_own and not issubclass(kind, enum.Enum):
        yield Step("class", kind.__name__), kind
    elif not (attributes or issubclass(kind, CONTAINERS)):
        is_iterator = library in ("builtins", "itertools") and hasattr(kind, "__next__")
        for index, part in enumerate(reduced(value)[1:] or (gc.get_referents(value) if is_iterator else ())):
            yield Step("part", f"[{index}]"), part


def _parts_of_cell(cell: nn.Cell, known: Known) -> Parts:
    kind: Any = type(cell)
    own, is_own = own_attributes(cell), is_users_class(kind)
    theirs = _assigned_by(kind, None)
    if library_of(kind) != "ckptkit":
        for name in sorted(own.keys() - EVERY_CELL):
            value = own[name]
            is_private = name.startswith("_ckptkit") or (name[0] == "_" and not is_own)
            # An optimizer is compiled in PYNATIVE mode, too, with the numbers that it has then.
            is_number = issubclass(kind, nn.Optimizer) and type(value) in (int, float)
            is_setting = name in theirs and not is_number and not _holds_users(value)
            if not (is_private or is_setting or known.stores(cell, name)):
                yield Step("attribute", name), value
        yield from _attributes((name, own[name]) for name in _HOOKS if own.get(name))
    yield from _attributes((own.get("_cells") or {}).items())
    parameters = (own.get("_params") or {}).items()
    yield from _attributes((name, value) for name, value in parameters if id(value) not in known.stored)
    if is_own:
        yield Step("class", kind.__name__), kind


def _parts_of_function(function: types.FunctionType, known: Known) -> Parts:
    code, is_own = function.__code__, is_users_function(function)
    wrapped = vars(function).get("__wrapped__")
    if type(wrapped) in (types.FunctionType, CACHED):
        yield Step("inner", ""), wrapped
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        content = content_of(cell)
        if content is not MISSING and (is_own or _holds_users(content)):
            yield Step("closure", name), content
    if not is_own:
        return
    for index, value in enumerate(function.__defaults__ or ()):
        yield Step("default", index), value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield Step("part", f"({name})"), value
    yield from _attributes((name, part) for name, part in vars(function).items() if name != "__wrapped__")
    yield from globals_of(function.__globals__, *code_names(code))


def content_of(cell: types.CellType) -> Any:
    """Return what a closure cell holds; `MISSING` of an empty one."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def globals_of(
    module: Mapping[str, Any], names: Collection[str], attributes: Collection[str]
) -> Iterator[tuple[Root, Any]]:
    """Yield the variables of a module, and of the user's modules in it, that code with these names reads."""
    if "globals" in names or ("sys" in names and "modules" in attributes):
        names = [name for name in module if not name.startswith("__")]
    owner = str(module.get("__name__"))
    for name in sorted(names):
        value: Any = module.get(name)
        if name not in module:
            continue
        if not issubclass(type(value), types.ModuleType):
            yield Root("global", owner, name), value
        elif value is os and "environ" in attributes:
            yield Root("environment", "os", "environ"), dict(os.environ)
        elif is_users(value.__name__) and is_users_module(value):
            for part in sorted(attributes):
                if part in vars(value) and not issubclass(type(vars(value)[part]), types.ModuleType):
                    yield Root("global", value.__name__, part), vars(value)[part]


def _parts_of_class(kind: type, known: Known) -> Parts:
    if issubclass(kind, enum.Enum):
        yield from _attributes(kind.__members__.items())
        return
    for base in (*kind.__mro__, type(kind)):
        for name, member in vars(base).items() if is_users_class(base) else ():
            value = unwrapped(member)
            is_special = name.startswith("__") and name.endswith("__")
            if is_special and (type(value) is not types.FunctionType or name == "__new__"):
                continue
            is_slot = issubclass(type(value), (types.GetSetDescriptorType, types.MemberDescriptorType))
            if not is_slot and not known.stores(kind, name):
                yield Step("attribute", name), value


def _parts_of_generator(value: Any) -> Parts:
    frame = getattr(value, GENERATOR_KINDS[type(value)])
    if frame is not None and is_users_frame(frame):
        variables = variables_of(frame)
        for name in sorted(live_names(frame, everywhere=True) & variables.keys()):
            yield Step("part", f".{name}"), variables[name]
        for name in sorted(looped_global_names(frame) & frame.f_globals.keys()):
            if not issubclass(type(frame.f_globals[name]), types.ModuleType):
                yield Root("global", str(frame.f_globals.get("__name__")), name), frame.f_globals[name]
    if type(value) is types.GeneratorType and value.gi_yieldfrom is not None:
        yield Step("part", "(from)"), value.gi_yieldfrom


def is_users_module(module: types.ModuleType) -> bool:
    """Return whether a module is the user's."""
    return is_users(module.__name__) and not is_installed(str(vars(module).get("__file__") or ""))


@functools.lru_cache(maxsize=4096)
def _assigned_by(kind: Any, library: str | None) -> frozenset[str]:
    """Return the attributes that methods of base classes that are not the user's, or of one library, assign."""
    names = set[str]()
    for base in kind.__mro__:
        if is_users_class(base) or (library is not None and library_of(base) != library):
            continue
        for member in vars(base).values():
            function = unwrapped(member)
            while type(function) is types.FunctionType and "__wrapped__" in vars(function):
                function = vars(function)["__wrapped__"]
            if type(function) is types.FunctionType:
                code = dis.get_instructions(function.__code__)
                names.update(instruction.argval for instruction in code if instruction.opname == "STORE_ATTR")
    return frozenset(names)


def _holds_users(value: Any) -> bool:
    """Return whether a library's object holds something of the user's: a function, an object, or a few of them."""
    kind: Any = type(value)
    if kind in (list, tuple):
        return any(map(_holds_users, value[:32]))
    if kind is dict:
        return any(map(_holds_users, [*value.values()][:32]))
    if kind is types.FunctionType:
        return is_users_function(value)
    if kind is types.MethodType:
        return _holds_users(value.__self__) or _holds_users(value.__func__)
    return issubclass(kind, (nn.Cell, functools.partial)) or (not issubclass(kind, type) and is_users_class(kind))
