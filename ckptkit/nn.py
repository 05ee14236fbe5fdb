"""Cells that are random and still resume exactly: `Dropout`.

Importing it imports no MindSpore; a cell is loaded when it is first used. Main thread only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptkit.mindspore.nn.dropout import Dropout

_HOME = {"Dropout": "ckptkit.mindspore.nn.dropout"}

__all__ = ["Dropout"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'ckptkit.nn' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
