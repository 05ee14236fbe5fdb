"""Defines `Finding`: one thing in a training that no checkpoint can make exact.

Pure values, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from ckptkit.core.text import some

_MOST_PLACES = 8  # that one sentence names


@dataclass(frozen=True)
class Finding:
    """Describes what makes a resumed run differ, or makes two runs differ even without a restart."""

    kind: Literal["operator", "pipeline", "rounding"]  # rounding: of a kernel, by its launches in a process
    where: str  # the cell or the code, such as ``network.drop (nn.Dropout)``
    why: str
    fix: str
    certain: bool = True  # a resumed run was seen to differ; otherwise it may

    def __str__(self) -> str:
        return f"{self.where}: {self.why}. {self.fix}."


def sentences(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield what to say of findings; neighbours that differ only in their place share a sentence."""
    for (certain, why, fix), same in groupby(findings, lambda finding: (finding.certain, finding.why, finding.fix)):
        where = some([*dict.fromkeys(finding.where for finding in same)], _MOST_PLACES)
        yield f"The resumed run {'will' if certain else 'may'} not be bit-exact. {where}: {why}. {fix}."
