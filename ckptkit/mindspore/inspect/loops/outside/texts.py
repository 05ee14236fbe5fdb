"""Works out texts and paths that code puts together, as far as their parts are known.

Guarantees: computes with texts and paths of Python's own classes only, whose methods it calls; opens no file. Main
thread only.
"""

from __future__ import annotations

import ast
import os
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from ckptkit.mindspore.inspect.attributes import UNKNOWN, OneOf, Symbol, attribute
from ckptkit.mindspore.inspect.loops.calling.call import Call
from ckptkit.mindspore.inspect.loops.scope import Value
from ckptkit.mindspore.inspect.loops.source import text_of

PATHS = (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.WindowsPath, pathlib.PureWindowsPath)
_HOLE = re.compile(r"\{[^{}]*\}")
_FIELD_OF_PERCENT = re.compile(r"%[^a-zA-Z%]*[a-zA-Z%]")
_MAKERS = OneOf(pathlib.Path, pathlib.PurePath, *PATHS)
_SAME = OneOf(str, os.fspath, os.fsdecode)
_GIVE_SAME = OneOf(os.path.abspath, os.path.realpath, os.path.normpath)  # another text for the same file
_JOINS = OneOf(os.path.join)
_PARTS: Sequence[Callable[[str], str]] = (os.path.dirname, os.path.basename, os.path.expanduser)
_METHODS = ("resolve", "absolute", "as_posix", "__str__", "__fspath__")  # of paths; they give the same one
_OF_PATHS = ("parent", "name", "stem", "suffix")
_OF_TEXTS = (
    *("strip", "lstrip", "rstrip", "lower", "upper", "removeprefix", "removesuffix", "replace", "title", "zfill"),
    "casefold",
)


class Text(Symbol):
    """Stands for a path, or for a text of which some parts are not known: their code is in braces.

    Args:
        text: Such as ``"runs/{number}.txt"``.
        is_path: Whether it is a `pathlib.Path`.
    """

    __slots__ = ("_is_path", "_text")

    def __init__(self, text: str, *, is_path: bool = False) -> None:
        self._text = text
        self._is_path = is_path


def spelled(one: Any) -> str | None:
    """Return the text that an object is, or the path that it stands for; None if it is neither."""
    if isinstance(one, Text):
        return one._text
    return str(one) if type(one) in (str, *PATHS) else None  # of no class whose code would run


def is_path(one: Any) -> bool:
    """Return whether it is a path of `pathlib`."""
    return type(one) in PATHS or (isinstance(one, Text) and one._is_path)


def has_gaps(text: str) -> bool:
    """Return whether parts of a text are not known."""
    return _HOLE.search(text) is not None


def told_apart(text: str) -> tuple[str, str]:
    """Return what tells a path from others, however it is written, and what is the same for all that it may be.

    Only what it begins with tells those apart of which a part is not known: a loop writes ``f"{a}.npy"`` and reads
    ``f"{b}.npy"``.
    """
    first = _HOLE.match(text)
    whole = os.path.normpath(text) if first is not None else os.path.abspath(text)
    begin = first.end() if first is not None else 0
    return whole, whole[:begin] + _HOLE.sub("{}", whole[begin:])


def gap(node: ast.expr) -> str:
    """Return what stands for a part of a text that is not known."""
    inner = node.value if isinstance(node, ast.FormattedValue) else node
    return "{" + re.sub(r"[{}/\\]", " ", text_of(inner)) + "}"


def put_together(parts: Sequence[Value], nodes: Sequence[ast.expr]) -> Any:
    """Return the text that is made of parts one after another."""
    texts = [spelled(one.target) for one in parts]
    text = "".join(one if one is not None else gap(node) for one, node in zip(texts, nodes, strict=True))
    return _known(text) if any(texts) else UNKNOWN


def computed(node: ast.expr, parts: Sequence[Value]) -> Any:
    """Return the text or path that an operator makes; `UNKNOWN` for anything else."""
    if not isinstance(node, ast.BinOp) or len(parts) != 2:
        return UNKNOWN
    texts = [spelled(one.target) for one in parts]
    if isinstance(node.op, ast.Add):
        return put_together(parts, (node.left, node.right))
    if isinstance(node.op, ast.Div) and (is_path(parts[0].target) or texts[1] is not None):
        return Text(os.path.join(*_with_gaps(texts, (node.left, node.right))), is_path=True)
    if isinstance(node.op, ast.Mod) and texts[0] is not None and isinstance(node.left, ast.Constant):
        is_tuple = isinstance(node.right, ast.Tuple) and len(node.right.elts) == len(parts[1].items)
        values = parts[1].items if is_tuple else parts[1:]
        nodes = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        return _filled(texts[0], _FIELD_OF_PERCENT, "%s", [spelled(one.target) for one in values], nodes, whole=node)
    return UNKNOWN


def made_text(call: Call) -> Any:
    """Return the text or path that a call gives; `UNKNOWN` if it is none, or nothing of it is known."""
    owner, given = spelled(call.owner.target), [spelled(one.target) for one in call.given]
    if owner is None or not isinstance(call.node.func, ast.Attribute):
        return _of_function(call, given)
    return _of_path(call, owner, given) if is_path(call.owner.target) else _of_text(call, owner, given)


def _of_function(  # noqa: PLR0911 - one return per kind reads as the table that it is
    call: Call, given: Sequence[str | None]
) -> Any:
    """Return what a function or a class gives."""
    called = call.called.target
    if called in _MAKERS:
        return Text(os.path.join("", *_with_gaps(given, call.nodes)) if given else ".", is_path=True)
    if called is os.getcwd:
        return os.getcwd()
    if call.name == "cwd" and call.owner.target in _MAKERS:
        return Text(os.getcwd(), is_path=True)
    if called in _JOINS and any(given):
        return _known(os.path.join(*_with_gaps(given, call.nodes)))
    if not given or given[0] is None:
        return UNKNOWN
    if called in _SAME or called in _GIVE_SAME:
        return _known(given[0])
    part = next((function for function in _PARTS if called is function), None)
    return _known(part(given[0])) if part is not None else UNKNOWN


def part_of(one: Any, name: str) -> Any:
    """Return an attribute, also of a path."""
    if name in _OF_PATHS and is_path(one):
        text = str(getattr(pathlib.PurePath(spelled(one) or ""), name))
        return Text(text, is_path=True) if name == "parent" else _known(text)
    return UNKNOWN if isinstance(one, Symbol) else attribute(one, name)


def _of_path(call: Call, path: str, given: Sequence[str | None]) -> Any:
    """Return what a method of a path gives."""
    name, folder = call.name, os.path.dirname(path)
    if name == "joinpath":
        return Text(os.path.join(path, *_with_gaps(given, call.nodes)), is_path=True)
    if name == "expanduser":
        return Text(os.path.expanduser(path), is_path=True)
    if name in _METHODS:
        return Text(path, is_path=True) if name in ("resolve", "absolute") else _known(path)
    if name in ("with_suffix", "with_name", "with_stem") and len(given) == 1:
        new = _with_gaps(given, call.nodes)[0]
        stem, suffix = os.path.splitext(os.path.basename(path))
        stem, suffix = (stem + suffix, "") if suffix.endswith("}") else (stem, suffix)  # {one.number}
        last = {"with_suffix": stem + new, "with_name": new, "with_stem": new + suffix}[name]
        return Text(os.path.join(folder, last), is_path=True)
    return UNKNOWN


def _of_text(call: Call, text: str, given: Sequence[str | None]) -> Any:
    """Return what a method of a text gives."""
    if call.name == "format":
        return _filled(text, _HOLE, "{}", given, call.nodes, whole=call.node)
    known = [one for one in given if one is not None]
    if call.name not in _OF_TEXTS or len(known) < len(given) or call.named or any(map(has_gaps, (text, *known))):
        return UNKNOWN
    try:
        return getattr(text, call.name)(*known)
    except TypeError:  # the call itself will fail
        return UNKNOWN


def _filled(
    text: str,
    field: re.Pattern[str],
    plain: str,
    given: Sequence[str | None],
    nodes: Sequence[ast.expr],
    *,
    whole: ast.expr,
) -> Any:
    """Return a text whose fields are filled one after another; a gap if they are not.

    Args:
        text: Has the fields.
        field: What a field is like.
        plain: A field that gives a text as it is.
        given: The texts; None for what is none.
        nodes: Their expressions.
        whole: The expression of the filled text.
    """
    fields = field.findall(text)
    is_by_name = any(re.match(r"\{\w|%\(", one) for one in fields)
    if is_by_name or not len(fields) == len(given) == len(nodes):
        return Text(gap(whole))
    parts = [
        one if one is not None and each == plain else gap(node)
        for one, node, each in zip(given, nodes, fields, strict=True)
    ]
    rest = field.split(text)
    return _known("".join(one for pair in zip(rest, [*parts, ""], strict=True) for one in pair))


def _with_gaps(texts: Sequence[str | None], nodes: Sequence[ast.expr]) -> list[str]:
    return [one if one is not None else gap(node) for one, node in zip(texts, nodes, strict=True)]


def _known(text: str) -> Any:
    return Text(text) if has_gaps(text) else text
