"""Lists the libraries whose versions a checkpoint records: others may compute other bits. Imports none of them."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import metadata

_RECORDED = {"ckptkit": "mindspore-ckptkit", "mindspore": "mindspore", "numpy": "numpy"}  # each with its distribution
_COMPUTING = ("mindspore", "numpy")
_VERSION = re.compile(r"^Version: *(\S+)$", re.MULTILINE)
UNKNOWN = "of an unknown version"


@functools.cache  # imported versions do not change, and reading them takes longer than the rest of a small save
def versions() -> dict[str, str]:
    """Return versions by name; `UNKNOWN` for a library that is not installed, such as one on ``PYTHONPATH``."""
    by_name = {}
    for name, distribution in _RECORDED.items():
        try:
            by_name[name] = _version_of(distribution)
        except metadata.PackageNotFoundError:
            by_name[name] = UNKNOWN
    return by_name


def _version_of(name: str) -> str:
    distribution = metadata.distribution(name)
    # `distribution.version` would parse all of this text, which takes milliseconds of every start.
    match = _VERSION.search((distribution.read_text("METADATA") or "").partition("\n\n")[0])
    return match[1] if match else distribution.version


def changed(recorded: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return name, recorded version and current version of every computing library whose version has changed."""
    now = versions()
    return [(name, recorded[name], now[name]) for name in _COMPUTING if recorded.get(name, now[name]) != now[name]]
