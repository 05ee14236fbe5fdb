"""Maps parameter names in one place to names in another.

Guarantees: `Renames.applied` gives each name one new name or leaves it out; no two new names are equal, and every rule
applies to some name. Anything else is an error that lists the names. A rule is applied once, never to the result of
another rule. Pure values, any thread.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ckptkit.core.text import some

_MAX_NAME = 2048  # limit of the format
_MAX_MAP_BYTES = 64 << 20
_SHOWN = 10


@dataclass(frozen=True)
class Renames:
    """Holds the rules, by old name.

    An old name that is empty or ends with a dot is a prefix, and its new name is a prefix too; any other is a whole
    name. The whole name takes precedence over a prefix, a longer prefix over a shorter one.

    Attributes:
        rules: The new name by the old one; None leaves out what the old one names.

    Raises:
        ValueError: If a prefix maps to a whole name, or the reverse.
    """

    rules: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for old, new in self.rules.items():
            if new is not None and _is_prefix(old) != _is_prefix(new):
                raise ValueError(
                    f"{old}={new} renames {'a prefix' if _is_prefix(old) else 'a name'} to something else: both must "
                    "end with a dot or be empty, or neither. To leave a name out, use --drop, or null in a map file"
                )

    @classmethod
    def of(cls, given: Iterable[str] = (), dropped: Iterable[str] = ()) -> Renames:
        """Make rules from ``OLD=NEW`` texts, and from names or prefixes to leave out.

        Raises:
            ValueError: If a text has no ``=``, or an old name is given twice.
        """
        rules: dict[str, str | None] = {}
        for text in given:
            old, equals, new = text.partition("=")
            if not equals:
                raise ValueError(f"a new name is given as OLD=NEW, got {text!r}")
            _add(rules, old, new)
        for old in dropped:
            _add(rules, old, None)
        return cls(rules)

    @classmethod
    def read(cls, path: str | Path) -> Renames:
        """Read rules from a file with one JSON object: the new name by the old one, null to leave it out.

        Raises:
            ValueError: If it cannot be read or holds something else; names the file.
        """
        try:
            if Path(path).stat().st_size > _MAX_MAP_BYTES:
                raise ValueError(f"it has more than {_MAX_MAP_BYTES} bytes")
            pairs = json.loads(Path(path).read_bytes(), object_pairs_hook=_Pairs)
            if not isinstance(pairs, _Pairs):
                raise ValueError("it does not hold one JSON object")
            rules: dict[str, str | None] = {}
            for old, new in pairs:
                if new is not None and not isinstance(new, str):
                    raise ValueError(f"{old!r} maps to {str(new)[:80]}, expected a name or null")
                _add(rules, old, new)
            return cls(rules)
        except (OSError, RecursionError, ValueError) as error:
            raise ValueError(f"the map of names {path} cannot be used: {error}") from error

    def new_name(self, name: str) -> str | None:
        """Return the new name; None if the name is left out."""
        rule = self._rule(name)
        if rule is None:
            return name
        new = self.rules[rule]
        return new if new is None or not _is_prefix(rule) else new + name[len(rule) :]

    def applied(self, names: Collection[str], after: Collection[str] = ()) -> dict[str, str]:
        """Return the new name by the old one, for all names that are not left out.

        Args:
            names: All names.
            after: Those that may be named after another one, as ``moments.W`` is after ``W``. If no rule matches such
                a name, it follows the other one.

        Raises:
            ValueError: If two new names are equal, a new name cannot be stored, or a rule matches no name.
        """
        followers = frozenset(after)
        leaders = frozenset(names) - followers
        renamed: dict[str, str] = {}
        used: set[str | None] = set()
        for name in names:
            leader = _leader(name, leaders) if name in followers and not self._rule(name) else name
            used.add(self._rule(leader))
            new = self.new_name(leader)
            if new is not None:
                renamed[name] = name[: len(name) - len(leader)] + new
        self._refuse_unused(used, names)
        _refuse_unfit(renamed)
        return renamed

    def _rule(self, name: str) -> str | None:
        if name in self.rules and not _is_prefix(name):
            return name
        fitting = [old for old in self.rules if _is_prefix(old) and name.startswith(old)]
        return max(fitting, key=len, default=None)

    def _refuse_unused(self, used: Collection[str | None], names: Collection[str]) -> None:
        unused = sorted(self.rules.keys() - used)
        if unused:
            raise ValueError(
                f"no tensor matches {some(unused, _SHOWN)}, which is to be renamed or dropped; available: "
                f"{some(sorted(names), _SHOWN)}"
            )


class _Pairs(list[tuple[str, object]]):
    """Holds the items of a JSON object in a file, including repeated keys."""


def _is_prefix(name: str) -> bool:
    return not name or name.endswith(".")


def _add(rules: dict[str, str | None], old: str, new: str | None) -> None:
    if old in rules:
        raise ValueError(f"{old!r} is given twice")
    rules[old] = new


def _leader(name: str, leaders: Collection[str]) -> str:
    """Return the longest leader that ``name`` ends with after a dot, or ``name`` itself."""
    at = name.find(".")
    while at >= 0:
        if name[at + 1 :] in leaders:
            return name[at + 1 :]
        at = name.find(".", at + 1)
    return name


def _refuse_unfit(renamed: Mapping[str, str]) -> None:
    old_of: dict[str, list[str]] = {}
    for old, new in renamed.items():
        old_of.setdefault(new, []).append(old)
    twice = [f"{' and '.join(sorted(olds))} would both be {new}" for new, olds in old_of.items() if len(olds) > 1]
    if twice:
        raise ValueError(f"names must differ: {'; '.join(sorted(twice)[:_SHOWN])}")
    unfit = [old for new, (old, *_) in old_of.items() if not 0 < len(new) <= _MAX_NAME or new == "__metadata__"]
    if unfit:
        raise ValueError(f"no tensor can have the new names of {some(sorted(unfit), _SHOWN)}")
