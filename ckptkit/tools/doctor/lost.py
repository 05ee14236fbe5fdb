"""Finds the values that a resumed life lost, and orders them by how likely they are the cause of a difference.

Guarantees: a value that was restored, and differs only since, is taken for an effect. What a loader with a state of its
own holds is compared after its first micro-step: its state is loaded when it is read. Pure functions, any thread.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from ckptkit.manager.hooks import LOADER, Unseen
from ckptkit.tools.doctor.compare import GIVEN, Difference, kind_of, unequal, variable_of
from ckptkit.tools.doctor.lives.trace import Stepped

# A value that was different as soon as the life had restored is lost. One that was equal then has followed what
# differs. One that was set right again before the micro-step may have been read before. A variable that did not exist
# then was most likely assigned in the loop, unless it is what the uninterrupted life had so long after its own start.
_LOST, _LOST_FIRST, _UNKNOWN, _EFFECT = range(4)
_LIKE_ACCUMULATORS = ("accum", "grad", "pending")


def forgotten(difference: Difference, unstable: frozenset[str]) -> list[str]:
    """Return the paths of unseen values that differ from the reference at that micro-step, likeliest cause first."""
    if difference.found is None:
        return []
    paths = (unequal(difference.expected.unseen, difference.found.unseen) | lost_values(difference).keys()) - unstable
    causes = [path for path in paths if _standing(difference, path) != _EFFECT]
    return sorted(
        causes,
        key=lambda path: (
            _standing(difference, path),
            not _began_afresh(difference, path),
            _is_variable(path),
            path,
        ),
    )


def lost_of_named(difference: Difference) -> list[str]:
    """Return what objects given by name did not restore, as paths such as ``stateful['statistics'].mean``."""
    begun, held = difference.life.begun, difference.reference.steps.get(difference.resumed_at)
    if begun is None or held is None:
        return []
    lost = []
    for name in difference.names:
        both = begun.digests.get(name), held.digests.get(name)
        if name.startswith(GIVEN) and None not in both and both[0] != both[1]:
            owner, *part = re.split("[/.]", name.partition("/")[2], maxsplit=1)
            lost.append(".".join([f"stateful[{owner!r}]", *part]))
    return lost


def torn_by_save(difference: Difference) -> list[str]:
    """Return the parameters that were others right after a restore than at the script's own save."""
    begun, held = difference.life.begun, difference.reference.steps.get(difference.resumed_at)
    if begun is None or held is None or not difference.life.own_saves:
        return []
    names = [name for name in begun.digests.keys() & held.digests.keys() if kind_of([name]) in ("weights", "optimizer")]
    return sorted(name for name in names if begun.digests[name] != held.digests[name])


def lost_of_loader(difference: Difference, unstable: frozenset[str]) -> list[str]:
    """Return what a loader with a state of its own did not restore, generators first.

    Of what differs in the first micro-step, only these are causes for sure.
    """
    if not difference.resumed_at:
        return []
    is_first = difference.step == difference.resumed_at + 1
    named = [path for path in forgotten(difference, unstable) if _is_loaders(path)]
    named = [path for path in named if not is_first or _is_generator(difference, path)]
    return sorted(named, key=lambda path: not _is_generator(difference, path))


def lost_values(difference: Difference) -> dict[str, tuple[Unseen, Unseen]]:
    """Return the values that were different right after the restore: as the reference had them, and as they were."""
    begun, held = difference.life.begun, difference.reference.steps.get(difference.resumed_at)
    if begun is None or begun.unseen is None or held is None:
        return {}
    paths = {path for path in begun.unseen.keys() & held.unseen.keys() if not _is_loaders(path)}
    both = {path: (held.unseen[path], begun.unseen[path]) for path in paths} | _after_first_step(difference)
    return {path: pair for path, pair in both.items() if pair[0].digest != pair[1].digest}


def _after_first_step(difference: Difference) -> dict[str, tuple[Unseen, Unseen]]:
    """Return what the loader had after the first micro-step; nothing if that differs already, as effects do, too."""
    first = difference.resumed_at + 1
    expected, found = difference.reference.steps.get(first), difference.life.steps.get(first)
    if expected is None or found is None or first >= difference.step:
        return {}
    paths = {path for path in expected.unseen.keys() & found.unseen.keys() if _is_loaders(path)}
    return {path: (expected.unseen[path], found.unseen[path]) for path in paths}


def _standing(difference: Difference, path: str) -> int:
    """Return how likely a value that differs is a cause and not an effect; the lower, the likelier."""
    begun, held = difference.life.begun, difference.reference.steps.get(difference.resumed_at)
    if begun is None or begun.unseen is None or held is None:
        return _UNKNOWN
    if path in lost_values(difference):
        assert difference.found is not None  # noqa: S101 - as in `forgotten`
        repaired = difference.expected.unseen.get(path) == difference.found.unseen.get(path)
        return _LOST_FIRST if repaired else _LOST
    if _is_loaders(path):
        return _EFFECT if path in _after_first_step(difference) else _UNKNOWN
    if path in begun.unseen and path in held.unseen:
        return _EFFECT
    variable = variable_of(path)
    is_made_later = variable and not any(variable_of(one) == variable for one in begun.unseen)
    return _EFFECT if is_made_later and not _began_afresh(difference, path) else _UNKNOWN


def _began_afresh(difference: Difference, path: str) -> bool:
    """Return whether the value is what the reference had as many micro-steps after its own start."""
    since = difference.step - difference.resumed_at
    early = difference.reference.steps.get(since)
    if difference.found is None or early is None or path not in early.unseen or path not in difference.found.unseen:
        return False
    return difference.found.unseen[path].digest == early.unseen[path].digest


def _is_variable(path: str) -> bool:
    """Return whether it is a bare variable of the script, such as a loop's counter, not an attribute of an object."""
    return "." not in path.rpartition(":")[2]


def _is_loaders(path: str) -> bool:
    return path.startswith(LOADER)


def _is_generator(difference: Difference, path: str) -> bool:
    value = difference.expected.unseen.get(path)
    return value is not None and value.text.startswith("state of a ")


def made_since(difference: Difference) -> list[str]:
    """Return the paths of variables that differ and were made after the restore: causes and effects alike."""
    begun = difference.life.begun
    if difference.found is None or begun is None or begun.unseen is None:
        return []
    known = {variable_of(path) for path in begun.unseen}
    differing = unequal(difference.expected.unseen, difference.found.unseen)
    return sorted(path for path in differing if variable_of(path) and variable_of(path) not in known)


def compared(difference: Difference, path: str) -> str:
    """Return a path of `forgotten` or `lost_values` with its two values in words."""
    now = None if difference.found is None else difference.found.unseen
    if now is None or difference.expected.unseen.get(path) == now.get(path):
        both: Sequence[Unseen | None] = lost_values(difference)[path]
    else:
        both = (difference.expected.unseen.get(path), now.get(path))
    words = [one.text if one is not None else "absent" for one in both]
    between = "another value of the same kind" if words[0] == words[1] else f"{words[0]} uninterrupted, {words[1]} here"
    return f"{path} ({between})"


def like_accumulators(path: str, value: Unseen, steps: Mapping[int, Stepped]) -> bool:
    """Return whether a value looks like gradients that are added up, by its name or by how it comes and goes."""
    name = path.rpartition(":")[2].rpartition(".")[2].lower()  # without a class such as GradualPruning
    named = "array" in value.text and any(word in name for word in _LIKE_ACCUMULATORS)
    return named or (value.like_weights and _comes_back(path, steps))


def _comes_back(path: str, steps: Mapping[int, Stepped]) -> bool:
    """Return whether a value is again what it was, as sums are at the beginning of each cycle."""
    held = [steps[step].unseen.get(path) for step in sorted(steps)]
    digests = [one.digest if one is not None else "" for one in held]
    changes = [digest for digest, _ in itertools.groupby(digests)]
    return len(changes) != len(set(changes))
