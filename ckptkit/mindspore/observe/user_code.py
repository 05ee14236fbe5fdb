"""Tells the user's modules, functions and classes from those of libraries.

A package below ``site-packages`` or ``dist-packages`` is an installed library.

Guarantees: reads names, paths and existing objects; calls no function of the user's. Any thread.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

_LIBRARIES = sys.stdlib_module_names | {
    *("builtins", "mindspore", "ckptkit", "numpy", "rich", "tqdm", "pytest", "_pytest", "pluggy", "xdist", "execnet"),
    *("IPython", "ipykernel", "tornado", "traitlets", "zmq"),
    "__channelexec__",  # what execnet calls the code that it runs in another process
}
_FOLDERS = ("site-packages", "dist-packages")


def is_users(module: Any) -> bool:
    """Return whether a module of that name belongs to the user, not to a library."""
    return str(module).partition(".")[0] not in _LIBRARIES


def library_of(kind: Any) -> str:
    """Return the name of the package that a class is of."""
    return str(kind.__module__ or "").partition(".")[0]


def is_of_users(value: Any) -> bool:
    """Return whether an object is of a class of the user's."""
    return is_users(type(value).__module__)


def is_mindspores(value: Any) -> bool:
    """Return whether an object is of a class of MindSpore's."""
    return str(type(value).__module__).partition(".")[0] == "mindspore"


@functools.lru_cache(maxsize=1024)
def is_installed(file: str) -> bool:
    """Return whether a file of code, if it is one, belongs to an installed library."""
    if not file:
        return False
    path = Path(os.path.realpath(file))  # the package may be a link to the user's folder
    roots = {os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return any(folder in path.parts for folder in _FOLDERS) or any(path.is_relative_to(root) for root in roots)


def is_users_class(kind: Any) -> bool:
    """Return whether a class is the user's: neither of Python or a known library, nor of an installed one."""
    return _is_users_class(kind)


@functools.lru_cache(maxsize=4096)
def _is_users_class(kind: Any) -> bool:
    home = sys.modules.get(str(kind.__module__))
    return is_users(kind.__module__) and not is_installed(str(vars(home).get("__file__") or "") if home else "")


def is_users_function(function: types.FunctionType) -> bool:
    """Return whether a function's code is the user's."""
    return is_users(function.__module__) and not is_installed(function.__code__.co_filename)


def is_users_frame(frame: types.FrameType) -> bool:
    """Return whether a frame runs the user's code."""
    return is_users(frame.f_globals.get("__name__")) and not is_installed(frame.f_code.co_filename)
