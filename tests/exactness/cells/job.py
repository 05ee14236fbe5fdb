"""What one training process of the suite is told to do; plain values, imported by both sides."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

BATCHES_PER_EPOCH = 7  # 3 does not divide it, so cycles run across the ends of epochs
SAMPLES_PER_BATCH = 6
EPOCHS = 2
MICRO_STEPS = EPOCHS * BATCHES_PER_EPOCH
K = 3


@dataclass(frozen=True)
class Job:
    """One process, which trains one kind after the other.

    Attributes:
        mode: ``graph`` or ``pynative``.
        kinds: Names in the table of `exactness.cells.kinds`.
        data: Name in the table of `exactness.cells.data`.
        folder: Gets one run root per kind; None trains without ckptkit.
        trace: File to write.
        until: Micro-steps since the run's first start after which each kind is left as it is; the process kills
            itself after the last one. None trains to the end.
    """

    mode: str
    kinds: tuple[str, ...]
    data: str
    folder: str | None
    trace: str
    until: int | None = None

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Job:
        fields = json.loads(text)
        return cls(**{**fields, "kinds": tuple(fields["kinds"])})
