"""One training, what is expected of it, and the table of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from exactness.jobs.outcome import Outcome
from exactness.jobs.run import Run

Mode = Literal["graph", "pynative"]


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        train: Does all of it, like a script.
        expected: What happens when it is killed and started again.
        mode: MindSpore's.
        kill: The micro-step after which it is killed, before that one is saved.
        default: Whether the default suite runs it.
        differs: What differs silently, where it is known and not mended.
    """

    train: Callable[[Run], None]
    expected: Outcome
    mode: Mode
    kill: int
    default: bool
    differs: str | None


JOBS: dict[str, Job] = {}


def job(
    expected: Outcome, mode: Mode = "graph", *, kill: int = 12, default: bool = False, differs: str | None = None
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Put a function into the table; once for each mode."""

    def add(train: Callable[[Run], None]) -> Callable[[Run], None]:
        name = f"{train.__name__}-{mode}"
        assert name not in JOBS, name
        JOBS[name] = Job(train, expected, mode, kill, default, differs)
        return train

    return add
