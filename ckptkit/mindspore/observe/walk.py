"""Walks the Python state that a training reaches, breadth first, and describes each part by its path: `Walk`.

A path says how the next process gets there again: a root (`Root`), then steps (`Step`): attributes, keys, items,
variables of closures, defaults. Each object has one path, the shortest. What checkpoints store already is left out.

Guarantees: bounded in objects and depth; reads objects and runs no code of the user's. Main thread only.
"""

from __future__ import annotations

import contextvars
import dis
import enum
import functools
import gc
import io
import itertools
import logging
import operator
import os
import re
import sys
import threading
import types
import warnings
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
import xxhash
from mindspore import nn

from ckptkit.mindspore.observe.attributes import (
    CACHED,
    PROXIES,
    attributes_of,
    behind_proxy,
    items_of_dict,
    own_attributes,
    unwrapped,
)
from ckptkit.mindspore.observe.liveness import code_names, live_names, looped_global_names
from ckptkit.mindspore.observe.users import is_installed, is_users, is_users_class, is_users_frame, is_users_function
from ckptkit.mindspore.observe.values import ATOMS, GENERATORS, Number, text_of

_MOST_OBJECTS, _MOST_DEPTH, MOST_ITEMS, _LAST_ITEMS, _MOST_ATOMS = 20_000, 14, 256, 16, 10_000
_ATOMS = frozenset(ATOMS)
CONTAINERS = (dict, list, tuple, deque)
_NEVER = (
    *(types.FrameType, types.CodeType, types.TracebackType, type(threading.Lock())),
    *(type(threading.RLock()), threading.Condition, re.Pattern, type(sys.flags)),
)
_ONE_OF_ITEMS: tuple[Any, ...] = (
    [],
    (),
    {},
    {}.values(),
    {}.items(),
    set(),
    range(1),
    range(1 << 70),
    "",
    b"",
    deque(),
    reversed([]),
)
SEQUENCE_ITERATOR = type(iter(type("Sequence", (), {"__getitem__": lambda _, index: index})()))
ITERATORS = (
    SEQUENCE_ITERATOR,
    *(type(iter(items)) for items in _ONE_OF_ITEMS),
    *(enumerate, zip, map, filter, reversed, type(iter(int, 1)), type(itertools.tee([])[0])),
    *(kind for kind in vars(itertools).values() if isinstance(kind, type) and kind is not itertools.count),
)
# The attribute in which each kind has its frame.
GENERATOR_KINDS = {
    types.GeneratorType: "gi_frame",
    types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}
_OUTSIDE = frozenset(("subprocess", "socket", "multiprocessing", "concurrent", "_socket"))
_HASHES = frozenset(("_hashlib", "_blake2", "_md5", "_sha1", "_sha2", "_sha3", "_sha256", "_sha512"))
_OF_MEMBERS = frozenset(("_value_", "_name_", "_sort_order_"))
_ALIVE = frozenset(
    (
        *("Popen", "socket", "Process", "Connection", "ForkProcess", "SpawnProcess", "SyncManager", "BaseProxy"),
        *(
            "DictProxy",
            "ListProxy",
            "ValueProxy",
            "NamespaceProxy",
            "SharedMemory",
            "ProcessPoolExecutor",
            "Pool",
            "Queue",
            "SimpleQueue",
        ),
    )
)
OF_DATA = "of the data: "
OUTSIDE = "lives outside of this process"
# Modules of MindSpore whose objects keep in plain attributes what training changes.
_KEEPS_STATE: tuple[str, ...] = (
    "mindspore.experimental.optim",
    "mindspore.amp",
    "mindspore.nn",
    "mindspore.train.metrics",
)
_KEEPS_STATE += ("mindspore.train.metrics", "mindspore.train.callback._history")
_OF_LOGGERS = ("level", "handlers", "filters")
_CLOSED = frozenset(
    (
        *("threading", "concurrent", "asyncio", "_asyncio", "multiprocessing"),
        *("subprocess", "socket", "_socket", "selectors"),
        *("_pytest", "pluggy"),  # what a test that trains holds of its runner
    )
)
_MUTABLE = (list, dict, deque, set, bytearray, np.ndarray, ms.Tensor, *GENERATORS)
_MOST_BYTES = 1 << 26  # digested in one look
_RANDOM_OR_TIME = frozenset(
    ("random", "rand", "randn", "randint", "normal", "uniform", "choice", "shuffle", "permutation", "time")
)
# What every cell has, and what a call in GRAPH leaves in it; a test tells of more.
EVERY_CELL = frozenset(vars(nn.Cell())) | {
    *("__compile_cell_hook__", "__parse_method__", "_func_graph_flags", "current_phase", "sequence_modified"),
    "_mutable_flags",
}
_HOOKS = tuple(sorted(name for name in EVERY_CELL if name.endswith(("_hook", "_hooks"))))
_SHOWS = frozenset(("tqdm", "rich"))


class Root(NamedTuple):
    """Says where a path begins: a ``variable`` of a function, a ``global``, a ``callback``, a ``cell`` or ``given``.

    Attributes:
        kind: One of these, or another text for what the next process cannot reach by it.
        owner: The function, the module or the class name.
        name: Name there.
    """

    kind: str
    owner: str
    name: str

    def __str__(self) -> str:
        if self.kind == "variable":
            return f"{self.owner}: {self.name}"
        if self.kind in ("callback", "cell"):  # not the class of the same name
            return f"{self.name}()"
        if self.kind == "given":
            return f"stateful[{self.name!r}]"
        return f"{self.owner}.{self.name}" if self.kind == "global" and self.owner != "__main__" else self.name


class Step(NamedTuple):
    """Leads from an object to a part of it.

    Attributes:
        kind: ``attribute``, ``item``, ``key``, ``closure``, ``default``, ``keyword``, or ``part`` for what cannot be
            set.
        key: Its name, index or key.
    """

    kind: str
    key: Any


class Node:
    """One object or value that a walk reached.

    Attributes:
        path: Its path, as text.
        value: The object.
        parent: The node of the object that it is a part of; None for a root.
        step: Leads from there to it; of a root, a `Root`.
        text: Equal in every process for equal bits; of an object or a container, of itself without its parts.
        number: The number that it is, if it is one.
        identity: Its ``id``.
        is_open: Whether its parts were walked.
        is_of_library: Whether it is an attribute of an object of a library.
    """

    __slots__ = ("depth", "identity", "is_of_library", "is_open", "number", "parent", "path", "step", "text", "value")

    def __init__(self, path: str, value: Any, parent: Node | None, step: Step | Root, depth: int) -> None:
        self.path, self.value, self.parent, self.step, self.depth = path, value, parent, step, depth
        self.text, self.is_open, self.identity = "", False, id(value)
        self.is_of_library = parent is not None and step[0] == "attribute" and not _may_be_users(parent.value)
        self.number: Number = None

    def chain(self) -> tuple[Root, tuple[Step, ...]]:
        """Return the root and the steps that lead to it."""
        steps: list[Step] = []
        node = self
        while node.parent is not None:
            steps.append(node.step)  # type: ignore[arg-type]  # only a root has another
            node = node.parent
        root: Root = node.step  # type: ignore[assignment]
        return root, tuple(reversed(steps))


@dataclass
class Known:
    """What a walk leaves out.

    Attributes:
        stored: The ``id`` of what checkpoints store already.
        parts: By ``id`` of an object, the attributes of it that checkpoints store.
        parameters: The parameters that checkpoints store, by name.
        unread: Variables of modules, by ``id`` of the module's dict and name, and closure cells, by ``id``, that
            running code assigns before it reads them.
        data: The objects that batches come from, by ``id``, with their paths there.
    """

    stored: set[int] = field(default_factory=set)
    parts: dict[int, set[str]] = field(default_factory=dict)
    parameters: dict[str, ms.Tensor] = field(default_factory=dict)
    unread: set[object] = field(default_factory=set)
    data: Mapping[int, str] = field(default_factory=dict)


class Walk:
    """One look at everything that is reached from roots.

    Args:
        known: What is left out.

    Attributes:
        nodes: What was reached, by path.
        seen: The objects whose parts were walked, by ``id``.
        aliases: Further nodes of containers and arrays, by ``id``, which have one path in `nodes`.
    """

    def __init__(self, known: Known) -> None:
        self._known = known
        self.nodes: dict[str, Node] = {}
        self.seen: dict[int, Node] = {}
        self.aliases: dict[int, list[Node]] = {}
        self._leaves: set[int] = set()
        self._waiting: deque[Node] = deque()

    def add(self, root: Root, value: Any) -> None:
        """Add a root; the first of two with one path counts."""
        if str(root) not in self.nodes:
            self._waiting.append(Node(str(root), value, None, root, 0))

    def run(self) -> None:
        """Walk from the roots that were added."""
        while self._waiting and len(self.seen) < _MOST_OBJECTS:
            node = self._waiting.popleft()
            if node.path not in self.nodes:
                self._visit(node)

    def _visit(self, node: Node) -> None:  # noqa: PLR0912 - one step after the other
        value = node.value
        kind: Any = type(value)
        if kind in _ATOMS:
            text, node.number = text_of(value)
            node.text = text or ""
            self.nodes[node.path] = node
            return
        if kind in PROXIES:
            value = node.value = behind_proxy(value)
            kind, node.identity = type(value), id(value)
        if id(value) in self._known.stored:
            if (
                issubclass(type(value), ms.Tensor)
                and issubclass(type(node.step), Step)
                and node.step.kind in ("item", "key")
            ):
                node.text = f"the parameter {getattr(value, 'name', '')}"  # which of them it refers to
                self.nodes[node.path] = node
            return
        if not _is_walked(kind):
            return
        if id(value) in self._leaves:
            self.aliases.setdefault(id(value), []).append(node)
            return
        if id(value) in self._known.data:
            node.text = f"{OF_DATA}{self._known.data[id(value)]}"
            self.nodes[node.path] = node
            return
        if issubclass(kind, _MUTABLE):
            self._leaves.add(id(value))
        text, node.number = (None, None) if issubclass(kind, (*CONTAINERS, nn.Cell)) else _text_of(value)
        if text is None and issubclass(kind, CONTAINERS):
            text = _text_of_atoms(value)
        node.text = text if text is not None else _text_of_object(value)
        if kind in ITERATORS:
            is_sequence = kind is SEQUENCE_ITERATOR
            node.number = value.__reduce__()[-1] if is_sequence else -operator.length_hint(value, 0)
            node.number = node.number if type(node.number) is int else None
        if kind.__module__.partition(".")[0] != "ckptkit":
            self.nodes[node.path] = node
        kinds = (ms.Tensor, np.ndarray, *GENERATORS, *CONTAINERS)
        has_parts = text is None or kind is CACHED or issubclass(kind, (enum.Enum, ms.Parameter))
        has_parts = has_parts or (issubclass(kind, kinds) and is_users_class(kind))
        if not has_parts or id(value) in self.seen or node.depth >= _MOST_DEPTH:
            return
        self.seen[id(value)] = node
        node.is_open = True
        for suffix, step, part in self._parts_of(value):
            if type(step) is Root:
                self.add(step, part)
            else:
                self._waiting.append(Node(node.path + suffix, part, node, step, node.depth + 1))

    def _parts_of(self, value: Any) -> Iterator[tuple[str, Step | Root, Any]]:  # noqa: PLR0912 - a case for each kind
        kind: Any = type(value)
        if issubclass(kind, CONTAINERS):
            yield from _items_of(value)
            if kind in CONTAINERS:
                return
        if kind is types.MethodType:
            yield ".__self__", Step("attribute", "__self__"), value.__self__
            yield "()", Step("attribute", "__func__"), value.__func__
        elif kind is types.FunctionType:
            yield from self._parts_of_function(value)
        elif kind is CACHED:
            yield "()", Step("attribute", "__wrapped__"), value.__wrapped__
        elif issubclass(kind, functools.partial):
            for name in ("func", "args", "keywords"):
                yield f".{name}", Step("attribute", name), getattr(value, name)
            yield from _attributes(own_attributes(value).items())
        elif kind in GENERATOR_KINDS:
            yield from _parts_of_generator(value)
        elif kind is contextvars.ContextVar:
            yield ".get()", Step("context", "value"), value.get(None)
        elif kind in ITERATORS:
            yield from _parts_of_iterator(value)
        elif kind in (types.BuiltinMethodType, types.MethodWrapperType):
            if not issubclass(type(value.__self__), types.ModuleType):
                yield ".__self__", Step("attribute", "__self__"), value.__self__
        elif issubclass(kind, type):
            yield from self._parts_of_class(value)
        elif issubclass(kind, types.ModuleType):
            if is_users_module(value):
                for name, part in [*vars(value).items()]:
                    if name[:2] != "__" and not issubclass(type(part), types.ModuleType):
                        yield "", Root("global", value.__name__, name), part
        elif issubclass(kind, nn.Cell):
            yield from self._parts_of_cell(value)
        elif issubclass(kind, weakref.ref):
            yield "()", Step("referent", ""), value()
        else:
            yield from self._parts_of_object(value)

    def _parts_of_object(self, value: Any) -> Iterator[tuple[str, Step, Any]]:
        kind: Any = type(value)
        library = _library_of(kind)
        is_closed = library in _CLOSED and kind.__module__ != "multiprocessing.sharedctypes"
        if library == "ckptkit" or (is_closed and not is_users_class(kind)):
            return
        attributes = attributes_of(value)
        if issubclass(type(value), enum.Enum):
            theirs = _OF_MEMBERS
        elif issubclass(kind, (ms.Tensor, np.ndarray, *GENERATORS)):
            attributes = iter([*own_attributes(value).items()])
            theirs = frozenset(name for name in own_attributes(value) if name.startswith("_"))
        elif is_users_class(kind):
            # A thread's own attributes change with the thread, and those of MindSpore's base classes are settings.
            theirs = _assigned_by(kind, "threading" if issubclass(kind, threading.Thread) else "mindspore")
        elif library == "mindspore" and not kind.__module__.startswith(_KEEPS_STATE):
            theirs = _assigned_by(kind, None)
        elif issubclass(kind, logging.Logger):
            attributes = ((name, part) for name, part in attributes if name in _OF_LOGGERS)
            theirs = frozenset()
        elif library in _SHOWS:
            attributes = ((name, part) for name, part in attributes if name == "n")  # how far a bar of tqdm is
            theirs = frozenset()
        else:
            theirs = frozenset()
        parts = ((name, part) for name, part in attributes if self._may(value, name) and name[:2] != "__")
        yield from _attributes((name, part) for name, part in parts if name not in theirs or _holds_users(part))
        if is_users_class(kind) and not issubclass(type(value), enum.Enum):
            yield f".{kind.__name__}", Step("attribute", "__class__"), kind

    def _parts_of_cell(self, cell: nn.Cell) -> Iterator[tuple[str, Step, Any]]:
        kind: Any = type(cell)
        own, is_own = own_attributes(cell), is_users_class(kind)
        theirs = _assigned_by(kind, None)
        if _library_of(kind) != "ckptkit":
            for name in sorted(own.keys() - EVERY_CELL):
                value = behind_proxy(own[name])
                is_known = name.startswith("_ckptkit") or not (is_own or name[0] != "_") or not self._may(cell, name)
                # An optimizer is compiled in PYNATIVE mode, too, with the numbers that it has then.
                is_number = issubclass(kind, nn.Optimizer) and type(value) in (int, float)
                if not is_known and (name not in theirs or is_number or _holds_users(value)):
                    yield f".{name}", Step("attribute", name), value
            for name in _HOOKS:
                if own.get(name):
                    yield f".{name}", Step("attribute", name), own[name]
        for name, value in (own.get("_cells") or {}).items():
            yield f".{name}", Step("attribute", name), value
        for name, value in (own.get("_params") or {}).items():
            if id(value) not in self._known.stored:
                yield f".{name}", Step("attribute", name), value
        if is_own:
            yield f".{kind.__name__}", Step("attribute", "__class__"), kind

    def _may(self, owner: Any, name: str) -> bool:
        stored = self._known.parts.get(id(owner))
        return stored is None or name not in stored

    def _parts_of_function(self, function: types.FunctionType) -> Iterator[tuple[str, Step | Root, Any]]:
        code = function.__code__
        wrapped = vars(function).get("__wrapped__")
        if type(wrapped) in (types.FunctionType, CACHED):
            yield "()", Step("attribute", "__wrapped__"), wrapped
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if id(cell) not in self._known.unread:
                try:
                    content = cell.cell_contents
                except ValueError:  # an empty cell
                    continue
                if is_users_function(function) or _holds_users(content):
                    yield f".{name}", Step("closure", name), content
        if not is_users_function(function):
            return
        for index, value in enumerate(function.__defaults__ or ()):
            yield f"({index})", Step("default", index), value
        for name, value in (function.__kwdefaults__ or {}).items():
            yield f"({name})", Step("keyword", name), value
        yield from _attributes((name, part) for name, part in vars(function).items() if name != "__wrapped__")
        names, attributes = code_names(code)
        yield from self.globals_of(function.__globals__, names, attributes)

    def globals_of(
        self, module: Mapping[str, Any], names: Collection[str], attributes: Collection[str]
    ) -> Iterator[tuple[str, Root, Any]]:
        """Yield the variables of a module, and of the user's modules in it, that code with these names reads."""
        if "globals" in names or ("sys" in names and "modules" in attributes):
            names = [name for name in module if not name.startswith("__")]
        owner = str(module.get("__name__"))
        for name in sorted(names):
            value: Any = module.get(name)
            if name not in module or (id(module), name) in self._known.unread:
                continue
            if not issubclass(type(value), types.ModuleType):
                yield "", Root("global", owner, name), value
            elif value is os and "environ" in attributes:
                yield "", Root("environment", "os", "environ"), dict(os.environ)
            elif is_users(value.__name__) and is_users_module(value):
                for part in sorted(attributes):
                    if part in vars(value) and not issubclass(type(vars(value)[part]), types.ModuleType):
                        yield "", Root("global", value.__name__, part), vars(value)[part]

    def _parts_of_class(self, kind: type) -> Iterator[tuple[str, Step, Any]]:
        if not is_users_class(kind):
            return
        if issubclass(kind, enum.Enum):
            yield from _attributes(kind.__members__.items())
            return
        for base in (*kind.__mro__, type(kind)):
            for name, member in () if not is_users_class(base) else vars(base).items():
                value = unwrapped(member)
                is_special = name.startswith("__") and name.endswith("__")
                if is_special and (type(value) is not types.FunctionType or name == "__new__"):
                    continue
                is_slot = issubclass(type(value), (types.GetSetDescriptorType, types.MemberDescriptorType))
                if not is_slot and self._may(kind, name):
                    yield f".{name}", Step("attribute", name), value


def is_users_module(module: types.ModuleType) -> bool:
    """Return whether a module is the user's."""
    return is_users(module.__name__) and not is_installed(str(vars(module).get("__file__") or ""))


def _may_be_users(owner: Any) -> bool:
    kind: Any = type(owner)
    return is_users_class(kind) or issubclass(kind, (type, types.FunctionType, types.ModuleType, nn.Cell))


def _library_of(kind: type) -> str:
    return str(kind.__module__ or "").partition(".")[0]


@functools.lru_cache(maxsize=4096)
def _is_walked(kind: Any) -> bool:
    if _library_of(kind) == "ckptkit":
        return issubclass(kind, nn.Cell)  # the user's cells in it
    if issubclass(kind, threading.Thread):
        return is_users_class(kind)
    return not issubclass(kind, _NEVER)


@functools.lru_cache(maxsize=4096)
def _assigned_by(kind: Any, library: str | None) -> frozenset[str]:
    """Return the attributes that methods of base classes that are not the user's, or of one library, assign."""
    names = set[str]()
    for base in kind.__mro__:
        if is_users_class(base) or (library is not None and _library_of(base) != library):
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
    return issubclass(type(value), (nn.Cell, functools.partial)) or (
        not issubclass(kind, type) and is_users_class(kind)
    )


def _attributes(attributes: Any) -> Iterator[tuple[str, Step, Any]]:
    for name, value in [*attributes]:
        yield f".{name}", Step("attribute", name), value


def _items_of(value: Any) -> Iterator[tuple[str, Step, Any]]:
    if issubclass(type(value), dict):
        for index, (key, part) in enumerate(itertools.islice(items_of_dict(value), MOST_ITEMS)):
            if type(key) is str and key == "__builtins__":  # exec() puts it there
                continue
            is_named = type(key) in _ATOMS or (type(key) is tuple and _ATOMS.issuperset(map(type, key)))
            yield (f"[{key!r}]", Step("key", key), part) if is_named else (f"[#{index}]", Step("part", index), part)
        return
    base = next(kind for kind in (list, tuple, deque) if issubclass(type(value), kind))
    items = [*base.__iter__(value)]
    for index, part in enumerate(items[:MOST_ITEMS]):
        yield f"[{index}]", Step("item", index), part
    if len(items) > MOST_ITEMS:
        for index, part in enumerate(items[-_LAST_ITEMS:], len(items) - _LAST_ITEMS):
            yield f"[-{len(items) - index}]", Step("item", index - len(items)), part


def _text_of_atoms(value: Any) -> str | None:
    """Return the text of a container with nothing but atoms in it, whole; None for any other."""
    kind: Any = type(value)
    pairs = items_of_dict(value) if issubclass(kind, dict) else []
    keys = [key for key, _ in pairs]
    items = [item for _, item in pairs] if issubclass(kind, dict) else [*_iterated(value)]
    if not (_ATOMS.issuperset(map(type, items)) and _ATOMS.issuperset(map(type, keys))):
        return None
    step = max(1, len(items) // _MOST_ATOMS)
    return f"{kind.__name__} of {len(items)} {text_of(repr((keys[::step], items[::step])))[0]}"


def _iterated(value: Any) -> Iterator[Any]:
    base = next(kind for kind in (list, tuple, deque) if issubclass(type(value), kind))
    return base.__iter__(value)


def _text_of(value: Any) -> tuple[str | None, Number]:  # noqa: PLR0911 - one case per kind
    """Return the text of a value as `text_of`; also of files, caches and what lives outside of the process."""
    kind: Any = type(value)
    if issubclass(kind, (io.TextIOWrapper, io.BufferedReader)):
        if value.closed or not value.readable() or value.writable() or not value.seekable():
            return "file", None
        return f"file at {(value.buffer if kind is io.TextIOWrapper else value).tell()}", None
    if issubclass(kind, io.IOBase) and kind not in (io.StringIO, io.BytesIO):
        return "file", None
    if kind is CACHED:
        return f"cache of {value.cache_info().currsize}" if _reaches_state(value) else "cache", None
    if value is np.random.mtrand._rand or value is _PYTHONS:  # a checkpoint's section rng has these
        return "the process's generator", None
    if _library_of(kind) == "sqlite3" and kind.__name__ == "Connection":
        try:
            return f"database after {value.total_changes} changes", None
        except sys.modules["sqlite3"].ProgrammingError:
            return "database that is closed", None
    if _library_of(kind) in _HASHES and hasattr(kind, "hexdigest"):
        return f"hash {value.hexdigest()}", None
    if issubclass(kind, (threading.Semaphore, threading.Event)):
        own = own_attributes(value)
        return f"{kind.__name__} {own.get('_value', own.get('_flag'))}", None
    if _library_of(kind) in _OUTSIDE and not is_users_class(kind) and kind.__name__ in _ALIVE:
        return OUTSIDE, None
    return text_of(value)


_PYTHONS = __import__("random")._inst  # private: the generator behind random.random(); a test tells if it moves


def _text_of_object(value: Any) -> str:  # noqa: PLR0911 - one case per kind
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
        frame = _frame_of_generator(value)
        return (
            "generator that ended" if frame is None else f"generator at {frame.f_lasti if is_users_frame(frame) else 0}"
        )
    if kind is SEQUENCE_ITERATOR:
        return f"iterator at {value.__reduce__()[-1]}"
    if kind in ITERATORS:
        return f"{kind.__qualname__} with {operator.length_hint(value, -1)} left"
    return f"<{kind.__qualname__}>"


def _frame_of_generator(value: Any) -> types.FrameType | None:
    frame: types.FrameType | None = getattr(value, GENERATOR_KINDS[type(value)])
    return frame


def _short_text_of(item: Any) -> str:
    kind: Any = type(item)
    if issubclass(kind, ms.Parameter):  # mostly those of an optimizer, which checkpoints have
        return str(item.name)
    return text_of(item)[0] or str(kind.__name__)


@functools.lru_cache(maxsize=4096)
def _digest_of_code(code: types.CodeType) -> str:
    """Return what tells two functions of one name, whatever lines they are on."""
    return xxhash.xxh3_64_hexdigest(code.co_code + repr(code.co_names).encode())


def _text_of_container(value: Any) -> str:
    """Return the size and the keys of a container; of a large one, whose items are not all walked, their texts, too."""
    kind: Any = type(value)
    pairs = items_of_dict(value) if issubclass(kind, dict) else [(None, item) for item in _iterated(value)]
    keys = [repr(key) if type(key) in _ATOMS else type(key).__name__ for key, _ in pairs[:_MOST_ATOMS]]
    if len(pairs) > MOST_ITEMS:
        keys += [_short_text_of(item) for _, item in pairs[:_MOST_ATOMS]]
    digest = f" {text_of(' '.join(keys))[0]}" if issubclass(kind, dict) or len(pairs) > MOST_ITEMS else ""
    return f"{kind.__qualname__} of {len(pairs)}{digest}"


def _parts_of_generator(value: Any) -> Iterator[tuple[str, Step, Any]]:
    frame = _frame_of_generator(value)
    if frame is not None and is_users_frame(frame):
        live = live_names(frame, everywhere=True)
        variables = variables_of(frame)
        for name in sorted(live & variables.keys()):
            yield f".{name}", Step("part", name), variables[name]
        for name in sorted(looped_global_names(frame) & frame.f_globals.keys()):
            if not issubclass(type(frame.f_globals[name]), types.ModuleType):
                yield "", Root("global", str(frame.f_globals.get("__name__")), name), frame.f_globals[name]  # type: ignore[misc]
    if type(value) is types.GeneratorType and value.gi_yieldfrom is not None:
        yield "(from)", Step("part", "from"), value.gi_yieldfrom


def variables_of(frame: types.FrameType) -> dict[str, Any]:
    """Return the local variables of a frame as they are now, without keeping them alive.

    Before Python 3.13 a function's ``f_locals`` is cached in its frame, which would keep weights alive that the
    function deletes, so the cache is cleared; it is kept if other code holds it.
    """
    cached = frame.f_locals
    variables = dict(cached)
    # The three references: the frame's, our variable's, and getrefcount's argument.
    if frame.f_code.co_flags & 1 and type(cached) is dict and sys.getrefcount(cached) == 3:  # 1: CO_OPTIMIZED
        cached.clear()
    return variables


def _parts_of_iterator(value: Any) -> Iterator[tuple[str, Step, Any]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 deprecates what 3.14 removes for those of itertools
            reduced = value.__reduce__()
        parts = reduced[1:]
    except TypeError:
        parts = gc.get_referents(value)
    for index, part in enumerate(parts):
        yield f"[{index}]", Step("part", index), part


def _reaches_state(function: Any, depth: int = 0) -> bool:
    """Return whether a cached function names what can change, so that its values cannot be computed again."""
    function = function.__wrapped__ if type(function) is CACHED else function
    if type(function) is types.MethodType:
        return True
    if type(function) is not types.FunctionType or depth > 4 or not is_users_function(function):
        return False
    code = function.__code__
    names, attributes = code_names(code)
    if attributes & _RANDOM_OR_TIME or (code.co_argcount and code.co_varnames[0] == "self"):
        return True
    values = [function.__globals__.get(name) for name in names]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # an empty cell
            continue
    changing = (nn.Cell, ms.Parameter, *GENERATORS, list, dict, set)
    return any(
        issubclass(type(value), changing)
        or (type(value) in (types.FunctionType, CACHED, types.MethodType) and _reaches_state(value, depth + 1))
        or (not issubclass(type(value), type) and is_users_class(type(value)) and type(value) is not types.FunctionType)
        for value in values
    )
