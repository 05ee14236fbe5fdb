"""Provides random cells that resume exactly: `Dropout`, and `replace_dropout` for an existing network.

Importing this module does not import MindSpore. A name is loaded at its first use. Main thread only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptkit.mindspore.nn.dropout import Dropout, replace_dropout

_HOME = {
    "Dropout": "ckptkit.mindspore.nn.dropout",
    "replace_dropout": "ckptkit.mindspore.nn.dropout",
}

__all__ = ["Dropout", "replace_dropout"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'ckptkit.nn' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
