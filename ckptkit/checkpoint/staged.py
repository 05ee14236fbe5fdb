"""Defines what the writer gets from a capture: files that it can read while training goes on.

Guarantees nothing by itself; `ckptkit.snapshot.Window` implements it. Threads: the writer thread only, except for
`Staged.advance`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pydantic import JsonValue

from ckptkit.core.progress import Progress
from ckptkit.core.save_report import SaveCost
from ckptkit.format.shards import Shard
from ckptkit.storage import ByteStream


class Staged(Protocol):
    @property
    def progress(self) -> Progress: ...

    @property
    def state(self) -> Mapping[str, JsonValue]: ...

    @property
    def shards(self) -> tuple[Shard, ...]: ...

    @property
    def samples(self) -> Mapping[str, str]:
        """What `sample_of` gave at the capture for leaves that may change before they are read, by name."""

    @property
    def cost(self) -> SaveCost: ...

    @property
    def by_slices(self) -> bool:
        """Whether a file whose memory belongs to training can be read only once."""

    def open_shard(self, number: int, *, last: bool = True) -> ByteStream:
        """Read file ``number`` from its start; ``last`` means that it is not read again."""

    def release(self) -> None: ...

    def advance(self, micro_steps_left: int) -> bool:
        """Give the writer what it may wait for, as far as there is room."""
