"""Tells which files, folders, databases and variables of the environment a call reads and writes.

Guarantees: calls nothing. Any thread.
"""

from __future__ import annotations

import ast
import dbm
import glob
import io
import os
import pathlib
import re
import shelve
from collections.abc import Iterator
from typing import Any

import numpy as np
from mindspore import load_checkpoint, save_checkpoint

from ckptkit.mindspore.inspect.attributes import UNKNOWN, OneOf
from ckptkit.mindspore.inspect.loops.call import Call
from ckptkit.mindspore.inspect.loops.scope import Value
from ckptkit.mindspore.inspect.loops.source import text_of

_OPENS = OneOf(open)
_BOTH = OneOf(shelve.open, dbm.open)  # to read and to write
_ON_DISK = (os.remove, os.unlink, os.mkdir, os.makedirs, os.rmdir)
_READS = OneOf(
    *(np.load, np.loadtxt, np.genfromtxt, np.fromfile, load_checkpoint),
    *(os.path.exists, os.path.isfile, os.path.isdir, os.path.getsize, os.path.getmtime, os.stat),
)
_WRITES = OneOf(np.save, np.savez, np.savez_compressed, np.savetxt, *_ON_DISK)  # to the first argument
_WRITES_SECOND = OneOf(save_checkpoint)
_PATHS = (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.WindowsPath, pathlib.PureWindowsPath)
_GLOBS = OneOf(glob.glob, glob.iglob)
_LISTS = OneOf(os.listdir, os.scandir, os.walk, glob.glob, glob.iglob)
# Methods of a path, of an open file, of an array or a table of any library, and of a database.
_OF_PATHS = {
    **dict.fromkeys(("read_text", "read_bytes", "exists", "is_file", "is_dir", "stat"), (True, False)),
    **dict.fromkeys(("write_text", "write_bytes", "touch", "unlink", "mkdir", "rmdir"), (False, True)),
}
_OF_PATHS_ALONE = ("read_text", "read_bytes", "write_text", "write_bytes", "touch")  # no other object has these
_LISTS_PATHS = ("glob", "rglob", "iterdir", "walk")
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)
_PRINTS = ("write", "writelines")
_BY_NAME = re.compile(r"(?P<reads>read_\w+|fromfile)|(?P<writes>to_(csv|parquet|pickle|json|excel|feather|hdf)|tofile)")
_ASKS_SQL = ("execute", "executemany", "executescript")


def outside_of(call: Call) -> Iterator[tuple[str, bool, bool]]:
    """Yield the names of the files and the like of a call, each with whether it reads and whether it writes it."""
    called, owner = call.called.target, call.owner.target
    if owner is os.environ or called is os.getenv:
        yield variable_of(*call.given[:1]), True, call.name in ("update", "setdefault", "pop")
    elif type(owner).__module__ == "sqlite3" and call.name in _ASKS_SQL:
        asked = call.given[0].target if call.given else ""
        asks = type(asked) is str and asked.lstrip().lower().startswith(("select", "pragma", "with"))
        yield f"the database {text_of(_owner(call))}", asks, not asks
    elif called in _LISTS or (type(owner) in _PATHS and call.name in _LISTS_PATHS):
        node = next(iter(call.nodes), None) if called in _LISTS else _owner(call)
        yield f"folder {_listed(node, by_pattern=called in _GLOBS)}", True, False
    else:
        yield from _files_of(call)


def _files_of(call: Call) -> Iterator[tuple[str, bool, bool]]:
    """Yield the file that a call reads or writes, and the folder that it is written to, as far as these are known."""
    called, owner = call.called.target, call.owner.target
    by_name = _BY_NAME.fullmatch(call.name)
    name = _name_of_file(owner)
    if name:
        if call.name in _PRINTS:
            yield f"file '{name}'", False, True
    elif (type(owner) in _PATHS and (call.name in _OF_PATHS or call.name == "open")) or (
        owner is UNKNOWN and call.name in _OF_PATHS_ALONE
    ):
        reads, writes = _OF_PATHS.get(call.name) or _mode(call, 0)
        yield from _file(call.owner, _owner(call), reads=reads, writes=writes)
    elif called in _OPENS:
        reads, writes = _mode(call, 1)
        yield from _argument(call, 0, reads=reads, writes=writes)
    elif called in _WRITES_SECOND:
        yield from _argument(call, 1, reads=False, writes=True)
    elif called in _BOTH:
        yield from _argument(call, 0, reads=True, writes=True)
    elif called in _READS or called in _WRITES:
        yield from _argument(call, 0, reads=called in _READS, writes=called in _WRITES)
    elif by_name is not None and call.given and type(call.given[0].target) in (str, *_PATHS):
        reads = by_name["reads"] is not None
        yield from _argument(call, 0, reads=reads, writes=not reads)


def _argument(call: Call, at: int, *, reads: bool, writes: bool) -> Iterator[tuple[str, bool, bool]]:
    if len(call.given) > at:
        yield from _file(call.given[at], call.nodes[at], reads=reads, writes=writes)


def _file(path: Value, node: ast.expr, *, reads: bool, writes: bool) -> Iterator[tuple[str, bool, bool]]:
    """Yield a file by its path, or else its expression; if it is written, also the folder that it lies in."""
    is_path = type(path.target) in (str, *_PATHS)  # of no class whose code would run
    match node:
        case ast.Call(func=ast.Attribute(attr="Path") | ast.Name(id="Path"), args=[ast.Constant(value=str(name))]):
            yield f"file '{name}'", reads, writes
        case _:
            yield f"file '{path.target}'" if is_path else f"file {text_of(node)}", reads, writes
    folder = _folder(node) if writes else ""
    if folder:
        yield f"folder {folder}", False, True


def _folder(node: ast.expr) -> str:
    """Return the expression for the folder of a path; empty if it is not seen."""
    match node:
        case ast.BinOp(left=left, op=ast.Div()):
            return text_of(left)
        case ast.Call(func=ast.Attribute(attr="join" | "Path") | ast.Name(id="join" | "Path"), args=[first, _, *_]):
            return text_of(first)
        case ast.JoinedStr(values=[ast.FormattedValue(value=first), ast.Constant(value=str(rest)), *_]):
            return text_of(first) if rest.startswith("/") else repr(".")
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) | ast.Constant(value=str(text)):
            return repr(text.rpartition("/")[0] or ".")
    return ""


def _listed(node: ast.expr | None, *, by_pattern: bool) -> str:
    """Return the expression for a folder that is listed."""
    if not isinstance(node, ast.Constant) or type(node.value) is not str:
        return "'.'" if node is None else text_of(node)
    return repr((node.value.rpartition("/")[0] if by_pattern else node.value.rstrip("/")) or ".")


def _name_of_file(one: Any) -> str:
    """Return the path of an open file; empty if it has none, or if code of the user's would have to tell."""
    raw = one
    while type(raw) in _FILES and type(raw) is not io.FileIO:
        try:
            raw = raw.buffer if type(raw) is io.TextIOWrapper else raw.raw
        except ValueError:  # it is detached
            return ""
    name = raw.name if type(raw) is io.FileIO else ""
    return name if type(name) is str else ""


def variable_of(key: Value | None = None) -> str:
    """Return the name of a variable of the environment; of any of them if it is not known which one."""
    return "os.environ" if key is None or type(key.target) is not str else f"os.environ[{key.target!r}]"


def _owner(call: Call) -> ast.expr:
    return call.node.func.value if isinstance(call.node.func, ast.Attribute) else call.node.func


def _mode(call: Call, at: int) -> tuple[bool, bool]:
    """Return whether a call of `open` reads, and whether it writes."""
    modes = [one.target for one in (*call.given[at : at + 1], call.named.get("mode")) if one is not None]
    mode = next((one for one in modes if type(one) is str), "r")
    return "r" in mode or "+" in mode, not mode.startswith("r") or "+" in mode
