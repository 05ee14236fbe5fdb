"""Lists the objects that Python code names, from its bytecode, and what the functions among them name in turn.

Guarantees: runs no user code. A name is followed through globals, closures, imports, attributes and plain assignments.
What a call returns, a container holds or an argument is stays unknown. Any thread.
"""

from __future__ import annotations

import builtins
import dis
import functools
import importlib.util
import os.path
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ckptkit.mindspore.observe.attributes import own_attributes

UNKNOWN = object()
_MOST = 2_000  # code objects of one call, more than any network has
_CACHE = type(functools.cache(lambda: None))
_WRAPPED = {property: "fget", functools.cached_property: "func", staticmethod: "__func__", classmethod: "__func__"}
# Private to MindSpore: where it defines the wrapper of @ms.jit. `test_random_operators.py` fails if it moves.
_JIT_MODULES = ("mindspore.graph.api", "mindspore.common.api")
_VARIABLES = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_GLOBAL", "LOAD_NAME")
_STORES = ("STORE_FAST", "STORE_DEREF", "STORE_NAME")
_ATTRIBUTE = ("_ATTR", "LOAD_METHOD")
_CALLS = ("CALL", "CALL_FUNCTION", "CALL_METHOD", "CALL_FUNCTION_KW")
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
# These may stand between a name and its use, and change neither.
_NEUTRAL = ("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "COPY", "DUP_TOP", "SWAP", "ROT_TWO")


@dataclass(frozen=True)
class NamedObject:
    """Describes an object at a place where code names it.

    Attributes:
        value: The object; `UNKNOWN` for an attribute of something unknown, and for a global that is not there.
        name: As written: ``np.random.rand``; of an unknown attribute, its last part.
        where: ``augment() in train.py:12``.
        compiled: Whether the code is under ``@ms.jit``.
        without_seed: Whether it is called right there without arguments, or with None alone.
        then: The attribute of it that is read or set right there; empty if it is used otherwise.
        code: The code that names it.
    """

    value: Any
    name: str
    where: str
    compiled: bool
    without_seed: bool
    then: str
    code: types.CodeType


@dataclass
class _Scope:
    code: types.CodeType
    module: Mapping[str, Any]
    known: dict[str, Any]  # local variables, and those of closures
    compiled: bool
    owner: Any = UNKNOWN  # of a method
    within: str = ""  # the function around a comprehension

    def value(self, opcode: str, name: str) -> Any:
        if opcode in ("LOAD_GLOBAL", "LOAD_NAME") and name not in self.known:
            return self.module.get(name, vars(builtins).get(name, UNKNOWN))
        return self.known.get(name, UNKNOWN)


def named_objects(code: Any, enters: Callable[[str], bool], *, compiled: bool = False) -> Iterator[NamedObject]:
    """Yield what ``code`` names, and what the functions name that it names, each of these once.

    Args:
        code: A function, method, partial, class, object with ``__call__``, or a running frame.
        enters: Whether to read functions of the module of that name. ``code`` itself is read in any case.
        compiled: Whether ``code`` is compiled by MindSpore.
    """
    if isinstance(code, types.FrameType):
        waiting = deque([_Scope(code.f_code, code.f_globals, {**code.f_locals}, compiled)])
    else:
        waiting = deque(_scopes(code, lambda _: True, compiled))
    read: dict[Any, _Scope] = {}  # holds the scopes, so that no id is reused
    while waiting and len(read) < _MOST:
        scope = waiting.popleft()
        key = (scope.code, scope.compiled, id(scope.owner), *map(id, scope.known.values()))
        if key in read:
            continue
        read[key] = scope
        for named in _named_in(scope):
            yield named
            if type(named.value) is types.CodeType:
                within = scope.within or scope.code.co_name if named.value.co_name in _COMPREHENSIONS else ""
                given = ({**scope.known}, scope.compiled, scope.owner, within)
                waiting.append(_Scope(named.value, scope.module, *given))
            elif named.value is super and scope.owner is not UNKNOWN:
                parents = [vars(kind).get(scope.code.co_name) for kind in type(scope.owner).__mro__[1:]]
                for parent in (part for part in parents if isinstance(part, types.FunctionType)):
                    waiting.extend(_scopes(types.MethodType(parent, scope.owner), enters, scope.compiled))
            else:
                waiting.extend(_scopes(named.value, enters, scope.compiled))


def _named_in(scope: _Scope) -> Iterator[NamedObject]:
    instructions = instructions_of(scope.code)
    value, name, line, package, is_alias = UNKNOWN, "", scope.code.co_firstlineno, UNKNOWN, False
    seen = set()
    for index, instruction in enumerate(instructions):
        opcode, argument, line = instruction.opname, instruction.argval, instruction.starts_line or line
        is_name = opcode in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL")
        if opcode.startswith(_VARIABLES):
            value, name = scope.value(opcode, argument), argument
        elif is_name:
            name = argument if value is UNKNOWN else f"{name}.{argument}"
            value = UNKNOWN if value is UNKNOWN else attribute(value, argument)
        elif opcode == "IMPORT_NAME":
            level, names = instructions[index - 2].argval, instructions[index - 1].argval
            value, name, is_alias = _imported(argument, level, names, scope.module), argument, not names
            package = value
        elif opcode == "IMPORT_FROM":
            value, name = UNKNOWN if package is UNKNOWN else attribute(package, argument), argument
            package = value if is_alias else package  # `import a.b as c` takes one part after the other
        elif opcode == "LOAD_CONST" and isinstance(argument, types.CodeType):
            value, name = argument, argument.co_name
        else:
            if opcode in _STORES:
                scope.known[argument] = value
            value = UNKNOWN
        if not is_name and value is UNKNOWN:
            continue
        without_seed = _called_without_seed(instructions, index + 1)
        follower = instructions[index + 1]  # there is one: code ends with a return
        then = follower.argval if follower.opname.endswith(_ATTRIBUTE) else ""
        key = (id(value), name if value is UNKNOWN else "", without_seed, not then)
        if key not in seen:
            seen.add(key)
            place = f"{scope.within or scope.code.co_name}() in {os.path.basename(scope.code.co_filename)}:{line}"
            yield NamedObject(value, name, place, scope.compiled, without_seed, then, scope.code)


@functools.lru_cache(maxsize=2048)
def instructions_of(code: types.CodeType) -> list[dis.Instruction]:
    """Return the instructions of ``code`` but the neutral ones."""
    return [step for step in dis.get_instructions(code) if step.opname not in _NEUTRAL]


def _called_without_seed(instructions: list[dis.Instruction], index: int) -> bool:
    following = instructions[index]
    if following.opname == "LOAD_CONST" and following.argval is None:
        names = instructions[index + 1].opname in ("KW_NAMES", "LOAD_CONST")
        following, given = instructions[index + 1 + names], 1
    else:
        given = 0
    return following.opname in _CALLS and following.arg == given


def _imported(dotted: str, level: int, names: Any, module: Mapping[str, Any]) -> Any:
    if level:
        try:
            dotted = importlib.util.resolve_name("." * level + dotted, module.get("__package__") or "")
        except ImportError:  # it leads out of the package
            return UNKNOWN
    return sys.modules.get(dotted if names else dotted.partition(".")[0], UNKNOWN)


def attribute(owner: Any, name: str) -> Any:
    """Return ``owner.name`` as far as no user code decides it, a property as its method; `UNKNOWN` otherwise."""
    own = own_attributes(owner)
    value = own.get(name, UNKNOWN)
    for place in ("_cells", "_params") if value is UNKNOWN else ():  # where a cell keeps both
        kept = own.get(place)
        value = kept.get(name, value) if isinstance(kept, dict) else value
    if value is not UNKNOWN or issubclass(type(owner), types.ModuleType):
        return value
    is_class = issubclass(type(owner), type)
    kind = owner if is_class else type(owner)
    member = in_class(kind, name)
    if member is UNKNOWN or is_class:
        return getattr(member, "__func__", member)
    if isinstance(member, staticmethod):
        return member.__func__
    member = getattr(member, _WRAPPED[type(member)]) if type(member) in _WRAPPED else member
    if isinstance(member, (types.FunctionType, _CACHE)):
        return types.MethodType(member, owner)
    of_library = type(member).__module__ == "builtins" or type(member).__name__ == "cython_function_or_method"
    return member.__get__(owner, kind) if of_library and hasattr(type(member), "__get__") else member


def owner_of(function: Any) -> Any:
    """Return the object that a bound method belongs to; None for anything else."""
    is_library = type(function).__module__ == "builtins" or type(function).__name__ == "cython_function_or_method"
    return getattr(function, "__self__", None) if is_library and callable(function) else None


def in_class(kind: type, name: str) -> Any:
    """Return the unbound attribute of a class or its bases; `UNKNOWN` if there is none."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), UNKNOWN)


def _scopes(target: Any, enters: Callable[[str], bool], compiled: bool, owner: Any = UNKNOWN) -> Iterator[_Scope]:
    """Yield the Python functions that calling ``target`` runs."""
    kind = type(target)
    if issubclass(kind, functools.partial):
        for part in (target.func, *target.args, *target.keywords.values()):
            yield from _scopes(part, enters, compiled)
    elif kind is types.MethodType:
        yield from _scopes(target.__func__, enters, compiled, target.__self__)
    elif kind is types.FunctionType:
        wrapped = vars(target).get("__wrapped__")
        if wrapped is not None and target.__globals__.get("__name__") in _JIT_MODULES:
            yield from _scopes(wrapped, lambda _: True, True, owner)
        elif enters(target.__module__ or ""):
            yield _scope_of(target, compiled, owner)
            if isinstance(wrapped, types.FunctionType) and wrapped is not target:
                yield _scope_of(wrapped, compiled, owner)
    elif kind is _CACHE:
        yield from _scopes(target.__wrapped__, enters, compiled, owner)
    elif not issubclass(kind, (types.ModuleType, types.CodeType)):
        for name in ("__init__", "__call__") if issubclass(kind, type) else ("__call__",):
            method = in_class(target if issubclass(kind, type) else kind, name)
            if isinstance(method, types.FunctionType):
                yield from _scopes(method, enters, compiled, UNKNOWN if issubclass(kind, type) else target)


def _scope_of(function: types.FunctionType, compiled: bool, owner: Any) -> _Scope:
    code = function.__code__
    names = zip(code.co_freevars, function.__closure__ or (), strict=True)
    known = {name: cell.cell_contents for name, cell in names if _is_filled(cell)}
    if owner is not UNKNOWN and code.co_argcount:
        known[code.co_varnames[0]] = owner
    return _Scope(code, function.__globals__, known, compiled, owner)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asked whether it is there
    except ValueError:
        return False
    return True
