"""Finds where the states of two checkpoints differ, except tensors: RNG, data position, what users added.

Guarantees: compares what `ckptkit.core.tree` has encoded, without decoding it. Every place that differs has an entry;
a list of plain values has one entry in all. Tensors that a state refers to are compared as tensors, by
`ckptkit.tools.diff.checkpoints`. Pure functions, any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

_ABSENT = "absent"
_TEXT = 60  # characters shown of a value
_CONTAINERS = ("$tuple", "$dict", "$ordered")
_TENSORS = ("$array", "$scalar")


@dataclass(frozen=True)
class StateDifference:
    """Describes one place that differs.

    Attributes:
        rank: The rank whose state it is.
        path: Section, then keys and indices, joined by slashes.
        a: The value on the first side, as shortened JSON; ``absent`` if there is none.
        b: The value on the second side.
    """

    rank: int
    path: str
    a: str
    b: str


def state_differences(rank: int, a: Mapping[str, JsonValue], b: Mapping[str, JsonValue]) -> Iterator[StateDifference]:
    """Yield all places at which the states ``a`` and ``b`` of ``rank`` differ."""
    for path, one, other in _in_mapping("", a, b):
        yield StateDifference(rank, path, one, other)


def _in_mapping(path: str, a: Mapping[str, JsonValue], b: Mapping[str, JsonValue]) -> Iterator[tuple[str, str, str]]:
    for key in [*a, *(key for key in b if key not in a)]:
        below = f"{path}/{key}" if path else key
        if key not in a or key not in b:
            yield below, _shown(a[key]) if key in a else _ABSENT, _shown(b[key]) if key in b else _ABSENT
        else:
            yield from _between(below, a[key], b[key])


def _between(path: str, a: JsonValue, b: JsonValue) -> Iterator[tuple[str, str, str]]:
    if _is_same(a, b):
        return
    if isinstance(a, dict) and isinstance(b, dict):
        tags = {_tag(a), _tag(b)}
        if len(tags) > 1:
            yield path, _shown(a), _shown(b)
        elif tags == {None}:
            yield from _in_mapping(path, a, b)
        else:
            yield from _tagged(path, tags.pop() or "", a, b)
    elif isinstance(a, list) and isinstance(b, list):
        yield from _in_list(path, a, b)
    else:
        yield path, _shown(a), _shown(b)


def _tagged(
    path: str, tag: str, a: Mapping[str, JsonValue], b: Mapping[str, JsonValue]
) -> Iterator[tuple[str, str, str]]:
    one, other = a[tag], b[tag]
    if tag in _TENSORS and one == other:
        return
    if tag in _CONTAINERS:
        yield from _between(path, one, other)
    elif one != other:
        yield path, _shown({**a}), _shown({**b})


def _in_list(path: str, a: list[JsonValue], b: list[JsonValue]) -> Iterator[tuple[str, str, str]]:
    if len(a) != len(b):
        yield path, f"{len(a)} elements", f"{len(b)} elements"
        return
    differing = [at for at in range(len(a)) if not _is_same(a[at], b[at])]
    if len(differing) > 1 and not any(isinstance(one, dict | list) for one in (*a, *b)):
        what = f"{len(differing)} of {len(a)} elements differ, the first at {differing[0]}"
        yield path, f"{what}: {_shown(a[differing[0]])}", _shown(b[differing[0]])
        return
    for at in differing:
        yield from _between(f"{path}/{at}", a[at], b[at])


def _is_same(a: JsonValue, b: JsonValue) -> bool:
    return json.dumps(a) == json.dumps(b)  # in Python, 1 equals 1.0 and True


def _tag(value: Mapping[str, JsonValue]) -> str | None:
    return next((key for key in value if key.startswith("$")), None) if len(value) == 1 else None


def _shown(value: JsonValue) -> str:
    text = json.dumps(value)
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..."
