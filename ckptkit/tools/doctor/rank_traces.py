"""Reads the traces that the ranks of one life write, each its own.

Guarantees: reads while the ranks write; an incomplete last line is left out. In a job of one rank there is one trace.
Pure functions of the files, any thread.
"""

from __future__ import annotations

from pathlib import Path

from ckptkit.tools.doctor.probe import EVENT, Begun, Event, Killed, Stopped, read_trace, trace_of


def read_traces(trace: Path) -> list[list[Event]]:
    """Return the events of each rank; one empty list if none has restored a run.

    Args:
        trace: The trace of rank 0, which tells where the others are.

    Raises:
        ValueError: If a line does not belong to a trace.
    """
    return [read_trace(trace_of(trace, rank)) for rank in range(_size(trace))]


def have_ended(trace: Path) -> bool:
    """Return whether one of many ranks has killed itself, or all have stopped; False in a job of one rank."""
    size = _size(trace)
    if size == 1:
        return False
    last = [_last(trace_of(trace, rank)) for rank in range(size)]
    return any(isinstance(one, Killed) for one in last) or all(isinstance(one, Stopped) for one in last)


def _size(trace: Path) -> int:
    """Return the number of ranks that a rank has told; 1 if none has."""
    for one in (trace, *sorted(trace.parent.glob(f"{trace.name}-rank-*"))):
        if one.exists():
            with one.open("rb") as file:
                line = file.readline()
            begun = EVENT.validate_json(line) if line.endswith(b"\n") else None
            if isinstance(begun, Begun):
                return begun.ranks
    return 1


def _last(trace: Path) -> Event | None:
    lines = trace.read_bytes().splitlines(keepends=True) if trace.exists() else []
    whole = [line for line in lines[-2:] if line.endswith(b"\n")]
    return EVENT.validate_json(whole[-1]) if whole else None
