"""Words what the observer found: what is stored, what cannot be, and what differs from the saved run.

Pure functions, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby

from ckptkit.core.text import some
from ckptkit.mindspore.observe.differences import Differs
from ckptkit.mindspore.observe.observer import Unstored

_MOST_PATHS = 8
_ATTRIBUTE = re.compile(r"\.\w+$")


def stored(paths: Sequence[str]) -> str:
    """Return the line that says what is stored from now on."""
    shown = []
    for owner, group in groupby(paths, _owner_of):
        first, *others = group
        shown.append(first)
        shown += [path.removeprefix(owner) for path in others]
    more = f" (+{len(shown) - _MOST_PATHS})" if len(shown) > _MOST_PATHS else ""
    return f"also stored, since training changes them: {', '.join(shown[:_MOST_PATHS])}{more}"


def _owner_of(path: str) -> str:
    """Return the path of the object of an attribute; of anything else, nothing."""
    attribute = _ATTRIBUTE.search(path)
    return path[: attribute.start()] if attribute else ""


def named(unstored: Mapping[str, str]) -> str:
    """Return the warning of what cannot be stored, with what to do."""
    paths = [*unstored.items()]
    lines = [f"    {path}   {why}" for path, why in paths[:_MOST_PATHS]]
    if len(paths) > _MOST_PATHS:
        lines.append(f"    and {len(paths) - _MOST_PATHS} more")
    first = paths[0][0]
    return "\n".join(
        (
            "in no checkpoint, though training changes them; the resumed run may not be bit-exact:",
            *lines,
            "  Give what matters to StateManager(...) or stateful=; silence what does not: "
            f"Training(ignore=[{first!r}]).",
            "  `ckptkit doctor -- python train.py` finds out which.",
        )
    )


def in_words(lost: Sequence[Unstored], differs: Sequence[Differs]) -> str:
    """Return what differs from the saved run after its state was put back."""
    parts = [f"{path} ({why})" for path, why in lost]
    sentences = [f"could not be put back: {some(parts, _MOST_PATHS)}"] if parts else []
    values = [f"{path} (was {_short(before)}, is {_short(now)})" for path, before, now in differs]
    sentences += [f"differs from the saved run: {some(values, _MOST_PATHS)}"] if values else []
    return ". ".join(sentences)


def _short(text: str) -> str:
    kind, _, value = text.partition(" ")
    shown = value if kind in ("int", "float", "bool", "str", "NoneType") else text
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
