"""Records what a loop asks child processes, and what is at the other end of a connection.

What they keep is in no checkpoint. A child process keeps nothing if its program is known to compute with what it is
given, such as ``awk``, or a Python program that opens nothing.

Guarantees: calls nothing of the user's; starts no process. Reads a script of Python that a child process would run.
Main thread only.
"""

from __future__ import annotations

import ast
import asyncio
import http.client
import linecache
import multiprocessing.connection
import multiprocessing.managers
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence

from ckptkit.mindspore.inspect.attributes import UNKNOWN, OneOf
from ckptkit.mindspore.inspect.loops.calling.call import Call
from ckptkit.mindspore.inspect.loops.containers import items_of
from ckptkit.mindspore.inspect.loops.effects import changes
from ckptkit.mindspore.inspect.loops.flow import Flow
from ckptkit.mindspore.inspect.loops.objects import Objects
from ckptkit.mindspore.inspect.loops.outside import Outside
from ckptkit.mindspore.inspect.loops.outside.texts import spelled
from ckptkit.mindspore.inspect.loops.scope import DATA, Place, Sources, Value
from ckptkit.mindspore.inspect.loops.source import text_of

ELSEWHERE = "what is kept elsewhere"  # by another process
_BY_SHELL = OneOf(
    os.system, os.popen, subprocess.getoutput, subprocess.getstatusoutput, asyncio.create_subprocess_shell
)
_RUNS = OneOf(
    *(subprocess.run, subprocess.call, subprocess.check_call, subprocess.check_output, subprocess.Popen),
    asyncio.create_subprocess_exec,
)
CONNECTIONS = (
    *(socket.socket, http.client.HTTPConnection, multiprocessing.managers.BaseProxy),
    *(multiprocessing.connection._ConnectionBase, asyncio.StreamReader, asyncio.StreamWriter),
)
_ASKS = re.compile(r"send\w*|recv\w*|read\w*|write\w*|request|getresponse|accept|drain|fetch\w*")
_SETS = re.compile(r"close|fileno|set\w+|shutdown|detach|bind|listen|connect\w*|poll|getpeername|getsockname")
_SHELLS = ("sh", "bash", "dash", "zsh")
_STEPS = re.compile(r"\|\||&&|\$\(|[|;&\n`()]")  # between the commands of a shell
_PURE = (
    *("awk", "gawk", "mawk", "bc", "expr", "echo", "printf", "cat", "wc", "head", "tail", "sort", "uniq", "cut", "tr"),
    *(
        "grep",
        "egrep",
        "seq",
        "test",
        "[",
        "true",
        "false",
        "sleep",
        "date",
        "hostname",
        "uname",
        "nproc",
        "free",
        "ls",
    ),
    *("df", "du", "ps", "git", "nvidia-smi", "npu-smi", "md5sum", "sha256sum", "cksum", "jq", "rev", "paste", "stat"),
)
_PURE_MODULES = (
    *("math", "cmath", "sys", "json", "struct", "statistics", "hashlib", "base64", "re", "itertools", "functools"),
    *(
        "collections",
        "decimal",
        "fractions",
        "string",
        "time",
        "zlib",
        "bisect",
        "heapq",
        "operator",
        "numpy",
        "binascii",
    ),
)
_OPENS = ("open", "exec", "eval", "compile", "__import__", "input", "memmap", "tofile", "save", "savez", "savetxt")


class Answers:
    """Records what others are asked.

    Args:
        flow: Records what is read and written.
        objects: Knows the objects that code names.
        outside: Knows the files that code reads and writes.
    """

    def __init__(self, flow: Flow, objects: Objects, outside: Outside) -> None:
        self._flow = flow
        self._objects = objects
        self._outside = outside

    def of(self, call: Call) -> Sources:
        """Record what a call tells and asks; return what it reads."""
        called, owner = call.called.target, call.owner.target
        if called in _RUNS or called in _BY_SHELL:
            return self._child(call)
        is_told = any(DATA in one.sources for one in call.arguments)
        if called is urllib.request.urlopen or getattr(called, "__module__", None) == "requests.api":
            return self._asks(call, Place("network", ELSEWHERE), writes=is_told)
        if isinstance(owner, CONNECTIONS) and not _SETS.fullmatch(call.name):
            is_told |= _ASKS.fullmatch(call.name) is not None or changes(call.name, owner)
            return self._asks(call, Place(id(owner), ELSEWHERE), writes=is_told)
        return frozenset()

    def _asks(self, call: Call, place: Place, *, writes: bool) -> Sources:
        function = call.node.func
        is_method = isinstance(function, ast.Attribute) and isinstance(place.within, int)
        named = function.value if isinstance(function, ast.Attribute) and is_method else function
        self._objects.note(f"{call.scope.path}{text_of(named)}{'' if is_method else '()'}", None, place)
        if writes:
            self._flow.write(place, call.sources | {DATA}, call.scope, whole=False)
        return self._flow.read(place, call.scope)

    def _child(self, call: Call) -> Sources:
        """Record a child process: all of them are one thing, since they may use the same files."""
        words = _words(call)
        text = " ".join(one for one in words if one is not None)
        found = frozenset[Place]()
        is_pure = _is_pure(words, by_shell=_is_by_shell(call))
        for place in self._outside.mentioned(text):
            found |= self._flow.read(place, call.scope)
            if not is_pure:
                self._flow.write(place, call.sources | {DATA}, call.scope, whole=False)
        return found if is_pure else found | self._asks(call, Place("child processes", ELSEWHERE), writes=True)


def _is_by_shell(call: Call) -> bool:
    shell = [one.value for one in call.node.keywords if one.arg == "shell"]
    asked = bool(shell) and not (isinstance(shell[0], ast.Constant) and not shell[0].value)
    return asked or call.called.target in _BY_SHELL


def _words(call: Call) -> list[str | None]:
    """Return the program and its arguments, as far as they are known; of a shell, the one text."""
    if call.called.target is asyncio.create_subprocess_exec:
        return [spelled(one.target) for one in call.given]
    one = call.given[0] if call.given else call.named.get("args", Value())
    if spelled(one.target) is not None:
        return [spelled(one.target)]
    if one.target is not UNKNOWN:
        return [spelled(each) for each in items_of(one.target, 64)] or [None]
    return [spelled(each.target) for each in one.items] or [None]


def _is_pure(words: Sequence[str | None], *, by_shell: bool) -> bool:
    """Return whether a program is known to keep nothing."""
    first = words[0]
    if first is None:
        return False
    if by_shell:
        return _is_pure_shell(first)
    name = os.path.basename(first)
    if name in _SHELLS:
        return len(words) > 2 and words[1] == "-c" and _is_pure_shell(words[2])
    if name.startswith("python") or first == sys.executable:
        rest = [one for one in words[1:] if one not in ("-u", "-I", "-E", "-s", "-S", "-B")]
        is_text = len(rest) > 1 and rest[0] == "-c"
        return _is_pure_python(rest[1]) if is_text else bool(rest) and _is_pure_script(rest[0])
    return name in _PURE


def _is_pure_shell(text: str | None) -> bool:
    if text is None or ">" in re.sub(r"[0-9&]?>\s*(/dev/null|&[0-9])", "", text):
        return False
    commands = [one.split() for one in _STEPS.split(text) if one.strip()]
    return all(os.path.basename(one[0].strip("\"'")) in _PURE for one in commands)


def _is_pure_script(path: str | None) -> bool:
    return path is not None and path.endswith(".py") and _is_pure_python("".join(linecache.getlines(path)))


def _is_pure_python(text: str | None) -> bool:
    """Return whether a program of Python imports nothing by which it could keep anything, and opens nothing."""
    try:
        nodes = [*ast.walk(ast.parse(text or ""))]
    except (SyntaxError, ValueError):
        return False
    names = [one.name for each in nodes if isinstance(each, ast.Import) for one in each.names]
    names += [each.module or "" for each in nodes if isinstance(each, ast.ImportFrom)]
    used = [getattr(each, "id", getattr(each, "attr", "")) for each in nodes]
    is_known = all(one.partition(".")[0] in _PURE_MODULES for one in names)
    return bool(text) and is_known and not any(one in _OPENS for one in used)
