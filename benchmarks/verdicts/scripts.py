"""The scripts whose truth is known, and which causes are right.

The first line of a script says whether its resume differs. `causes.csv` says of those that differ which diagnoses
name the cause: codes, and words of which one is in the place or the sentence that the doctor gives.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDERS = (
    Path(__file__).parents[2] / "tests" / "exactness" / "scripts" / "jobs",
    Path(__file__).parents[2] / "tests" / "docs" / "doctor" / "planted",
)
CAUSES = Path(__file__).with_name("causes.csv")


@dataclass(frozen=True)
class Cause:
    """What names a defect rightly.

    Attributes:
        codes: Any of these.
        words: Any of these in the place or the cause; none if the code says it all.
    """

    codes: tuple[str, ...]
    words: tuple[str, ...] = ()

    def is_named_by(self, diagnosis: Mapping[str, object] | None) -> bool:
        """Return whether a diagnosis of the doctor names it."""
        if diagnosis is None or diagnosis["code"] not in self.codes:
            return False
        told = f"{diagnosis['where']} {diagnosis['cause']}"
        return not self.words or any(word in told for word in self.words)


@dataclass(frozen=True)
class Script:
    """A script with its truth.

    Attributes:
        path: The file.
        differs: Whether a resume of it differs.
        cause: What is right for it; None if no one has said so.
    """

    path: Path
    differs: bool
    cause: Cause | None


def known_scripts() -> list[Script]:
    """Return all scripts whose truth is sure, in the order of their names.

    Left out are those that may be refused, and those whose state is lost but that were exact after one kill.
    """
    causes = read_causes()
    found = []
    for path in sorted((path for folder in FOLDERS for path in folder.glob("*.py")), key=lambda path: path.stem):
        header = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        truth, _, loudness = header.partition(", ")
        if truth == "differs" or (truth == "exact" and loudness != "named"):
            found.append(Script(path, truth == "differs", causes.get(path.stem)))
    return found


def read_causes() -> dict[str, Cause]:
    """Return the right causes by name of the script."""
    with CAUSES.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {row["script"]: Cause(tuple(row["codes"].split()), tuple(row["words"].split())) for row in rows}


def chosen(scripts: Sequence[Script], count: int, *, part: int = 0) -> list[Script]:
    """Return ``count`` scripts, half of them defective, spread evenly over the names; the same at every call.

    Args:
        scripts: All.
        count: How many.
        part: Which of the choices of that size: each has other scripts, until all were chosen.
    """
    halves = [[one for one in scripts if one.differs is differs] for differs in (True, False)]
    sizes = (count - count // 2, count // 2)
    found: list[Script] = []
    for half, size in zip(halves, sizes, strict=True):
        every = max(1, len(half) // max(1, size))
        found += half[part % every :: every][:size]
    return sorted(found, key=lambda one: one.path.stem)
