"""`Finding`: one thing of a training that no checkpoint can make exact.

Pure values, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["operator", "pipeline", "stock", "unseen"]


@dataclass(frozen=True)
class Finding:
    """What would make a resumed run differ, or differs already without a restart.

    Attributes:
        kind: ``operator`` for random cells and operators, ``pipeline`` for Python code in the data pipeline,
            ``stock`` for a cell of MindSpore's that does not work here, ``unseen`` for state that is in no
            checkpoint.
        where: The cell or the code, such as ``network.drop (nn.Dropout)``.
        why: What is wrong with it.
        fix: What to do.
        certain: Whether a resumed run was seen to differ; else it may: what else draws, or
            whether training changes what is named, cannot be seen.
    """

    kind: Kind
    where: str
    why: str
    fix: str
    certain: bool = True

    def __str__(self) -> str:
        return f"{self.where}: {self.why}. {self.fix}."
