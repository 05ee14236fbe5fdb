"""What a reader of the documentation may expect of a job that is killed and started again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Exact:
    """Every line after the resume is that of the uninterrupted run, and nothing is said against it."""


@dataclass(frozen=True)
class Named:
    """Each start warns before its first micro-step.

    Attributes:
        words: What the warning must hold.
        differs: Whether the resumed run must differ, so that the warning is a true one; None where chance decides.
        within: It comes after at most so many micro-steps instead, as what cannot be read does.
    """

    words: str
    differs: bool | None = True
    within: int = 0


@dataclass(frozen=True)
class Refused:
    """A start ends with an error before it trains, or at its first save.

    Attributes:
        words: What the error must hold, the advice among them.
        at: Which start it is.
        after: Micro-steps that it may have trained: 1 is its first save, more is for what nothing shows before.
        warned: What a warning before the first of them must hold, if it is refused later.
    """

    words: tuple[str, ...]
    at: Literal["start", "resume"] = "start"
    after: int = 1
    warned: str | None = None


@dataclass(frozen=True)
class Told:
    """Exact, or named, or refused: all but silence.

    Attributes:
        words: What the warning or the error must hold.
    """

    words: str


Outcome = Exact | Named | Refused | Told
