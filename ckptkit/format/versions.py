"""Lists the libraries whose versions a checkpoint records: others may compute other bits. Imports none of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from importlib import metadata

_RECORDED = {"ckptkit": "mindspore-ckptkit", "mindspore": "mindspore", "numpy": "numpy"}  # each with its distribution
_COMPUTING = ("mindspore", "numpy")
UNKNOWN = "of an unknown version"


@functools.cache  # imported versions do not change, and reading them takes longer than the rest of a small save
def versions() -> dict[str, str]:
    """Return versions by name; `UNKNOWN` for a library that is not installed, such as one on ``PYTHONPATH``."""
    by_name = dict.fromkeys(_RECORDED, UNKNOWN)
    for name, distribution in _RECORDED.items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            by_name[name] = metadata.version(distribution)
    return by_name


def changed(recorded: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return name, recorded version and current version of every computing library whose version has changed."""
    now = versions()
    return [(name, recorded[name], now[name]) for name in _COMPUTING if recorded.get(name, now[name]) != now[name]]
