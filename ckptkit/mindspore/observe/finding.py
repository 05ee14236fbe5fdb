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

Kind = Literal["operator", "pipeline", "rounding", "unseen"]


@dataclass(frozen=True)
class Finding:
    """Describes what makes a resumed run differ, or makes two runs differ even without a restart.

    Attributes:
        kind: ``operator`` for random cells and operators, ``pipeline`` for Python code in the data pipeline,
            ``rounding`` for a kernel that may round otherwise in another process, ``unseen`` for state that is in no
            checkpoint.
        where: The cell or the code, such as ``network.drop (nn.Dropout)``.
        why: What is wrong with it.
        fix: What to do.
        certain: True if a resumed run was seen to differ. False if it may differ: inspection cannot see what else
            draws, or whether training changes what is named.
    """

    kind: Kind
    where: str
    why: str
    fix: str
    certain: bool = True

    def __str__(self) -> str:
        return f"{self.where}: {self.why}. {self.fix}."


def sentences(found: Sequence[Finding]) -> Iterator[str]:
    """Yield what to say of findings; those that differ only in their place, one after the other, are told together."""
    for (certain, why, fix), same in groupby(found, lambda one: (one.certain, one.why, one.fix)):
        places = [*dict.fromkeys(one.where for one in same)]
        where = some(places, _MOST_PLACES)
        yield f"The resumed run {'will' if certain else 'may'} not be bit-exact. {where}: {why}. {fix}."
