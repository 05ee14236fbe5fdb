"""Traces of training processes, and what of one differs from another; no tolerance anywhere."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exactness.equivalence.job import MICRO_STEPS, Case, Kill


@dataclass(frozen=True)
class Line:
    """One event of a trace."""

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
    names, absent = {**reference.leaves, **line.leaves}, object()
    return [name for name in names if reference.leaves.get(name, absent) != line.leaves.get(name, absent)]


def assert_equal(reference: Iterable[Line], trace: Iterable[Line]) -> int:
    """Compare every line of ``trace`` with the reference's of the same event; returns how many micro-steps."""
    expected = {(line.event, line.at): line for line in reference}
    compared = [line for line in trace if line.event != "resumed"]
    for line in compared:
        assert (line.event, line.at) in expected, f"{line}: the reference never got there"
        differing = differences(expected[line.event, line.at], line)
        assert not differing, (
            f"{line}: {differing[0]} is the first of {len(differing)} leaves that differ: {', '.join(differing)}"
        )
    return len(steps(compared))


def assert_continues(case: Case, reference: list[Line], trace: list[Line], kill: Kill | None, committed: int) -> None:
    """See that a process went on from ``committed`` micro-steps, as far as ``kill`` or to the end, as the reference."""
    begin, *lines = trace
    assert (begin.event, begin.at) == ("resumed", committed), f"{committed} are committed, but: {begin}"
    name = begin.leaves["checkpoint"]
    cycles, micro_step = case.place(committed)
    there = name is not None and f"-c{cycles:010d}-m{micro_step:04d}" in name
    # Rewound, the very first cycle is stored as a checkpoint of nothing done yet.
    fresh = committed == 0 and (name is None or (case.mid_cycle == "rewind" and there))
    assert fresh or (committed and there), f"began {committed} steps in, from {name}"
    compared = assert_equal(reference, lines)
    assert steps(lines) == list(range(committed + 1, committed + 1 + compared)), (
        f"from {name}, the micro-steps are {steps(lines)}"
    )
    if kill is None:
        assert committed + compared == MICRO_STEPS, f"ended after micro-step {committed + compared}"
        assert lines[-1:] == reference[-1:], f"the last line is not the reference's: {lines[-1:]}"
    else:
        inside = kill.moment in ("in_update", "after_update")
        late = case.traced == "after_save" and kill.moment in ("step_end", "in_write", "committed")
        least = kill.at - (inside or late)  # that one may not have been traced when it strikes
        assert committed + compared >= least, f"got to micro-step {committed + compared}, expected {least}"


def dealt(traces: Sequence[Sequence[Line]]) -> list[str]:
    """All ranks' samples, in the order of the one that they share."""
    return [sample for lines in zip(*traces, strict=True) for line in lines for sample in line.samples]
