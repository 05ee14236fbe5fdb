"""Tells which functions of installed libraries need not be read.

The user's own are packages that are installed as links to a folder elsewhere, and those whose code is running, such as
the package of the script and of its trainer.

Guarantees: reads names, paths and existing objects; calls no function of the user's. Any thread.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import mindspore as ms
from mindspore import nn

from ckptkit.mindspore.inspect.attributes import UNKNOWN
from ckptkit.mindspore.inspect.code.bytecode import closure_of
from ckptkit.mindspore.inspect.users import is_installed, is_of_users

# What a library function may train, change or call.
_OF_A_TRAINING = (nn.Cell, ms.Parameter, types.FunctionType, types.MethodType, functools.partial)


class Libraries:
    """Knows the packages whose code is running.

    Args:
        running: The global variables of the running functions.
    """

    def __init__(self, running: Iterable[Mapping[str, Any]]) -> None:
        self._own = {_package(one) for one in running}

    def keep(self, function: types.FunctionType, instance: Any, given: Iterable[Any]) -> bool:
        """Return whether a library's function cannot change what belongs to the user, so that it need not be read.

        It may change it if it is a method of an object that the user made, or gets or holds a cell, a parameter, a
        function or an object of the user's.

        Args:
            function: Of a library or of the user's.
            instance: What it is bound to, or `UNKNOWN`.
            given: Its arguments.
        """
        if not self._has(function.__globals__):
            return False
        if instance is not UNKNOWN and not _is_of_a_module(instance):
            return False
        return not any(self._is_users(one) for one in (*given, *closure_of(function).values()))

    def _has(self, module: Mapping[str, Any]) -> bool:
        return _package(module) not in self._own and is_installed(str(module.get("__file__") or ""))

    def _is_users(self, one: Any) -> bool:
        if one is UNKNOWN or isinstance(one, (type, types.ModuleType)):
            return False
        home = sys.modules.get(type(one).__module__)
        objects = is_of_users(one) and not (home is not None and self._has(vars(home)))
        return objects or isinstance(one, (*_OF_A_TRAINING, types.SimpleNamespace))


def _package(module: Mapping[str, Any]) -> str:
    return str(module.get("__package__") or module.get("__name__")).partition(".")[0]


def _is_of_a_module(instance: Any) -> bool:
    """Return whether it is a class, or an object that the module of its class made."""
    if isinstance(instance, type):
        return True
    home = sys.modules.get(type(instance).__module__)
    return home is not None and any(one is instance for one in [*vars(home).values()])
