"""Reads the source of code that runs or is called, as syntax trees.

Guarantees: reads each source file once; returns nothing for code without source. An attribute or a variable that the
code names by a string, such as ``vars(one)["name"]``, is in the tree as if it was named without one. Any thread.
"""

from __future__ import annotations

import ast
import functools
import linecache
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
BY_NAME = ("getattr", "setattr", "hasattr")
TRIES: tuple[type[ast.stmt], ...] = (ast.Try, getattr(ast, "TryStar", ast.Try))  # Python 3.10 has only one
_RUN_ONCE = (ast.With, ast.AsyncWith, ast.If, ast.Match, *TRIES)  # compound statements that are no loops


def body_of(code: types.CodeType, module: Mapping[str, Any]) -> Sequence[ast.stmt]:
    """Return the statements of a function or a module; of a lambda, the return of its expression."""
    lines = tuple(linecache.getlines(code.co_filename, dict(module)))
    return _bodies(lines).get((code.co_name, 0 if code.co_name == "<module>" else code.co_firstlineno), ())


def compiled_body_of(function: types.FunctionType) -> Sequence[ast.stmt]:
    """Return the statements that a function was compiled from, as written; nothing if its file has changed since."""
    code = function.__code__
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    bodies, codes = _compiled(text).get((code.co_name, code.co_firstlineno), ([], []))
    return bodies[0] if len(bodies) == 1 and any(_is_same(one, code) for one in codes) else ()


def ahead(body: Sequence[ast.stmt], line: int) -> list[ast.stmt]:
    """Return the statements left to run when ``line`` is running; an enclosing loop is kept whole."""
    found: list[ast.stmt] = []
    for one in body:
        if line > (one.end_lineno or one.lineno):
            continue
        if one.lineno <= line and isinstance(one, _RUN_ONCE):
            inside = [part for part in blocks_of(one) if part and line <= (part[-1].end_lineno or 0)]
            found += ahead(inside[0], line) if inside else []
        else:
            found.append(one)
    return found


def behind(body: Sequence[ast.stmt], line: int) -> list[ast.stmt]:
    """Return the statements that were run, at most once, before ``line``; of an enclosing loop none."""
    found: list[ast.stmt] = []
    for one in body:
        if (one.end_lineno or one.lineno) < line:
            found.append(one)
        elif one.lineno <= line and isinstance(one, _RUN_ONCE):
            inside = [part for part in blocks_of(one) if part and part[0].lineno <= line <= (part[-1].end_lineno or 0)]
            found += behind(inside[0], line) if inside else []
    return found


def blocks_of(one: ast.stmt) -> list[list[ast.stmt]]:
    """Return the blocks of a statement in the order in which they are written."""
    parts = [one, *getattr(one, "handlers", []), *getattr(one, "cases", [])]
    return [
        *(getattr(part, "body", []) for part in parts),
        *(getattr(one, name, []) for name in ("orelse", "finalbody")),
    ]


@functools.lru_cache(maxsize=16_384)
def text_of(node: ast.AST) -> str:
    """Return the code of a node of a body; the same node is read again and again."""
    return ast.unparse(node)


def returns_one(body: Sequence[ast.stmt]) -> bool:
    """Return whether a function returns the same expression wherever it ends."""
    found: set[str] = set()
    waiting: list[ast.AST] = [*body]
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.Return):
            found.add(text_of(one))
        elif not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.expr)):
            waiting += ast.iter_child_nodes(one)
    return len(found) == 1 and isinstance(body[-1], ast.Return)


def result_of(one: ast.stmt) -> ast.expr | None:
    """Return the expression whose result a statement does not use, also where it waits for it; None for others."""
    if not isinstance(one, ast.Expr):
        return None
    return one.value.value if isinstance(one.value, ast.Await) else one.value


def reads_itself(one: ast.Assign | ast.AnnAssign | ast.AugAssign, target: ast.expr) -> bool:
    """Return whether the assigned value is made of the target, so that it is another one each time."""
    if isinstance(one, ast.AugAssign) or one.value is None:
        return True
    name = text_of(target)
    return any(isinstance(each, type(target)) and text_of(each) == name for each in ast.walk(one.value))


def guards_of(  # noqa: PLR0911 - one return per kind reads as the table that it is
    test: ast.expr, places: Callable[[ast.AST], set[T]], *, missing: bool = True
) -> list[set[T]]:
    """Return what a condition says is missing or of another size; one of each set must be.

    Args:
        test: The condition.
        places: Returns the places that an expression names.
        missing: Otherwise, what it says is there.
    """
    match test:
        case ast.BoolOp():
            found = [guards_of(one, places, missing=missing) for one in test.values]
            if isinstance(test.op, ast.And) == missing:
                return [each for one in found for each in one]
            each_asks = all(each for one in found for each in one)  # or else it is also filled for another reason
            return [set().union(*(each for one in found for each in one)) if each_asks else set()]
        case ast.UnaryOp(op=ast.Not()):
            return guards_of(test.operand, places, missing=not missing)
        case ast.Name() | ast.Attribute() | ast.Call(func=ast.Name(id="hasattr")):
            return [set() if missing else places(test)]
        case ast.Compare(ops=[ast.Is() | ast.NotIn() | ast.IsNot() | ast.In()]):
            says_missing = isinstance(test.ops[0], (ast.Is, ast.NotIn))
            is_item = isinstance(test.ops[0], (ast.In, ast.NotIn))
            asked = test.comparators[0] if is_item else test.left
            return [places(asked) if says_missing == missing else set()]
        case ast.Compare():
            return [set().union(*(places(one) for one in (test.left, *test.comparators)))]
    return [set()]


@functools.lru_cache(maxsize=16)
def _compiled(text: str) -> Mapping[tuple[str, int], tuple[list[Sequence[ast.stmt]], list[types.CodeType]]]:
    """Return the bodies and the code objects of the functions of a file, by name and first line."""
    found: dict[tuple[str, int], tuple[list[Sequence[ast.stmt]], list[types.CodeType]]] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the import has given them
            tree, whole = ast.parse(text), compile(text, "", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError):  # the file has changed
        return found
    for one in ast.walk(tree):
        if isinstance(one, ast.FunctionDef):
            first = min([one.lineno, *(each.lineno for each in one.decorator_list)])
            found.setdefault((one.name, first), ([], []))[0].append(one.body)
    for code in _inner(whole):
        if (code.co_name, code.co_firstlineno) in found:
            found[code.co_name, code.co_firstlineno][1].append(code)
    return found


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield one
            yield from _inner(one)


def _is_same(one: types.CodeType, other: types.CodeType) -> bool:
    names = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_firstlineno")
    if any(getattr(one, name) != getattr(other, name) for name in names) or len(one.co_consts) != len(other.co_consts):
        return False
    return all(
        _is_same(mine, its) if isinstance(mine, types.CodeType) and isinstance(its, types.CodeType) else mine == its
        for mine, its in zip(one.co_consts, other.co_consts, strict=True)
    )


@functools.lru_cache(maxsize=64)
def _bodies(lines: tuple[str, ...]) -> Mapping[tuple[str, int], Sequence[ast.stmt]]:
    """Return each body, by the name and first line that its code object has."""
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):  # the file has changed
        return {}
    tree = _Simpler().visit(tree)
    found: dict[tuple[str, int], Sequence[ast.stmt]] = {("<module>", 0): tree.body}
    for one in ast.walk(tree):
        if isinstance(one, ast.Lambda):
            found[("<lambda>", one.lineno)] = [ast.copy_location(ast.Return(one.body), one)]
        elif isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found[(one.name, min([one.lineno, *(each.lineno for each in one.decorator_list)]))] = one.body
    return found


class _Simpler(ast.NodeTransformer):
    """Replaces what names an attribute or a variable by a constant string, and decorators in loops."""

    def __init__(self) -> None:
        self._loops = 0  # around the node, in the same function

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Count the loops around the nodes in it."""
        is_loop = isinstance(node, (ast.For, ast.AsyncFor, ast.While))
        self._loops += is_loop
        super().generic_visit(node)
        self._loops -= is_loop
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt | list[ast.stmt]:
        """Replace ``@decorator`` in a loop, where no iteration finds the function of the one before, by a call."""
        loops, self._loops = self._loops, 0
        self.generic_visit(node)
        self._loops = loops
        wraps = [one for one in node.decorator_list if text_of(one).startswith(("functools.wraps(", "wraps("))]
        if not (loops or wraps == node.decorator_list) or not node.decorator_list:
            return node
        value: ast.expr = ast.copy_location(ast.Name(node.name, ast.Load()), node)
        for one in reversed([each for each in node.decorator_list if each not in wraps]):
            value = ast.copy_location(ast.Call(one, [value], []), node)
        target = ast.copy_location(ast.Name(node.name, ast.Store()), node)
        node.lineno, node.decorator_list = min(one.lineno for one in node.decorator_list), []  # where its code begins
        if not isinstance(value, ast.Call):
            return node
        begun = ast.copy_location(ast.Constant(None), node)  # the decorator gets the new function, and no earlier one
        first, last = (ast.copy_location(ast.Assign([target], one), node) for one in (begun, value))
        return [first, node, last]

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | list[ast.stmt]:
        """Replace ``object.__setattr__(one, "name", value)`` and ``vars(one).update(name=value)`` by assignments."""
        self.generic_visit(node)
        match node.value:
            case ast.Call(func=ast.Attribute(attr="__setattr__"), args=[owner, ast.Constant(str(name)), value]):
                return _assigned(owner, name, value, node)
            case ast.Call(func=ast.Attribute(value=owner, attr="__setattr__"), args=[ast.Constant(str(name)), value]):
                return _assigned(owner, name, value, node)
            case ast.Call(func=ast.Attribute(value=whole, attr="update"), args=[], keywords=[_, *_] as given):
                updated = _owner_of(whole)
                if updated is not None and all(one.arg is not None for one in given):
                    return [_assigned(updated, str(one.arg), one.value, node) for one in given]
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Replace ``getattr(one, "name")``, also with a constant for what is missing, and ``vars(one).get("name")``."""
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Attribute(value=whole, attr="get" | "pop"), args=[ast.Constant(str()), *_] as given):
                owner = _owner_of(whole)
                if owner is None:
                    return node
                asked = ast.copy_location(ast.Name("getattr", ast.Load()), node)
                return self.visit_Call(ast.copy_location(ast.Call(asked, [owner, *given], []), node))
            case (
                ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(str(name))])
                | ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(str(name)), ast.Constant()])
            ):
                return ast.copy_location(ast.Attribute(owner, name, ast.Load()), node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Replace ``vars(one)["name"]``, ``one.__dict__["name"]`` and ``globals()["name"]``."""
        self.generic_visit(node)
        if not isinstance(node.slice, ast.Constant) or not isinstance(node.slice.value, str):
            return node
        name, owner = node.slice.value, _owner_of(node.value)
        if owner is not None:
            return ast.copy_location(ast.Attribute(owner, name, node.ctx), node)
        is_global = isinstance(node.value, ast.Call) and ast.unparse(node.value) == "globals()"
        return ast.copy_location(ast.Name(name, node.ctx), node) if is_global else node


def _owner_of(node: ast.expr) -> ast.expr | None:
    """Return the object whose attributes ``vars(one)`` and ``one.__dict__`` are; None for other expressions."""
    match node:
        case ast.Call(func=ast.Name(id="vars"), args=[owner]) | ast.Attribute(value=owner, attr="__dict__"):
            return owner
    return None


def _assigned(owner: ast.expr, name: str, value: ast.expr, node: ast.stmt) -> ast.stmt:
    target = ast.copy_location(ast.Attribute(owner, name, ast.Store()), node)
    return ast.copy_location(ast.Assign([target], value), node)
