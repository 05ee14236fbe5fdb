"""Traces of training processes, and what of one differs from another; no tolerance anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Line:
    """One event of a trace.

    Attributes:
        event: ``resumed``, ``step``, ``epoch`` or ``end``.
        at: Micro-steps done since the run's first start.
        leaves: By name, the digest or the value of everything that a later step depends on.
        samples: One digest per sample of the batch.
    """

    event: str
    at: int
    leaves: dict[str, str | None]
    samples: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.event} at micro-step {self.at}"


def read_trace(path: Path) -> list[Line]:
    """Every line; the last one is whole too, since each is one write."""
    return [Line(**json.loads(line)) for line in path.read_text().splitlines()]


def steps(lines: Iterable[Line]) -> list[int]:
    """The micro-steps that were traced, in order."""
    return [line.at for line in lines if line.event == "step"]


def differences(reference: Line, line: Line) -> list[str]:
    """Names of the leaves that differ, those that only one of the two has included; causes before effects."""
    names = [*reference.leaves, *(name for name in line.leaves if name not in reference.leaves)]
    absent = object()
    return [name for name in names if reference.leaves.get(name, absent) != line.leaves.get(name, absent)]


def assert_equal(reference: Iterable[Line], trace: Iterable[Line]) -> int:
    """Compare every line of ``trace`` with the reference's of the same event; returns how many micro-steps.

    Raises:
        AssertionError: At the first line that differs; names the micro-step and the leaves, the first one first.
    """
    expected = {(line.event, line.at): line for line in reference}
    compared = 0
    for line in trace:
        if line.event == "resumed":
            continue
        assert (line.event, line.at) in expected, f"{line}: the reference never got there"
        differing = differences(expected[line.event, line.at], line)
        assert not differing, (
            f"{line}: {differing[0]} is the first of {len(differing)} leaves that differ: {', '.join(differing)}"
        )
        compared += line.event == "step"
    return compared
