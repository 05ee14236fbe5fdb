"""Compares the first look of a start with that of the run: what a script sets before it trains, and sets otherwise now.

Pure functions, any thread.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from ckptkit.mindspore.observe.walk import Node

_CHOICE = re.compile(r"[^\W\d][^\s\d]{0,39}")  # of a script; folders, names of runs and times are not so
_LARGEST = {int: 1 << 24, float: 100.0}  # numbers that a script begins with; times, addresses and hashes are larger


class Differs(NamedTuple):
    """Says what is not as in the saved run: a path, and its text then and now."""

    path: str
    before: str
    now: str


def differences(before: Mapping[str, str], nodes: Mapping[str, Node]) -> Iterator[Differs]:
    """Yield what differs from the texts by path of an earlier first look, but times and other marks of a process."""
    for path, text in before.items():
        node = nodes.get(path)
        if node is not None and node.text != text and not _is_mark(node):
            yield Differs(path, text, node.text)


def packed_texts(texts: Mapping[str, str]) -> Any:
    """Return texts by path as an array of bytes."""
    return np.frombuffer(zlib.compress(json.dumps(texts).encode()), np.uint8)


def unpacked_texts(packed: Any) -> dict[str, str]:
    """Return what `packed_texts` was given."""
    texts: dict[str, str] = json.loads(zlib.decompress(packed.tobytes()))
    return texts


def _is_mark(node: Node) -> bool:
    """Return whether a value may be one of the process, not of the training: an address, a hash, a time, a folder."""
    value = node.value
    if type(value) in (list, tuple):
        return any(_is_mark_of_process(item) for item in value)
    if type(value) is dict:
        return any(_is_mark_of_process(item) for item in (*value.keys(), *value.values()))
    return node.chain()[0].kind == "environment" or _is_mark_of_process(value)


def _is_mark_of_process(value: Any) -> bool:
    if type(value) in _LARGEST:
        return bool(math.isfinite(value) and abs(value) > _LARGEST[type(value)])
    is_text = type(value) is str and _CHOICE.fullmatch(value) is None
    return is_text or issubclass(type(value), (bytes, PurePath))
