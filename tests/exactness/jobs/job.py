"""The table of jobs: what each trains, when it is killed, and what a start says if it refuses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from exactness.jobs.run import Run

Mode = Literal["graph", "pynative"]


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        train: Does all of it, like a script.
        mode: MindSpore's.
        kill: The micro-step after which it is killed, before that one is saved.
        stage: Of a training in stages, the one in which it is killed.
        refused: What the error holds that ends a start; empty if each resume is exact.
        by: The start that is refused.
        trained: Micro-steps of the last stage before the refusal, at most: 1 is the first save.
        default: Whether the default suite runs it.
    """

    train: Callable[[Run], None]
    mode: Mode
    kill: int = 12
    stage: str = ""
    refused: tuple[str, ...] = ()
    by: Literal["first", "resumed"] = "first"
    trained: int = 1
    default: bool = False


JOBS: dict[str, Job] = {}


def job(mode: Mode, **options: object) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Put a function into the table; `Job` has the options."""

    def add(train: Callable[[Run], None]) -> Callable[[Run], None]:
        assert train.__name__ not in JOBS, train.__name__
        JOBS[train.__name__] = Job(train, mode, **options)
        return train

    return add
