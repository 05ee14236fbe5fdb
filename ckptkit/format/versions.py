"""The libraries whose versions a checkpoint records, because the same program gives other bits under others of them.

Guarantees: nothing is imported, so that it also works where MindSpore is not installed. Any thread.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import metadata

_RECORDED = ("ckptkit", "mindspore", "numpy")
_COMPUTING = ("mindspore", "numpy")
UNKNOWN = "of an unknown version"


@functools.cache  # what was imported stays, and to read it takes longer than the rest of a small save
def versions() -> dict[str, str]:
    """Version by name; `UNKNOWN` where a library is not installed as a package, such as one found by ``PYTHONPATH``."""
    found = {}
    for name in _RECORDED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = UNKNOWN
    return found


def changed(recorded: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Name, version then and version now of every library that computes and is another one than was ``recorded``."""
    now = versions()
    return [(name, recorded[name], now[name]) for name in _COMPUTING if recorded.get(name, now[name]) != now[name]]
