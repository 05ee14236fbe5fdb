"""Compares verdicts of the doctor with the truth and prints a line for each, then the rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.verdicts.scripts import Script


@dataclass(frozen=True)
class Verdict:
    """What the doctor said of a script.

    Attributes:
        script: The script.
        exact: The verdict; None if the doctor gave none.
        diagnosis: As in the JSON of ``ckptkit doctor``.
        said: The end of stderr, if there was no verdict.
        seconds: How long it took.
    """

    script: Script
    exact: bool | None
    diagnosis: dict[str, Any] | None
    said: str
    seconds: float

    @property
    def is_right(self) -> bool | None:
        """Whether the verdict is the truth; None without a verdict."""
        return None if self.exact is None else self.exact is not self.script.differs

    @property
    def is_cause_right(self) -> bool | None:
        """Whether the cause of a defect is named; None if no one has said which one it is."""
        if not self.script.differs or self.script.cause is None:
            return None
        return self.exact is False and self.script.cause.is_named_by(self.diagnosis)


def line_of(verdict: Verdict) -> str:
    """Return a line of the table."""
    truth = "differs" if verdict.script.differs else "exact"
    said = {True: "exact", False: "differs", None: "none"}[verdict.exact]
    cause = {True: "right", False: "WRONG", None: "-"}[verdict.is_cause_right]
    mark = {True: "", False: "WRONG", None: "-"}[verdict.is_right]
    found = verdict.diagnosis or {"code": "", "where": verdict.said.replace("\n", " ")[-90:]}
    name = verdict.script.path.stem
    return (
        f"{name:44} {truth:8} {said:8} {mark:6} {cause:6} {verdict.seconds:4.0f} s  {found['code']}: {found['where']}"
    )


def totals(verdicts: Sequence[Verdict]) -> str:
    """Return the rates, a line each."""
    defects = [one for one in verdicts if one.script.differs]
    clean = [one for one in verdicts if not one.script.differs]
    judged = [one for one in defects if one.is_cause_right is not None]
    named = sum(bool(one.is_cause_right) for one in judged)
    return "\n".join(
        (
            f"defects called not exact: {_rate(sum(one.exact is False for one in defects), len(defects))}",
            f"defects with a cause rightly named: {_rate(named, len(judged))}",
            f"sound jobs called inexact: {_rate(sum(one.exact is False for one in clean), len(clean))}",
            f"no verdict: {_rate(sum(one.exact is None for one in verdicts), len(verdicts))}",
        )
    )


def _rate(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({100 * part / whole:.0f} %)" if whole else "")
