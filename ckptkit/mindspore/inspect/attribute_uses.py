"""Tells how the methods of a class use its attributes: which they carry from call to call, and which they only show.

Guarantees: an attribute counts as only shown if every use shows it, also every use through a local variable. Reads
source and runs no code. Does not know what code outside of the class does with the attributes. Any thread.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from ckptkit.mindspore.inspect.attributes import members_of
from ckptkit.mindspore.inspect.code.bytecode import functions_of
from ckptkit.mindspore.inspect.loops.source import blocks_of, body_of

_SHOWS = re.compile(r"print|debug|info|warning|error|critical")
_ON_SCREEN = ("sys.stdout.write", "sys.stdout.flush", "sys.stderr.write", "sys.stderr.flush")
# Calls that change nothing: functions of Python, functions of modules, and methods of values.
_FUNCTIONS = re.compile(
    r"abs|bool|dict|enumerate|float|int|len|list|max|min|range|repr|reversed|round|set|sorted|str|sum|tuple|zip"
)
_MODULES = re.compile(r"np|numpy|math|statistics|bisect|time|datetime")
_METHODS = re.compile(
    r"asnumpy|copy|count|format|get|index|items?|join|keys|max|mean|min|most_common|original_args|std|sum|tolist|values"
)
_CHANGES = re.compile(
    r"add|append(left)?|assign_value|clear|discard|extend|insert|move_to_end|pop(item|left)?|remove|set_data|setdefault"
    r"|update"
)
_MAKERS = re.compile(r"Counter|defaultdict|deque|dict|list|set|float|int|bool|str|time|monotonic|now|zeros")
# Methods that run only around a training, or tell its state.
_NOT_STEPS = (
    *("__init__", "__new__", "__repr__", "__str__"),
    *("state_dict", "load_state_dict", "__getstate__", "__setstate__"),
)
_IDLE = (ast.Pass, ast.Continue, ast.Break)


def only_shown(kind: type) -> frozenset[str]:
    """Return the attributes that methods only show; they may also change those to whose value no other name leads."""
    methods = [*_methods(kind)]
    if not all(one.body for one in methods):
        return frozenset()
    origins = [one.origins() for one in methods]
    made, taken, changed = (frozenset[str]().union(*(one[at] for one in origins)) for at in range(3))
    methods = [one for one in methods if one.name != "__init__"]
    shown = frozenset[str]().union(*(one.names(each) for one in methods for each in one.body))
    shown -= changed - (made - taken)  # another name may lead to what is changed
    while True:
        bad = frozenset[str]().union(*(one.used_otherwise(one.body, shown) for one in methods)) & shown
        if not bad:
            return frozenset(one for one in shown if one.isidentifier()) - {"__class__"}  # decides what runs
        shown -= bad


def named_by(kind: type, *, in_steps: bool = False) -> frozenset[str]:
    """Return the attributes, of any object, that the methods of the user's name.

    Args:
        kind: A class.
        in_steps: Leave out the methods that run only around a training, such as ``__init__``.
    """
    methods = _steps(kind) if in_steps else [*_methods(kind)]
    return frozenset(one.attr for _, one in _nodes(methods) if isinstance(one, ast.Attribute))


def changed_in_place(kind: type) -> frozenset[str]:
    """Return the attributes that the methods of the user's change in place, such as by ``self.values.append(1)``."""
    return frozenset[str]().union(*(one.origins()[2] for one in _methods(kind)))


@functools.lru_cache(maxsize=1024)
def carried_by(kind: type) -> frozenset[str]:
    """Return the attributes whose values methods of the user's may take from one call to the next.

    Left out are those that are only shown, set before each use, or kept for what is computed from other attributes.
    """
    methods = _steps(kind)
    made, taken, changed = (frozenset[str]().union(*(one.origins()[at] for one in methods)) for at in range(3))
    found = {name for name in made | taken | changed if name.isidentifier()} - only_shown(kind)
    found -= {name for name in found - changed if _is_set_first(name, methods)}
    return frozenset(found - {name for name in found if all(one.caches(name, found) for one in methods)})


def assigned_in_steps(kind: type) -> frozenset[str]:
    """Return the attributes that steps assign."""
    return frozenset(method.named(node) for method, node in _nodes(_steps(kind)) if _is_stored(node)) - {""}


def counted_by(kind: type) -> frozenset[str]:
    """Return the attributes that steps change by ``+=`` and the like, or an item of them; see `carried_by`."""
    methods = _steps(kind)
    found = {method.named(_whole(node.target)) for method, node in _nodes(methods) if isinstance(node, ast.AugAssign)}
    return frozenset(name for name in found - {""} if not _is_set_first(name, methods)) - only_shown(kind)


def set_by(kind: type, name: str) -> frozenset[str]:
    """Return the attributes, of any object, that a method sets or changes, also by other methods of its object."""
    methods, waiting, done, found = [*_methods(kind)], {name}, set[str](), set[str]()
    while waiting - done:
        done.add(name := (waiting - done).pop())
        called = [one for one in methods if one.name == name]
        attributes = [node for _, node in _nodes(called) if isinstance(node, ast.Attribute)]
        found |= {node.attr for node in attributes if _is_stored(node)}
        found |= {each for one in called for each in one.origins()[2] if each.isidentifier()}
        waiting |= {node.attr for node in attributes}
    return frozenset(found)


def _is_set_first(name: str, methods: Sequence[_Method]) -> bool:
    """Return whether each method that reads an attribute has set it before, or is private to one that has."""
    reading = [one for one in methods if one.reads(name)]
    setting = [one for one in methods if one.sets_first(name)]
    others = [one for one in reading if not re.match("_[^_]", one.name)]
    return bool(reading and setting) and all(one in setting for one in others)


def _steps(kind: type) -> list[_Method]:
    """Return the methods that may run in each step."""
    return [one for one in _methods(kind) if one.name not in _NOT_STEPS]


def _nodes(methods: Iterable[_Method]) -> Iterator[tuple[_Method, ast.AST]]:
    return ((method, node) for method in methods for each in method.body for node in ast.walk(each))


def _methods(kind: type) -> Iterator[_Method]:
    number = itertools.count()
    for name, method in members_of(kind):
        for function, _ in functions_of(method) if not isinstance(method, type) else ():
            code = function.__code__
            owner = code.co_varnames[:1] if code.co_argcount else ()
            given = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
            yield _Method(name, owner, given, body_of(code, function.__globals__), next(number))


class _Method:
    """Reads one method.

    Args:
        name: Its name.
        owner: The name of its object, if it has one.
        given: The names of its other arguments.
        body: Its statements.
        number: Tells it from the others.
    """

    def __init__(
        self, name: str, owner: Collection[str], given: Collection[str], body: Sequence[ast.stmt], number: int
    ) -> None:
        self.name = name
        self.body = body
        self._owner = owner
        self._given = given
        self._path = f"{number} "  # before the names of local variables; no attribute begins like that
        stored = (one.id for each in body for one in ast.walk(each) if _is_stored(one) and isinstance(one, ast.Name))
        self._locals = frozenset(stored)

    def names(self, one: ast.AST, *, without: Collection[ast.AST] = ()) -> frozenset[str]:
        """Return the attributes and local variables that code names."""
        found = (self._name(each) for each in ast.walk(one) if each not in without)
        return frozenset(name for name in found if name)

    def origins(self) -> tuple[set[str], set[str], set[str]]:
        """Return what gets values that are made there, what gets others, and what is changed in place."""
        made, taken, changed = set[str](), set[str](), set[str]()
        for one in (each for statement in self.body for each in ast.walk(statement)):
            if isinstance(one, (ast.Assign, ast.AnnAssign)) and one.value is not None:
                for target in one.targets if isinstance(one, ast.Assign) else [one.target]:
                    for each, value in _pairs(target, one.value):
                        (made if _is_made(value) else taken).update(self.names(each))
            elif isinstance(one, (ast.For, ast.comprehension, ast.NamedExpr)):
                taken |= self.names(one.target)
            elif isinstance(one, ast.withitem) and one.optional_vars is not None:
                taken |= self.names(one.optional_vars)
            match one:
                case ast.AugAssign(target=target):
                    changed.add(self._name(target))
                case ast.Call(func=ast.Attribute(value=owner, attr=name)) if _CHANGES.fullmatch(name):
                    changed.add(self._name(_whole(owner)))
                case ast.Subscript(value=owner, ctx=ast.Store() | ast.Del()):
                    changed.add(self._name(_whole(owner)))
        return made, taken, changed

    def named(self, one: ast.AST) -> str:
        """Return the name of an attribute of the object; empty for anything else."""
        name = self._name(one)
        return name if name.isidentifier() else ""

    def reads(self, name: str) -> bool:
        """Return whether it reads an attribute of its object."""
        return any(self._name(each) == name and not _is_stored(each) for one in self.body for each in ast.walk(one))

    def sets_first(self, name: str) -> bool:
        """Return whether it sets an attribute, under no condition, before it reads it."""
        for one in self.body:
            named = [each for each in ast.walk(one) if self._name(each) == name]
            if named:
                targets = one.targets if isinstance(one, ast.Assign) else [getattr(one, "target", None)]
                is_set = isinstance(one, (ast.Assign, ast.AnnAssign)) and all(map(_is_stored, named))
                return is_set and any(each in named for each in targets)
        return False

    def caches(self, name: str, carried: Collection[str]) -> bool:
        """Return whether it sets an attribute only where that is missing or out of date, from what decides that.

        Such as ``if self._table is None: self._table = self._made(self.size)``, or ``if key not in self._made:
        self._made[key] = self._make(key)``.
        """
        nodes = [each for one in self.body for each in ast.walk(one)]
        kept = [each for each in nodes if isinstance(each, ast.If) and self._is_missing(each, carried)]
        inside = {id(node) for one in kept for each in one.body for node in ast.walk(each)}
        return all(id(each) in inside for each in self._settings(nodes) if self._name(_whole(each)) == name)

    def _settings(self, nodes: Collection[ast.AST]) -> Iterator[ast.expr]:
        """Yield what is set, and what is changed in place."""
        for one in nodes:
            match one:
                case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                    yield one
                case ast.Call(func=ast.Attribute(value=owner, attr=name)) if _CHANGES.fullmatch(name):
                    yield owner

    def _is_missing(self, one: ast.If, carried: Collection[str]) -> bool:
        """Return whether a condition asks for what is set below it, and that is made from nothing else."""
        tests = [each for each in ast.walk(one.test) if isinstance(each, (ast.cmpop, ast.Call))]
        is_plain = all(isinstance(each, (ast.Is, ast.NotEq, ast.NotIn)) for each in tests)
        nodes = [node for each in one.body for node in ast.walk(each)]
        is_set = {self._name(_whole(each)) for each in self._settings(nodes)}
        made_of = {node.id for node in nodes if isinstance(node, ast.Name)} & {*self._given}
        asked = {node.id for node in ast.walk(one.test) if isinstance(node, ast.Name)}
        # What is kept by key is made once: of what changes, it would be what that was then.
        by_key = any(isinstance(each, ast.NotIn) for each in tests)
        changing = {self._name(node) for node in nodes if not _is_stored(node)} & {*carried} - is_set
        is_derived = made_of <= asked and not (by_key and changing)
        return is_plain and is_derived and not is_set.isdisjoint(self.names(one.test) & {*carried})

    def used_otherwise(self, block: Sequence[ast.stmt], shown: frozenset[str]) -> frozenset[str]:
        """Return what is used for more than to be shown, and to change what is in ``shown``."""
        found = frozenset[str]()
        for one in block:
            if self._is_quiet(one, shown):
                continue
            inner = [each for part in blocks_of(one) for each in part]
            whole = {node for each in inner for node in ast.walk(each)}
            found |= self.names(one, without={*whole, *self._changed(one)}) | self.used_otherwise(inner, shown)
        return found

    def _is_quiet(self, one: ast.stmt, shown: frozenset[str]) -> bool:
        """Return whether a statement does nothing else than to show values and to change what is in ``shown``."""
        inner = [each for part in blocks_of(one) for each in part]
        if inner:
            is_plain = isinstance(one, (ast.If, ast.For)) and all(self._is_quiet(each, shown) for each in inner)
            heads = [each for each in ast.iter_child_nodes(one) if isinstance(each, ast.expr)]
            targets = self.names(one.target) if isinstance(one, ast.For) else frozenset()
            return is_plain and targets <= shown and all(map(_is_pure, heads))
        changed = self._changed(one)
        names = [self._name(each) for each in changed]
        value = one.value if isinstance(one, (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)) else None
        if changed:
            parts = value.args if isinstance(value, ast.Call) and isinstance(one, ast.Expr) else [one]
            return all(name in shown for name in names) and all(map(_is_pure, parts))
        if isinstance(one, ast.Expr) and isinstance(value, ast.Call) and _shows(value):
            return all(map(_is_pure, (*value.args, *value.keywords)))
        return isinstance(one, _IDLE) or (isinstance(one, ast.Expr) and isinstance(value, ast.Constant))

    def _changed(self, one: ast.stmt) -> list[ast.expr]:
        """Return the attributes and local variables that a statement changes, if it changes nothing else."""
        targets: list[ast.expr] = []
        if isinstance(one, ast.Assign):
            targets = one.targets
        elif isinstance(one, (ast.AugAssign, ast.AnnAssign)):
            targets = [one.target]
        elif (
            isinstance(one, ast.Expr) and isinstance(one.value, ast.Call) and isinstance(one.value.func, ast.Attribute)
        ):
            targets = [one.value.func.value] if _CHANGES.fullmatch(one.value.func.attr) else []
        found = [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
        found = [each.value if isinstance(each, ast.Subscript) else each for each in found]
        return found if all(map(self._name, found)) else []

    def _name(self, one: ast.AST) -> str:
        """Return the name of an attribute of the object, or of a local variable; empty for anything else."""
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id in self._owner:
            return one.attr
        return self._path + one.id if isinstance(one, ast.Name) and one.id in self._locals else ""


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return the parts of an assignment, of ``a, b = 1, 2`` two."""
    is_tuple = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)
    return [*zip(target.elts, value.elts, strict=True)] if is_tuple else [(target, value)]  # type: ignore[attr-defined]


def _whole(one: ast.expr) -> ast.expr:
    """Return what an item is in: of ``self.rows[0][1]``, ``self.rows``."""
    while isinstance(one, ast.Subscript):
        one = one.value
    return one


def _is_made(value: ast.expr) -> bool:
    """Return whether an expression makes a value of its own, to which no other name leads."""
    if isinstance(value, ast.Call):
        return _MAKERS.fullmatch(_last_name(value.func)) is not None
    return not isinstance(
        value, (ast.Name, ast.Attribute, ast.Subscript, ast.IfExp, ast.BoolOp, ast.NamedExpr, ast.Tuple)
    )


def _is_stored(one: ast.AST) -> bool:
    return isinstance(getattr(one, "ctx", None), ast.Store)


def _shows(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute) and ast.unparse(call.func) in _ON_SCREEN:
        return True
    is_print = isinstance(call.func, ast.Name) and call.func.id == "print"
    is_log = isinstance(call.func, ast.Attribute) and call.func.attr != "print"
    return (is_print or is_log) and _SHOWS.fullmatch(_last_name(call.func)) is not None


def _is_pure(one: ast.AST) -> bool:
    """Return whether code calls only what changes nothing."""
    nodes = [*ast.walk(one)]
    if any(isinstance(each, (ast.Lambda, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)) for each in nodes):
        return False
    return all(_changes_nothing(each.func) for each in nodes if isinstance(each, ast.Call))


def _changes_nothing(called: ast.expr) -> bool:
    if isinstance(called, ast.Name):
        return _FUNCTIONS.fullmatch(called.id) is not None
    if not isinstance(called, ast.Attribute):
        return False
    of_module = isinstance(called.value, ast.Name) and _MODULES.fullmatch(called.value.id) is not None
    return of_module or _METHODS.fullmatch(called.attr) is not None


def _last_name(called: ast.expr) -> str:
    return str(getattr(called, "id", getattr(called, "attr", "")))
