"""Compares the first look of a start with that of the run: what a script sets before it trains, and sets otherwise now.

Pure functions, any thread.
"""

from __future__ import annotations

import json
import math
import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from ckptkit.mindspore.observe.walk import Node

_CHOICE = re.compile(r"[^\W\d][^\s\d]{0,39}")  # of a script; folders, names of runs and times are not so
_LONG_SECONDS = 600.0
_SMALL_TIME = 100.0  # numbers that a training uses lie below it
_LARGEST = 1 << 24  # number that a script begins with; times, addresses and hashes are larger


class Differs(NamedTuple):
    """Says what is not as in the saved run: a path, and its text then and now."""

    path: str
    before: str
    now: str


def clocks_now() -> list[float]:
    """Return what the clocks show that a script may read."""
    return [time.time(), time.perf_counter(), time.monotonic()]


def differences(
    before: Mapping[str, str], clocks_before: Sequence[float], nodes: Mapping[str, Node], clocks: Sequence[float]
) -> Iterator[Differs]:
    """Yield what differs from the texts of an earlier first look, but times and other marks of a process.

    Args:
        before: The texts by path.
        clocks_before: `clocks_now` at that look.
        nodes: What is reached now.
        clocks: `clocks_now`.
    """
    for path, text in before.items():
        node = nodes.get(path)
        if node is None or node.text == text or _is_mark(node):
            continue
        if not (_is_time(node.number, clocks) and _is_time(_number_of(text), clocks_before)):
            yield Differs(path, text, node.text)


def packed_texts(texts: Mapping[str, str]) -> Any:
    """Return texts by path as an array of bytes."""
    return np.frombuffer(zlib.compress(json.dumps(texts).encode()), np.uint8)


def unpacked_texts(packed: Any) -> dict[str, str]:
    """Return what `packed_texts` was given."""
    texts: dict[str, str] = json.loads(zlib.decompress(packed.tobytes()))
    return texts


def _is_time(number: Any, clocks: Sequence[float]) -> bool:
    """Return whether a number was read from one of the clocks, not long before they showed this."""
    is_large = isinstance(number, float) and number > _SMALL_TIME
    return is_large and any(0 <= clock - number < _LONG_SECONDS for clock in clocks)


def _number_of(text: str) -> float | None:
    kind, _, value = text.partition(" ")
    return float(value) if kind == "float" else None


def _is_mark(node: Node) -> bool:
    """Return whether a value may be one of the process, not of the training: an address, a hash, a time, a folder."""
    value = node.value
    if type(value) in (list, tuple):
        return any(_is_mark_of_process(item) for item in value)
    if type(value) is dict:
        return any(_is_mark_of_process(item) for item in (*value.keys(), *value.values()))
    return node.chain()[0].kind == "environment" or _is_mark_of_process(value)


def _is_mark_of_process(value: Any) -> bool:
    if type(value) in (int, float):
        return bool(math.isfinite(value) and abs(value) > _LARGEST)
    is_text = type(value) is str and _CHOICE.fullmatch(value) is None
    return is_text or issubclass(type(value), (bytes, PurePath))
