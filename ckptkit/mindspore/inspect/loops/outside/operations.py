"""Tells which files, folders, databases and variables of the environment a call reads and writes.

Guarantees: calls nothing. Main thread only.
"""

from __future__ import annotations

import ast
import bz2
import codecs
import csv
import dbm
import gzip
import io
import lzma
import os
import re
import shelve
import shutil
import tarfile
import types
import zipfile
from collections.abc import Iterator
from glob import glob, iglob
from typing import Any, NamedTuple

import numpy as np
from mindspore import load_checkpoint, save_checkpoint

from ckptkit.mindspore.inspect.attributes import UNKNOWN, OneOf
from ckptkit.mindspore.inspect.loops.calling.call import Call
from ckptkit.mindspore.inspect.loops.outside.handles import (
    IN_MEMORY,
    Handle,
    Thing,
    database_at,
    file_at,
    folder_at,
    variable,
)
from ckptkit.mindspore.inspect.loops.outside.texts import gap, has_gaps, is_path, spelled
from ckptkit.mindspore.inspect.loops.scope import Value
from ckptkit.mindspore.inspect.loops.source import text_of

_OPENS = OneOf(open, io.open, io.FileIO, codecs.open, gzip.open, bz2.open, lzma.open, zipfile.ZipFile, tarfile.open)
_BOTH = OneOf(shelve.open, dbm.open)  # to read and to write
_READS = OneOf(
    *(np.load, np.loadtxt, np.genfromtxt, np.fromfile, load_checkpoint),
    *(os.path.exists, os.path.lexists, os.path.isfile, os.path.isdir, os.path.getsize, os.path.getmtime, os.stat),
    *(os.path.getctime, os.path.getatime, os.path.islink, os.access, os.lstat),
)
_MAKES = OneOf(np.savez, np.savez_compressed, np.savetxt, os.remove, os.unlink, os.mkdir, os.rmdir)
_MAYBE_MAKES = OneOf(os.makedirs, os.truncate, os.utime)
_SUFFIXES = {"save": ".npy", "savez": ".npz", "savez_compressed": ".npz"}  # that functions of NumPy add
_MOVES = OneOf(os.rename, os.replace, os.renames, shutil.move)
_COPIES = OneOf(shutil.copy, shutil.copy2, shutil.copyfile, shutil.copytree, os.link, os.symlink)
_LISTS = OneOf(os.listdir, os.scandir, os.walk, glob, iglob)
_GLOBS = OneOf(glob, iglob)
# Methods of a path: whether each reads and writes, and whether nothing is left of what was there.
_OF_PATHS = {
    **dict.fromkeys(("read_text", "read_bytes", "exists", "is_file", "is_dir", "stat"), (True, False, False)),
    **dict.fromkeys(("write_text", "write_bytes", "unlink", "rmdir"), (False, True, True)),
    **dict.fromkeys(("touch", "mkdir"), (False, True, False)),
}
_OF_PATHS_ALONE = ("read_text", "read_bytes", "write_text", "write_bytes", "touch")  # no other object has these
_LISTS_PATHS = ("glob", "rglob", "iterdir", "walk")
_PRINTS = ("write", "writelines", "truncate", "writerow", "writerows", "writeheader", "writestr", "add")
# Methods of an open file, a connection or a cursor that give nothing of what is in it.
_SETS = re.compile(
    r"close|flush|fileno|isatty|readable|writable|seekable|sync|cursor|commit|rollback|interrupt"
    r"|(set|create|enable)_\w+|__(enter|exit)__"
)
_TELLS = ("tell", "seek")
_BY_NAME = re.compile(r"(?P<reads>read_\w+|fromfile)|(?P<writes>to_(csv|parquet|pickle|json|excel|feather|hdf)|tofile)")
_CONNECTS = (("sqlite3", "connect"), ("sqlite3", "Connection"), ("sqlite3.dbapi2", "connect"))
_ASKS_SQL = ("execute", "executemany", "executescript")
_SQL = re.compile(r"\s*(?P<asks>select|pragma|with|values|explain)|\s*(?P<tells>[a-z]+)", re.IGNORECASE)
_WRAPS = OneOf(csv.writer, csv.reader, iter, enumerate)


class Use(NamedTuple):
    """Says what is done with something outside of the process.

    Attributes:
        whole: Whether nothing is left of what was written to it before.
        sweeps: Whether also with all that lies in it.
        source: What it is copied from.
    """

    thing: Thing
    reads: bool = False
    writes: bool = False
    whole: bool = False
    sweeps: bool = False
    source: Thing | None = None


def uses_of(call: Call, owner: Handle | None, handles: list[Handle]) -> Iterator[Use]:
    """Yield what a call does outside of the process.

    Args:
        call: Of code that is not the user's.
        owner: What its object belongs to, if that is open.
        handles: What its arguments belong to.
    """
    called = call.called.target
    if call.owner.target is os.environ or called is os.getenv:
        yield from _of_the_environment(call)
    elif owner is not None:
        yield from _by_handle(call, owner)
    elif called in _LISTS or (is_path(call.owner.target) and call.name in _LISTS_PATHS):
        yield Use(_listed(call), reads=True)
    elif called in _MOVES or called in _COPIES or (is_path(call.owner.target) and call.name in ("rename", "replace")):
        yield from _moved(call)
    elif called is shutil.rmtree and call.given:
        yield Use(_file(call.given[0], call.nodes[0]), writes=True, whole=True)
        yield Use(_folder(call.given[0], call.nodes[0]), writes=True, whole=True, sweeps=True)
    else:
        yield from _of_files(call)
    for one in handles:
        by_name = _BY_NAME.fullmatch(call.name)
        writes = call.name.startswith("to_") if one.is_database else one.writes and not (by_name and by_name["reads"])
        yield Use(one.thing._replace(within=""), reads=one.reads, writes=writes)


def opened(call: Call, handles: list[Handle]) -> Handle | None:
    """Return what a call opens; None if it opens nothing, or it is not known what.

    Args:
        call: Of code that is not the user's.
        handles: What its arguments belong to.
    """
    called = call.called.target
    if _connects(called):
        path = spelled(call.given[0].target) if call.given else None
        node = call.nodes[0] if call.given else call.node
        if path == ":memory:":
            return Handle(Thing(f"{IN_MEMORY} {id(call.node)}", f"the database {text_of(call.node)}"), is_database=True)
        return Handle(database_at(path if path is not None else gap(node)), is_database=True)
    if handles:
        is_wrapper = isinstance(called, type) and called.__module__ != "builtins"
        return handles[0] if is_wrapper or called in _WRAPS or called in _OPENS or call.name == "closing" else None
    if called in _BOTH and (at := _argument(call, 0, "filename")) is not None:
        return Handle(_file(*at))
    at = _opening(call)
    if at is None:
        return None
    reads, writes, _ = _mode(call, 0 if at[1] is _owner(call) else 1)
    return Handle(_file(*at), reads=reads, writes=writes)


def begins_empty(call: Call) -> bool:
    """Return whether a call makes a database in memory."""
    return _connects(call.called.target) and bool(call.given) and call.given[0].target == ":memory:"


def _connects(called: Any) -> bool:
    """Return whether it opens a database."""
    is_plain = type(called) in (type, types.FunctionType, types.BuiltinFunctionType)
    return is_plain and (str(called.__module__).lstrip("_"), called.__name__) in _CONNECTS


def _of_the_environment(call: Call) -> Iterator[Use]:
    name = call.given[0].target if call.given else None
    one = variable(name if type(name) is str else None)
    if call.name == "update":
        yield from (Use(variable(each), writes=True, whole=True) for each in call.named if each is not None)
        if call.given or None in call.named:
            yield Use(variable(None), writes=True, sweeps=True)
    elif call.name in ("setdefault", "pop", "popitem", "clear"):
        is_any = not one.within
        yield Use(one, reads=True, writes=True, whole=call.name == "pop" and not is_any, sweeps=is_any)
    else:
        yield Use(one, reads=True)


def _by_handle(call: Call, one: Handle) -> Iterator[Use]:
    """Yield what a method of an open file, a connection or a cursor does."""
    thing = one.thing._replace(within="")
    if one.is_database and call.name in _ASKS_SQL:
        asked = _SQL.match((spelled(call.given[0].target) if call.given else None) or "")
        is_known = asked is not None
        returns = is_known and "returning" in (spelled(call.given[0].target) or "").lower()
        reads = not is_known or asked["asks"] is not None or returns  # type: ignore[index]
        yield Use(thing, reads=reads, writes=not is_known or asked["tells"] is not None)  # type: ignore[index]
    elif call.name in _PRINTS:
        yield Use(thing, writes=True)
    elif call.name in _TELLS or (one.reads and not _SETS.fullmatch(call.name)):
        yield Use(thing, reads=True, writes=call.name in ("update", "setdefault", "pop", "clear"))


def _moved(call: Call) -> Iterator[Use]:
    """Yield what a call does that copies or moves a file or a folder."""
    is_method = is_path(call.owner.target)
    first = (call.owner, _owner(call)) if is_method else _argument(call, 0, "src")
    second = _argument(call, 0, "target") if is_method else _argument(call, 1, "dst")
    if first is None or second is None:
        return
    source, target = _file(*first), _file(*second)
    path, name = spelled(second[0].target), spelled(first[0].target)
    is_into = path is not None and not has_gaps(path) and (path.endswith("/") or os.path.isdir(path))
    if is_into and path is not None and name is not None and call.name in ("copy", "copy2", "move"):
        target = file_at(os.path.join(path, os.path.basename(name)))
    yield Use(target, writes=True, whole=True, source=source)
    yield Use(_folder(*second), writes=True, whole=True, sweeps=True, source=source)
    if is_method or call.called.target in _MOVES:
        yield Use(source, writes=True, whole=True)


def _of_files(call: Call) -> Iterator[Use]:
    """Yield the file that a call reads or writes, as far as it is known."""
    called, owner = call.called.target, call.owner.target
    by_name = _BY_NAME.fullmatch(call.name)
    at = _opening(call)
    if at is not None:
        reads, writes, whole = _mode(call, 0 if at[1] is _owner(call) else 1)
        yield Use(_file(*at), reads=reads and not whole, writes=writes, whole=whole)
    elif (is_path(owner) and call.name in _OF_PATHS) or (owner is UNKNOWN and call.name in _OF_PATHS_ALONE):
        reads, writes, whole = _OF_PATHS[call.name]
        yield Use(_file(call.owner, _owner(call)), reads=reads, writes=writes, whole=whole)
    elif called is save_checkpoint:
        yield from _at(call, 1, "ckpt_file_name", writes=True, whole=True)
    elif called in _BOTH:
        yield from _at(call, 0, "filename", reads=True, writes=True)
    elif called in _READS:
        yield from _at(call, 0, "file", reads=True)
    elif called in _MAKES or called is np.save or called in _MAYBE_MAKES:
        yield from _at(call, 0, "file", writes=True, whole=called not in _MAYBE_MAKES, suffix=_suffix(called))
    elif by_name is not None and call.given and spelled(call.given[0].target) is not None:
        reads = by_name["reads"] is not None
        yield from _at(call, 0, "", reads=reads, writes=not reads, whole=not reads and "mode" not in call.named)


def _opening(call: Call) -> tuple[Value, ast.expr] | None:
    """Return the path that a call opens a file at; None if it opens none."""
    if call.called.target in _OPENS:
        return _argument(call, 0, "file")
    return (call.owner, _owner(call)) if is_path(call.owner.target) and call.name == "open" else None


def _at(
    call: Call, at: int, name: str, *, suffix: str = "", reads: bool = False, writes: bool = False, whole: bool = False
) -> Iterator[Use]:
    found = _argument(call, at, name)
    if found is not None and not isinstance(found[0].target, Handle) and type(found[0].target).__module__ != "_io":
        yield Use(_file(*found, suffix), reads=reads, writes=writes, whole=whole)


def _suffix(called: Any) -> str:
    return _SUFFIXES.get(called.__name__, "") if called in OneOf(np.save, np.savez, np.savez_compressed) else ""


def _argument(call: Call, at: int, name: str) -> tuple[Value, ast.expr] | None:
    """Return an argument and its expression, by its position or its name."""
    if len(call.given) > at:
        return call.given[at], call.nodes[at]
    nodes = {one.arg: one.value for one in call.node.keywords}
    return (call.named[name], nodes[name]) if name in nodes else None


def _file(path: Value, node: ast.expr, suffix: str = "") -> Thing:
    """Return a file by its path, or else by its expression."""
    text = spelled(path.target)
    if text is None:
        return file_at(gap(node), f"file {text_of(node)}")
    text += "" if text.endswith(suffix) else suffix
    return file_at(text, f"file {text_of(node)}" if has_gaps(text) and not isinstance(node, ast.Name) else "")


def _folder(path: Value, node: ast.expr) -> Thing:
    text = spelled(path.target)
    return folder_at(text if text is not None else gap(node))


def _listed(call: Call) -> Thing:
    """Return the folder that a call lists."""
    if call.called.target not in _LISTS:
        return _folder(call.owner, _owner(call))
    at = _argument(call, 0, "path")
    if at is None:
        return folder_at(".")
    text = spelled(at[0].target)
    if text is None or call.called.target not in _GLOBS:
        return _folder(*at)
    return folder_at(os.path.dirname(re.split(r"[*?\[]", text)[0]) or ".")


def _owner(call: Call) -> ast.expr:
    return call.node.func.value if isinstance(call.node.func, ast.Attribute) else call.node.func


def _mode(call: Call, at: int) -> tuple[bool, bool, bool]:
    """Return whether a call of `open` reads, whether it writes, and whether nothing is left of what was there."""
    given = [one.target for one in (*call.given[at : at + 1], call.named.get("mode")) if one is not None]
    mode = given[0] if given else "r"
    if type(mode) is not str:
        return True, True, False
    whole = mode.startswith(("w", "x"))
    return "r" in mode or "+" in mode, not mode.startswith("r") or "+" in mode, whole
