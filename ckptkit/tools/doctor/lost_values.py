"""Finds the values that a resumed life lost: the causes of a difference, the surest first.

A value that differs as the first batch is handed out, after all was put back, is lost. What a loader holds is compared
after the first micro-step, since it loads its state as it is read. What differs later, and before the difference, has
followed something that cannot be seen, and is the best lead to it. What differs with it may be its effect.

Guarantees: names no path that differs between two uninterrupted lives. Pure functions, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from ckptkit.manager.hooks import LOADER
from ckptkit.tools.doctor.compare import GIVEN, TraceDifference, kind_of
from ckptkit.tools.doctor.lives.life_process import TrialLife

Values: TypeAlias = dict[str, tuple[str, str]]
"""By path, the text in the reference and in the life."""


def lost(life: TrialLife, reference: TrialLife, unstable: frozenset[str]) -> Values:
    """Return what a life did not get back: what another micro-step left, or its own start made."""
    begun = life.begun
    if begun is None or not begun.step:
        return {}
    held, first = reference.steps.get(begun.step), life.steps.get(begun.step + 1)
    expected = reference.steps.get(begun.step + 1)
    if held is None or first is None or expected is None:
        return {}
    after = _differing(expected.unseen, first.unseen, unstable)
    loaders = {path: values for path, values in after.items() if path.startswith(LOADER)}
    loaders = dict(sorted(loaders.items(), key=lambda item: not item[1][0].startswith("generator ")))
    return loaders | _differing(held.unseen, first.began, unstable)


def causes(difference: TraceDifference, unstable: frozenset[str]) -> Values:
    """Return the paths that may have caused a difference: those of `lost`, or else the first that differ before it."""
    values = lost(difference.life, difference.reference, unstable)
    for step in range(difference.resumed_at + 1, difference.step) if not values and difference.resumed_at else ():
        expected, present = difference.reference.steps.get(step), difference.life.steps.get(step)
        if expected is not None and present is not None and not values:
            values = _differing(expected.unseen, present.unseen, unstable)
    return values


def noted(life: TrialLife, reference: TrialLife, until: int, unstable: frozenset[str]) -> list[str]:
    """Return the paths that an exact resume did not get back, or that were named as state that cannot be stored."""
    if life.begun is None or not life.begun.step or until not in life.steps:
        return []
    paths = lost(life, reference, unstable)
    return [*paths, *(path for path in life.steps[until].unstored if path not in paths)]


def owner_of(path: str, texts: Mapping[str, str]) -> str:
    """Return the variable with the object that a path leads through, as the script names it; empty if there is none.

    ``texts`` has all texts by path: that of a module is not among them.
    """
    known = {known.rpartition(": ")[2]: text for known, text in texts.items()}
    names = path.rpartition(": ")[2]
    ends = [match.start() for match in re.finditer(r"[.\[(]", names)] + [len(names)]
    owner = next((names[:end] for end in ends if names[:end] in known), "")
    is_object = known.get(owner, "").startswith("<")
    return owner if is_object and all(name.isidentifier() for name in owner.split(".")) else ""


def pattern_of(path: str) -> str:
    """Return what silences a path in ``Training(ignore=[...])``: brackets mean something else there."""
    whole, bracket, _ = path.partition("[")
    return f"{whole}*" if bracket else path


def lost_of_named(difference: TraceDifference) -> list[str]:
    """Return what objects given by name did not restore, as paths such as ``stateful['statistics'].mean``."""
    changed, paths = _changed_by_restore(difference), []
    for name in difference.names:
        if name.startswith(GIVEN) and name in changed:
            owner, *part = re.split("[/.]", name.partition("/")[2], maxsplit=1)
            paths.append(".".join([f"stateful[{owner!r}]", *part]))
    return paths


def torn_by_save(difference: TraceDifference) -> list[str]:
    """Return the parameters that were others right after a restore than at the script's own save."""
    changed = _changed_by_restore(difference) if difference.life.own_saves else ()
    return sorted(name for name in changed if kind_of([name]) in ("weights", "optimizer"))


def _changed_by_restore(difference: TraceDifference) -> set[str]:
    """Return the names of digests that were others right after a restore than after the micro-step of its save."""
    begun, held = difference.life.begun, difference.reference.steps.get(difference.resumed_at)
    if begun is None or held is None:
        return set()
    return {name for name, digest in begun.digests.items() if held.digests.get(name, digest) != digest}


def compared(path: str, values: tuple[str, str]) -> str:
    """Return a path with its two values in words."""
    before, now = map(_short, values)
    return f"{path} (another value of the same kind)" if before == now else f"{path} (was {before}, is {now})"


def _differing(expected: Mapping[str, str], present: Mapping[str, str], unstable: frozenset[str]) -> Values:
    """Return the paths in both that differ, with both texts."""
    paths = [path for path, text in expected.items() if present.get(path, text) != text and path not in unstable]
    paths.sort(key=lambda path: (" around " in path, path))  # an iterator is mostly replaced
    return {path: (expected[path], present[path]) for path in paths}


def _short(text: str) -> str:
    kind, _, value = text.partition(" ")
    shown = value if kind in ("int", "float", "bool", "str", "NoneType") else text
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
