"""Tells what open files, connections to databases and cursors belong to, also of those that do not exist yet.

Guarantees: asks objects of Python's own classes only; runs no SQL. Main thread only.
"""

from __future__ import annotations

import csv
import gc
import io
import os
import types
from typing import Any, NamedTuple

from ckptkit.mindspore.inspect.attributes import Symbol, own_attributes
from ckptkit.mindspore.inspect.loops.outside.texts import told_apart

IN_MEMORY = "database in memory"  # what the key of one begins with
_OF_TABLES = (type(csv.writer(io.StringIO())), type(csv.reader(())))
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)


class Thing(NamedTuple):
    """Identifies a file, a folder, a database or a variable of the environment.

    Attributes:
        key: Tells it from others.
        shown: What people call it.
        alike: What all have in common of which it may be one; empty if it is known which one it is.
        within: The folder, or the environment, that it lies in; empty if that does not become another one.
        around: What people call that.
    """

    key: str
    shown: str
    alike: str = ""
    within: str = ""
    around: str = ""


class Handle(Symbol):
    """Stands for an open file, a connection or a cursor.

    Attributes:
        thing: What is read and written by it.
        is_database: Whether it is a connection or a cursor.
        reads: Whether it can read.
        writes: Whether it can write.
    """

    __slots__ = ("is_database", "reads", "thing", "writes")

    def __init__(self, thing: Thing, *, is_database: bool = False, reads: bool = True, writes: bool = True) -> None:
        self.thing = thing
        self.is_database = is_database
        self.reads = reads
        self.writes = writes


def file_at(text: str, shown: str = "") -> Thing:
    """Return the file of that path."""
    key, alike = told_apart(text)
    around = f"folder '{os.path.dirname(text) or '.'}'"
    folder = os.path.dirname(alike) or os.getcwd()
    return Thing(key, shown or f"file '{text}'", alike if alike != key else "", folder, around)


def folder_at(text: str) -> Thing:
    """Return what lies in the folder of that path."""
    return Thing(f"in {told_apart(text)[1]}", f"folder '{text}'")


def variable(name: str | None) -> Thing:
    """Return the variable of the environment of that name; all of them if the name is not known."""
    if name is None:
        return Thing("in os.environ", "os.environ")
    shown = f"os.environ[{name!r}]"
    return Thing(shown, shown, within="os.environ", around="os.environ")


def database_at(path: str) -> Thing:
    """Return the database in that file."""
    return file_at(path, f"the database '{path}'")


def opened_by(one: Any, text: str) -> Handle | None:
    """Return what an open file, connection or cursor belongs to; None for other objects.

    Args:
        one: Any object.
        text: What a connection is called.
    """
    if isinstance(one, Handle):
        return one
    connection = connection_of(one)
    if connection is not None:
        return Handle(Thing(f"database {id(connection)}", f"the database {text}"), is_database=True)
    raw = _raw(one)
    if raw is None or type(raw.name) is not str or raw.name.startswith("<"):
        return None
    try:
        return Handle(file_at(raw.name), reads=raw.readable(), writes=raw.writable())
    except ValueError:  # it is closed
        return None


def connection_of(one: Any) -> Any:
    """Return the connection that an object of `sqlite3` is or has; None for other objects."""
    kind = type(one)
    if kind.__module__ != "sqlite3" or kind.__name__ not in ("Connection", "Cursor"):
        return None
    return one.connection if kind.__name__ == "Cursor" else one


def _is_of_file(one: Any) -> bool:
    """Return whether it is an open file, or a method of one."""
    return type(one) in _FILES or (type(one) is types.BuiltinMethodType and type(one.__self__) in _FILES)


def _raw(one: Any) -> io.FileIO | None:
    """Return the file below an open file; None if it has none, or if code of the user's would have to tell."""
    raw: Any = own_attributes(one).get("writer") if type(one) is csv.DictWriter else one
    if type(raw) in _OF_TABLES:
        raw = next((getattr(each, "__self__", each) for each in gc.get_referents(raw) if _is_of_file(each)), raw)
    while type(raw) in _FILES and type(raw) is not io.FileIO:
        try:
            raw = raw.buffer if type(raw) is io.TextIOWrapper else raw.raw
        except ValueError:  # it is detached
            return None
    return raw if type(raw) is io.FileIO else None
