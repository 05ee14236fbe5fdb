"""Chooses the cases of a parametrized test that the default suite runs.

``@pytest.mark.covering(1)`` keeps cases in which each value of each parameter occurs, ``covering(2)`` cases in which
each pair of values of two parameters does; the others are marked ``extended``. Parameters of fixtures count, too. Most
defects depend on one or two parameters: D. R. Kuhn, D. R. Wallace, A. M. Gallo, "Software fault interactions and
implications for software testing", IEEE Transactions on Software Engineering 30(6), 2004.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence

import pytest


def mark_extended(items: Sequence[pytest.Item]) -> None:
    """Mark what the default suite leaves out of the tests that ask for it."""
    functions = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("covering")
        if marker is not None and item.get_closest_marker("extended") is None:
            functions[item.nodeid.partition("[")[0], marker.args[0]].append(item)
    for (_, strength), cases in functions.items():
        values = [{name: repr(value) for name, value in case.callspec.params.items()} for case in cases]
        kept = set(covering(values, strength))
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker("extended")


def covering(cases: Sequence[dict[str, str]], strength: int) -> list[int]:
    """The numbers of some cases in which every combination of ``strength`` values occurs that occurs in any case."""
    columns = {tuple(case[name] for case in cases) for name in cases[0]}  # parameters that always go together are one
    axes = sorted(columns)
    found = [
        {
            (chosen, tuple(axes[axis][number] for axis in chosen))
            for chosen in itertools.combinations(range(len(axes)), min(strength, len(axes)))
        }
        for number in range(len(cases))
    ]
    missing, kept = set().union(*found), []
    while missing:
        best = max(range(len(cases)), key=lambda number: (len(found[number] & missing), -number))
        missing -= found[best]
        kept.append(best)
    return sorted(kept)
