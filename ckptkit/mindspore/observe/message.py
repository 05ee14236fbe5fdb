"""Words what the observer found: what is stored, what cannot be, and what differs from the saved run.

Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptkit.core.text import some

_MOST_PATHS = 8


def stored(paths: Sequence[str]) -> str:
    """Return the line that says what is stored from now on."""
    return f"also stored, since training changes them: {some(paths, _MOST_PATHS)}"


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


def in_words(lost: Sequence[tuple[str, str]], differs: Sequence[tuple[str, str, str]]) -> str:
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
