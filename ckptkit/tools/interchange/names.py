"""Maps parameter names in one place to names in another, and tells the optimizer's tensors by their names.

`Renames.applied` gives each name one new name or leaves it out; no two new names are equal, and every rule applies to
some name. Anything else is an error that lists the names. A rule is never applied to the result of another rule.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ckptkit.core.text import some

_MAX_NAME = 2048  # limit of the format
_SHOWN = 10

# In MindSpore 2.7 to 2.10: prefix of a moment's name -> prefix that must be there too, as a layer may have its name.
_MOMENTS: dict[str, str | None] = {
    "accum": None,
    "accum_update": "accum",
    "adam_m": "adam_v",
    "adam_v": "adam_m",
    "exp_avg": None,
    "exp_avg_sq": "exp_avg",
    "grad_accum": None,
    "lamb_m": "lamb_v",
    "lamb_v": "lamb_m",
    "linear": "moments",
    "max_exp_avg_sq": "exp_avg_sq",
    "mean_grad": "mean_square",
    "mean_square": None,
    "moment": "mean_square",
    "moment1": "moment2",
    "moment2": "moment1",
    "moments": None,
    "prev": "step_size",
    "stat": "accum",
    "step_size": "prev",
    "vhat": "moment1",
}

_COUNTERS = re.compile(
    r"global_step|learning_rate(_group_\d+)?|momentum|beta[12]_power|afactor_step|state_step|(grad_)?accum\.divisor"
    r"|scale_sense|loss_scale|current_iterator_step|last_overflow_iterator_step|epoch_num|step_num|batch_num"
)


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
        pairs: list[tuple[str, str | None]] = []
        for text in given:
            old, equals, new = text.partition("=")
            if not equals:
                raise ValueError(f"a new name is given as OLD=NEW, got {text!r}")
            pairs.append((old, new))
        return cls(_unique([*pairs, *((old, None) for old in dropped)]))

    @classmethod
    def read(cls, path: str | Path) -> Renames:
        """Read rules from a file with one JSON object: the new name by the old one, null to leave it out.

        Raises:
            ValueError: If it cannot be read or holds something else; names the file.
        """
        try:
            pairs = json.loads(Path(path).read_bytes(), object_pairs_hook=tuple)  # a dict would hide a repeated name
            if not isinstance(pairs, tuple):
                raise ValueError("it does not hold one JSON object")
            for old, new in pairs:
                if new is not None and not isinstance(new, str):
                    raise ValueError(f"{old!r} maps to {str(new)[:80]}, expected a name or null")
            return cls(_unique(pairs))
        except (OSError, RecursionError, ValueError) as error:
            raise ValueError(f"the map of names {path} cannot be used: {error}") from error

    def applied(self, names: Collection[str], after: Collection[str] = ()) -> dict[str, str]:
        """Return the new name by the old one, for all names that are not left out.

        Args:
            names: All names.
            after: Those that may be named after another one, as ``moments.W`` is after ``W``. If no rule matches such
                a name, it follows the other one.

        Raises:
            ValueError: If two new names are equal, a new name cannot be stored, or a rule matches no name.
        """
        leaders = frozenset(names) - frozenset(after)
        renamed: dict[str, str] = {}
        unused = set(self.rules)
        for name in names:
            leader = name
            if name not in leaders and not self._rule(name):  # the longest one that it ends with after a dot
                ends = (name[at + 1 :] for at, character in enumerate(name) if character == ".")
                leader = next((end for end in ends if end in leaders), name)
            rule = self._rule(leader)
            if rule is None:
                renamed[name] = name
                continue
            unused.discard(rule)
            new = self.rules[rule]
            if new is not None:
                rest = leader[len(rule) :] if _is_prefix(rule) else ""
                renamed[name] = name.removesuffix(leader) + new + rest
        if unused:
            raise ValueError(
                f"no tensor matches {some(sorted(unused), _SHOWN)}, which is to be renamed or dropped; available: "
                f"{some(sorted(names), _SHOWN)}"
            )
        old_of: dict[str, list[str]] = {}
        for old, new in renamed.items():
            old_of.setdefault(new, []).append(old)
        twice = [f"{' and '.join(sorted(olds))} would both be {new}" for new, olds in old_of.items() if len(olds) > 1]
        if twice:
            raise ValueError(f"names must differ: {'; '.join(sorted(twice)[:_SHOWN])}")
        unfit = [old for new, (old, *_) in old_of.items() if not 0 < len(new) <= _MAX_NAME or new == "__metadata__"]
        if unfit:
            raise ValueError(f"no tensor can have the new names of {some(sorted(unfit), _SHOWN)}")
        return renamed

    def _rule(self, name: str) -> str | None:
        if name in self.rules and not _is_prefix(name):
            return name
        fitting = [old for old in self.rules if _is_prefix(old) and name.startswith(old)]
        return max(fitting, key=len, default=None)


def _is_prefix(name: str) -> bool:
    return not name or name.endswith(".")


def _unique(pairs: Sequence[tuple[str, str | None]]) -> dict[str, str | None]:
    for old, count in Counter(old for old, _ in pairs).items():
        if count > 1:
            raise ValueError(f"{old!r} is given twice")
    return dict(pairs)


def of_an_optimizer(shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Return the names of the optimizer's and the train cell's own tensors, given all tensors' ``shapes``."""
    counters = {name for name in shapes if _COUNTERS.fullmatch(name) and len(shapes[name]) <= 1}  # a rate may be a list
    moments = set()
    for name in shapes:
        prefix, _, weight = name.partition(".")
        if prefix in _MOMENTS and shapes.get(weight) == shapes[name]:
            beside = _MOMENTS[prefix]
            if beside is None or f"{beside}.{weight}" in shapes:
                moments.add(name)
    return frozenset(counters | moments)
