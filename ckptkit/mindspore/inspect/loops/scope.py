"""Defines the variables that code has while it is read, and what is known of the values in them.

Guarantees: calls nothing of the user's. Main thread only.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ckptkit.mindspore.inspect.attributes import UNKNOWN, Symbol, met
from ckptkit.mindspore.inspect.code.bytecode import COMPREHENSIONS


class Place(NamedTuple):
    """Identifies a variable of a function or module, or an attribute of an object, by its container and name."""

    within: int | str
    name: str


class CachePlace(Place):
    """Identifies what a cache keeps, or code makes when it first needs it, and all that is in it."""


RESTORED = Place(0, "restored")  # marks what comes from the checkpoint
TIMED = Place(0, "timed")  # marks what comes from a clock
DATA = Place(0, "data")  # marks what is made of a batch, of a parameter, of what a cell returned, or of a draw
WEIGHTS = Place(0, "weights")  # marks what is made of a parameter with more than one element: of no position
MARKS = frozenset((RESTORED, TIMED, DATA, WEIGHTS))

Sources = frozenset[Place]


class Value(NamedTuple):
    """Holds what is known of an expression: its object, what it was made of, the items of a tuple, and its place."""

    target: Any = UNKNOWN
    sources: Sources = frozenset()
    items: tuple[Value, ...] = ()
    place: Place | None = None  # where the object lies
    also: tuple[Any, ...] = ()  # other objects that it may be
    is_new: bool = False  # a cell, or a function of MindSpore's, that is made here; a generator that a cache makes


@dataclass(frozen=True, eq=False)
class Inline(Symbol):
    """Stands for the function that a lambda makes, with the values of its parameters at their default."""

    node: ast.Lambda
    scope: Scope
    defaults: dict[str, Value]


@dataclass(frozen=True, eq=False)
class Made(Symbol):
    """Stands for the function that MindSpore makes of another one, such as its gradient."""

    function: Any


class Trains(Symbol):
    """Stands for an optimizer that code makes, or a cell with one."""


@dataclass(frozen=True, eq=False)
class Bound(Symbol):
    """Stands for what `functools.partial` makes of a function."""

    function: Any
    given: Sequence[Value]
    named: Mapping[str | None, Value]


FUNCTIONS = (Bound, Inline, Made, types.FunctionType)  # what stands for functions that code makes


class Running(NamedTuple):
    """Holds the variables of a function or module that is running, and its line; 0 if it is not running."""

    values: Mapping[str, Any]
    line: int


class Cache:
    """Holds what statements assign that run only where something is missing.

    Args:
        read: What may not be a cache.
    """

    def __init__(self, read: Collection[Place]) -> None:
        self.read = frozenset(read)
        self.filled: set[Place] = set()


class Scope:
    """Holds the variables of a function or module that is read.

    Args:
        code: Its code.
        module: The global variables.
        path: What findings in it begin with.
        now: What it has now; of a function that is not running, its closure.
    """

    def __init__(self, code: types.CodeType, module: dict[str, Any], path: str, now: Running) -> None:
        self.code = code
        self.path = path
        self._now = now
        self.known = {name: Value(met(one)) for name, one in self._now.values.items()}
        self.lasting: dict[str, types.FunctionType] = {}  # arguments at their default, an object that outlives the call
        self.returns_one = False  # the same expression wherever the function ends
        self._module = module
        own = code.co_varnames if code.co_name != "<module>" else ()
        self._own = _of_comprehensions(code).union(own)
        self._shared = frozenset((*code.co_cellvars, *code.co_freevars))

    def place(self, name: str) -> Place:
        """Return the place of the variable of that name."""
        if name in self.lasting:
            return Place(id(self.lasting[name]), name)
        if name in self._shared:
            return Place(self.code.co_filename, name)
        return Place(id(self.code) if name in self._own else id(self._module), name)

    def define(
        self,
        node: ast.FunctionDef,
        read: Callable[[ast.expr, Scope], Value],
    ) -> None:
        """Let the name of a function that is defined here stand for one like it, unless the real one is there already.

        Decorators count as if they returned a graph of it. ``read`` reads what it has by default, of which the function
        is made.
        """
        sources = together(_defaults_of(node.args, self, read).values())
        if (one := self.value(node.name)).target is not UNKNOWN:
            self.known[node.name] = one._replace(sources=sources)
            return
        inner = [one for one in self.code.co_consts if isinstance(one, types.CodeType) and one.co_name == node.name]
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        for code in (one for one in inner if one.co_firstlineno == first):
            cells = tuple(types.CellType(self.value(name).target) for name in code.co_freevars)
            self.known[node.name] = Value(types.FunctionType(code, self._module, node.name, None, cells), sources)

    def fill(self, target: ast.expr, value: Value) -> None:
        """Let a variable that a cache fills stand for the function that is made for it."""
        if isinstance(target, ast.Name) and isinstance(value.target, FUNCTIONS):
            self.known[target.id] = value

    def parent(self) -> Any:
        """Return what ``super()`` gives in a method."""
        kind = self._now.values.get("__class__")
        first = next((self.value(name).target for name in self.code.co_varnames[:1]), UNKNOWN)
        return super(kind, first) if isinstance(kind, type) and issubclass(type(first), kind) else UNKNOWN

    def assigned(self, name: str, value: Value, line: int, *, is_made: bool = False) -> Value:
        """Return ``value`` with the object that the variable has now, if that is what was assigned at ``line``.

        ``is_made`` says that the value's object only stands for that one.
        """
        is_past = (value.target is UNKNOWN or (is_made and name in self._now.values)) and line < self._now.line
        return value._replace(target=met(self._now.values.get(name, UNKNOWN))) if is_past else value

    def constant(self, node: ast.expr) -> ast.expr:
        """Return the text that a variable is, such as an argument, as an expression; any other expression as it is."""
        value = self.value(node.id) if isinstance(node, ast.Name) else Value()
        is_text = type(value.target) is str and value.place is None  # in no list, of which it may be any item
        return ast.copy_location(ast.Constant(value.target), node) if is_text else node

    def value(self, name: str) -> Value:
        """Return what is known of the variable of that name."""
        return self.known.get(name) or Value(met(self._module.get(name, vars(builtins).get(name, UNKNOWN))))


@functools.lru_cache(maxsize=4096)
def _of_comprehensions(code: types.CodeType) -> frozenset[str]:
    """Return the variables that only comprehensions in ``code`` have: those of one do not outlive it."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType) and one.co_name in COMPREHENSIONS]
    own = (frozenset(one.co_varnames) | _of_comprehensions(one) for one in inner)
    return frozenset[str]().union(*own) - frozenset(code.co_names)


def inlined(node: ast.Lambda, scope: Scope, read: Callable[[ast.expr, Scope], Value]) -> Value:
    """Return what stands for the function that a lambda makes; ``read`` reads an expression."""
    defaults = _defaults_of(node.args, scope, read)
    return Value(Inline(node, scope, defaults), together(defaults.values()))


def _defaults_of(one: ast.arguments, scope: Scope, read: Callable[[ast.expr, Scope], Value]) -> dict[str, Value]:
    """Return what parameters get that a call leaves out, by name."""
    names = [each.arg for each in (*one.posonlyargs, *one.args)]
    by_name = [*zip(reversed(names), reversed(one.defaults), strict=False)]
    by_name += [(each.arg, given) for each, given in zip(one.kwonlyargs, one.kw_defaults, strict=True) if given]
    return {name: read(given, scope) for name, given in by_name}


def of_cached(value: Value, sources: Sources) -> Value:
    """Return an unknown part of a value: it has its sources and, if a cache keeps the value, its place."""
    return Value(UNKNOWN, sources, place=value.place if isinstance(value.place, CachePlace) else None)


def is_remade(value: Value) -> bool:
    """Return whether a later start makes the same value again, so that a cache of it is no state."""
    return value.sources <= {RESTORED}


def together(values: Iterable[Value]) -> Sources:
    """Return what the values are made of."""
    return frozenset().union(*(one.sources for one in values))


def aliases(node: ast.AST, scope: Scope) -> set[Place]:
    """Return the places that variables of an expression were taken from."""
    names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
    own = {scope.place(name) for name in names}
    return {place for name in names if (place := scope.value(name).place) is not None} - own


@contextlib.contextmanager
def narrowed(test: ast.expr | None, scope: Scope, read: Callable[[ast.expr, Scope], Value]) -> Iterator[None]:
    """Limit a variable, inside a block, to those of its objects for which the block's ``isinstance`` condition holds.

    Args:
        test: The condition; None if there is none.
        scope: Has the variable.
        read: Reads an expression.
    """
    before = dict(scope.known)
    for one in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
        match one:
            case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=name), kind]):
                kinds = read(kind, scope)
                asked = [*(kinds.target if isinstance(kinds.target, tuple) else [kinds.target])]
                asked += [item.target for item in kinds.items]
                value = scope.value(name)
                found = [each for each in (value.target, *value.also) if _is_one_of(each, asked)]
                if found:
                    scope.known[name] = value._replace(target=found[0], also=tuple(found[1:]))
    narrow = {name: value for name, value in scope.known.items() if before.get(name) is not value}
    yield
    for name, value in narrow.items():
        if scope.known.get(name) is value:  # the block did not assign it
            scope.known[name] = before[name]


def _is_one_of(one: Any, kinds: Iterable[Any]) -> bool:
    """Return what ``isinstance`` does, without code of the user's, which a metaclass may have."""
    return any(kind is each for kind in kinds for each in type(one).__mro__)
