"""Names running code as Python 3.11 and newer do: with the functions and classes around it.

Guarantees: runs no user code. Python 3.10 has no such name, so it is read from the source there; without the source it
is the function's own name. Any thread.
"""

from __future__ import annotations

import ast
import functools
import linecache
import types
from collections.abc import Iterator, Mapping


def qualified_name(frame: types.FrameType) -> str:
    """Return the name of what a frame runs, such as ``outer.<locals>.inner`` or ``Kind.method``."""
    code = frame.f_code
    return getattr(code, "co_qualname", None) or name_in_source(code, frame.f_globals)


def name_in_source(code: types.CodeType, module: Mapping[str, object]) -> str:
    """Return the qualified name of code.

    Args:
        code: The code.
        module: The global variables of its module.
    """
    known = module.get(code.co_name)
    if type(known) is types.FunctionType and known.__code__ is code:
        return code.co_name  # spares reading large modules of MindSpore
    return _names_in(code.co_filename).get((code.co_firstlineno, code.co_name), code.co_name)


@functools.lru_cache(maxsize=64)
def _names_in(file: str) -> dict[tuple[int, str], str]:
    """Return the qualified names in a file by first line and name, of two on one line the outer one."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # not Python's, or changed since it was imported
        return {}
    found: dict[tuple[int, str], str] = {}
    for line, name, qualified in _named(tree, ""):
        found.setdefault((line, name), qualified)
    return found


_SCOPES: dict[type[ast.AST], str] = {
    **{ast.Lambda: "<lambda>", ast.ListComp: "<listcomp>", ast.SetComp: "<setcomp>"},
    **{ast.DictComp: "<dictcomp>", ast.GeneratorExp: "<genexpr>"},
}


def _named(node: ast.AST, around: str) -> Iterator[tuple[int, str, str]]:
    """Yield first line, name and qualified name of each function below a node, the outer ones first."""
    for one in ast.iter_child_nodes(node):
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([one.lineno, *(each.lineno for each in one.decorator_list)])
            yield first, one.name, around + one.name
            inside = f"{around}{one.name}." if isinstance(one, ast.ClassDef) else f"{around}{one.name}.<locals>."
        elif isinstance(one, ast.expr) and type(one) in _SCOPES:
            name = _SCOPES[type(one)]
            yield one.lineno, name, around + name
            inside = f"{around}{name}.<locals>."
        else:
            inside = around
        yield from _named(one, inside)
