"""Finds the objects that a piece of Python code names, by reading its bytecode.

Guarantees: runs no user code, not even properties and descriptors. Follows names through globals, closures, imports,
attributes, simple assignments, nested functions, and into every function that it can resolve, each once. Does not
follow return values, containers, or arguments. So everything found is in the code, possibly behind a condition that
is never true; what is not found may still be used. Any thread.
"""

from __future__ import annotations

import builtins
import dis
import functools
import importlib.util
import inspect
import sys
import types
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindspore import nn

from ckptkit.mindspore.inspect.attributes import CACHED, UNKNOWN, attribute, in_class, own_attributes
from ckptkit.mindspore.inspect.users import is_of_users, is_users

_MOST = 5_000  # code objects read per callable: a second or two, more than any augmentation calls

_MOST_HELD = 100  # closures of one function of a library
_STARTS = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_GLOBAL", "LOAD_NAME")
_CHAIN = (*_STARTS, "LOAD_ATTR")
_STORES = ("STORE_FAST", "STORE_DEREF", "STORE_NAME")
_CALLS = ("CALL", "CALL_FUNCTION", "CALL_METHOD", "CALL_FUNCTION_KW")
# These may stand between a name and its use, and change neither.
_NEUTRAL = ("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "COPY", "DUP_TOP", "SWAP", "ROT_TWO")
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")

_NO_METHODS: Mapping[str, Any] = types.MappingProxyType({})

# Where @ms.jit defines the function that it wraps around the user's; test_findings.py fails if it moves.
_JIT_MODULES = ("mindspore.graph.api", "mindspore.common.api")


@dataclass(frozen=True)
class Use:
    """Describes one place where code names an object.

    Attributes:
        target: The object.
        name: As written in the code: ``np.random.rand``; where an attribute is assigned, the beginning of its owner.
        where: ``augment() in train.py:12``.
        compiled: Whether MindSpore compiles that code in any mode, because it is under ``@ms.jit``.
        called_empty: Whether it is called right there without arguments, or with None alone.
        sets: The attribute of it that is assigned there; empty where it is only named.
    """

    target: Any
    name: str
    where: str
    compiled: bool
    called_empty: bool
    sets: str = ""


def uses(
    code: Any,
    enters: Callable[[str], bool],
    *,
    compiled: bool = False,
    methods: Mapping[str, Any] = _NO_METHODS,
    closures: bool = False,
) -> Iterator[Use]:
    """Yield every object that ``code`` and everything it calls name, in order.

    Args:
        code: A function, method, partial, class, or object with ``__call__``.
        enters: Whether to follow calls into functions of the module of that name.
        compiled: Whether all of the code is compiled.
        methods: What an attribute of that name stands for if its owner is unknown, such as an argument.
        closures: Whether to follow functions of the user's that functions of libraries hold, as a gradient does.
    """
    yield from (use for use in _Walk(enters, methods, closures=closures).run(code, compiled) if not use.sets)


def assignments(code: Any, enters: Callable[[str], bool]) -> Iterator[Use]:
    """Yield every assignment to an attribute in ``code`` and all that it calls.

    The target is `UNKNOWN` where the object is not known. What is set in an object that is made there is left out.

    Args:
        code: As for `uses`.
        enters: As for `uses`.
    """
    yield from (use for use in _Walk(enters).run(code, False) if use.sets)


def assignments_in_loops(
    code: types.CodeType,
    loops: Sequence[range],
    scopes: tuple[Mapping[str, Any], Mapping[str, Any]],
    enters: Callable[[str], bool],
) -> Iterator[Use]:
    """Do as `assignments` for the given parts of running code.

    Args:
        code: The running code.
        loops: Instruction offsets of the parts.
        scopes: Its local and its global variables.
        enters: As for `uses`.
    """
    walk, (own, module) = _Walk(enters), scopes
    walk.wait_for(_Frame(code, module, {}, False, code.co_name, known={**own}, loops=loops))
    yield from (use for use in walk.read() if use.sets)


@dataclass
class _Frame:
    """Holds what is known of a function whose code is read."""

    code: types.CodeType
    module: Mapping[str, Any]
    free: Mapping[str, Any]
    compiled: bool
    name: str
    instance: Any = UNKNOWN
    known: dict[str, Any] = field(default_factory=dict)
    loops: Sequence[range] | None = None  # read these parts only

    @property
    def makes_new(self) -> bool:
        """Whether it sets the attributes of an object that is made there, of a class that code names."""
        return self.code.co_name == "__init__" and self.instance is UNKNOWN

    def value(self, opcode: str, name: str) -> Any:
        if opcode in ("LOAD_GLOBAL", "LOAD_NAME") and name not in self.known:
            return self.module.get(name, vars(builtins).get(name, UNKNOWN))
        return self.known.get(name, self.free.get(name, UNKNOWN))


class _Walk:
    """Reads code objects one after the other, all of one function before those of what it calls."""

    def __init__(
        self, enters: Callable[[str], bool], methods: Mapping[str, Any] = _NO_METHODS, *, closures: bool = False
    ) -> None:
        self._enters = enters
        self._closures = closures
        self._methods = methods
        self._visited: dict[Hashable, _Frame] = {}  # holds the frames, so that no id is reused
        self._waiting: deque[_Frame] = deque()

    def run(self, target: Any, compiled: bool) -> Iterator[Use]:
        self._add(target, compiled, anyone=True)
        yield from self.read()

    def wait_for(self, frame: _Frame) -> None:
        self._waiting.append(frame)

    def read(self) -> Iterator[Use]:
        while self._waiting and len(self._visited) < _MOST:
            frame = self._waiting.popleft()
            key = (frame.code, id(frame.instance), tuple(map(id, frame.free.values())), frame.compiled)
            if key in self._visited:
                continue
            self._visited[key] = frame
            if frame.instance is not UNKNOWN and frame.code.co_argcount:
                frame.known[frame.code.co_varnames[0]] = frame.instance
            for use in _named(frame, self._methods):
                yield use
                if not use.sets:
                    self._follow(frame, use)

    def _follow(self, frame: _Frame, use: Use) -> None:
        if type(use.target) is types.CodeType:  # isinstance() would ask a weak proxy for its class
            free = {**frame.free, **frame.known}
            name = frame.name if use.target.co_name in COMPREHENSIONS else use.target.co_name
            self._waiting.append(_Frame(use.target, frame.module, free, frame.compiled, name))
        elif use.target is super and frame.instance is not UNKNOWN:
            for kind in type(frame.instance).__mro__[1:]:
                inherited = vars(kind).get(frame.code.co_name)
                if isinstance(inherited, types.FunctionType):
                    self._add(types.MethodType(inherited, frame.instance), frame.compiled)
        else:
            self._add(use.target, frame.compiled)

    def _add(self, target: Any, compiled: bool, *, anyone: bool = False) -> None:
        for function, instance in functions_of(target):
            if not anyone and not self._enters(getattr(function, "__module__", None) or ""):
                for one in held_by(function) if self._closures and function.__closure__ else ():
                    self._add(one, compiled)
                continue
            if is_compiled(function):
                wrapped = vars(function)["__wrapped__"]
                self._add(wrapped if instance is UNKNOWN else types.MethodType(wrapped, instance), True, anyone=True)
                continue
            code = function.__code__
            closure = closure_of(function)
            self._waiting.append(_Frame(code, function.__globals__, closure, compiled, code.co_name, instance))


def is_compiled(one: Any) -> bool:
    """Return whether ``one`` is what ``@ms.jit`` made of a function."""
    if type(one) is not types.FunctionType or one.__globals__.get("__name__") not in _JIT_MODULES:
        return False
    return vars(one).get("__wrapped__") is not None


def has_compiled_method(cell: Any) -> bool:
    """Return whether some method of its class, or of a base class, is compiled in any mode, as optimizers have."""
    return any(is_compiled(one) for kind in type(cell).__mro__ for one in vars(kind).values())


def _named(frame: _Frame, methods: Mapping[str, Any]) -> Iterator[Use]:
    """Yield the objects that one code object names, including nested code objects, each once."""
    instructions = _in_loops(instructions_of(frame.code), frame.loops)
    file = Path(frame.code.co_filename).name
    target, name, line, imported = UNKNOWN, "", frame.code.co_firstlineno, _Import()
    seen = set()
    owners: dict[str, Any] = {}  # owners of the attributes read last, for `owner.count += 1`
    for index, one in enumerate(instructions):
        line = one.starts_line or line
        if one.opname == "STORE_ATTR" and not frame.makes_new:
            owner = target if instructions[index - 1].opname.startswith(_CHAIN) else owners.get(one.argval, UNKNOWN)
            yield Use(owner, name, f"{frame.name}() in {file}:{line}", frame.compiled, False, sets=one.argval)
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            owners[one.argval] = target
        if one.opname.startswith(_STARTS):
            target, name = frame.value(one.opname, one.argval), str(one.argval)
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD") and (target is not UNKNOWN or one.argval in methods):
            is_known, part = target is not UNKNOWN, str(one.argval)
            target, name = (attribute(target, part), f"{name}.{part}") if is_known else (methods[part], part)
        elif one.opname == "LOAD_CONST":
            imported.constant(one.argval)
            target = one.argval if isinstance(one.argval, types.CodeType) else UNKNOWN
        elif one.opname == "IMPORT_NAME":
            target, name = imported.module(one.argval, frame.module), one.argval
        elif one.opname == "IMPORT_FROM":
            target, name = imported.part(one.argval), str(one.argval)
        elif one.opname == "POP_TOP" and imported.is_alias:
            continue  # the package that `import a.b as c` was read from
        else:
            if one.opname in _STORES:
                frame.known[one.argval] = target
            target, imported = UNKNOWN, imported.after(one.opname)
        empty = _called_empty(instructions[index + 1 : index + 4])
        if target is not UNKNOWN and (id(target), empty) not in seen:
            seen.add((id(target), empty))
            yield Use(target, name, f"{frame.name}() in {file}:{line}", frame.compiled, empty)


@functools.lru_cache(maxsize=1024)
def instructions_of(code: types.CodeType) -> list[dis.Instruction]:
    """Return the instructions of ``code`` but the neutral ones; cached, since a network has many cells of one class."""
    return [one for one in dis.get_instructions(code) if one.opname not in _NEUTRAL]


def _in_loops(instructions: list[dis.Instruction], loops: Sequence[range] | None) -> list[dis.Instruction]:
    if loops is None:
        return instructions
    return [one for one in instructions if any(one.offset in loop for loop in loops)]


def _called_empty(following: Sequence[dis.Instruction]) -> bool:
    """Return whether the instructions call what is on the stack without arguments, or with None alone."""
    shape = [one for one in following if one.opname not in ("KW_NAMES", "LOAD_CONST") or one.argval is None]
    if not shape or (following[0] is not shape[0]):
        return False
    if shape[0].opname in _CALLS:
        return shape[0].arg == 0
    return shape[0].opname == "LOAD_CONST" and len(shape) > 1 and shape[1].opname in _CALLS and shape[1].arg == 1


class _Import:
    """Tracks what the import statement being read has on the stack."""

    def __init__(self) -> None:
        self._constants: tuple[Any, Any] = (0, None)  # the level of a relative import, and the names after `import`
        self._owner: Any = UNKNOWN
        self.is_alias = False

    def constant(self, value: Any) -> None:
        self._constants = (self._constants[1], value)

    def module(self, dotted: str, namespace: Mapping[str, Any]) -> Any:
        level, names = self._constants
        if level:
            package = namespace.get("__package__")
            try:
                dotted = importlib.util.resolve_name("." * level + dotted, package) if package else ""
            except ImportError:  # it leads out of the package
                dotted = ""
        if not names:
            dotted = dotted.partition(".")[0]  # `import a.b` names a, and `as c` takes b from it by IMPORT_FROM
        self._owner = sys.modules.get(dotted, UNKNOWN)
        return self._owner

    def part(self, name: str) -> Any:
        found = UNKNOWN if self._owner is UNKNOWN else attribute(self._owner, name)
        if not self._constants[1]:
            self._owner, self.is_alias = found, True
        return found

    def after(self, opcode: str) -> _Import:
        """Return the state after an instruction that is no part of an import but may store what was imported."""
        return _Import() if self.is_alias or opcode not in _STORES else self


def functions_of(target: Any, inside: tuple[int, ...] = ()) -> Iterator[tuple[types.FunctionType, Any]]:
    """Yield the Python functions that calling ``target`` runs, each with its instance.

    Args:
        target: What is called.
        inside: ``id`` of the decorators around it, since decorators may wrap each other in a cycle.
    """
    kind = type(target)
    if issubclass(kind, functools.partial):
        for one in (target.func, *target.args, *target.keywords.values()):
            yield from functions_of(one)
    elif kind is types.MethodType:
        for function, instance in functions_of(target.__func__):
            yield function, target.__self__ if instance is UNKNOWN else instance
    elif kind is types.FunctionType:
        yield target, UNKNOWN
    elif issubclass(kind, type):
        for name in ("__init__", "__call__"):
            function = inspect.getattr_static(target, name, None)
            if type(function) is types.FunctionType:
                yield function, UNKNOWN
    elif not issubclass(kind, (types.ModuleType, types.CodeType)):
        function = in_class(kind, "__call__")
        if type(function) is types.FunctionType:
            yield function, target
    if not issubclass(kind, (type, types.ModuleType, types.CodeType, types.MethodType)):
        wrapped = own_attributes(target).get("__wrapped__")
        if id(wrapped) not in inside and type(wrapped) in (types.FunctionType, types.MethodType, CACHED):
            yield from functions_of(wrapped, (*inside, id(target)))


def closure_of(function: types.FunctionType) -> dict[str, Any]:
    """Return the function's closure variables; `UNKNOWN` for one without a value yet."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: _content(one) for name, one in cells}


def held_by(function: Any) -> list[Any]:
    """Return the functions of the user's that a function of a library's holds in closures, as that of a gradient."""
    found: list[Any] = []
    waiting, seen = [function], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen or len(seen) > _MOST_HELD:
            continue
        seen.add(id(one))
        inner = getattr(one, "__func__", one)
        if isinstance(inner, types.FunctionType) and is_users(inner.__module__):
            found.append(one)
        elif isinstance(inner, types.FunctionType):
            waiting += closure_of(inner).values()
    return found


def functions_in(one: Any) -> list[Any]:
    """Return what of the user's an object of a library's holds and may call, as a scheduler its function of the epoch.

    Cells are left out: what they call is read elsewhere.
    """
    if is_of_users(one) or isinstance(one, (type, types.ModuleType, nn.Cell)):
        return []
    held = [each for value in own_attributes(one).values() for each in (value if type(value) is list else [value])]
    return [each for each in held[:_MOST_HELD] if _is_callable_of_users(each)]


def _is_callable_of_users(one: Any) -> bool:
    if type(one) in (types.FunctionType, types.MethodType):
        return is_users(one.__module__)
    of_users = is_of_users(one) and not isinstance(one, (type, nn.Cell))
    return of_users and type(in_class(type(one), "__call__")) is types.FunctionType


def _content(one: types.CellType) -> Any:
    try:
        return one.cell_contents
    except ValueError:  # not filled yet
        return UNKNOWN
